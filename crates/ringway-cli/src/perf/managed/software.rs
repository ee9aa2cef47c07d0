//! The same by the device in software, which speaks rdma_cm's protocol itself.

use anyhow::{Result, bail};
use ringway_link::rdma::{
    ConnectionChange, ConnectionEvent, ConnectionId, QueuePair, Reason, SoftwareDevice,
};

use super::{super::control::Control, asked_for};

/// Takes what has happened to connections, and accepts what the client asks for. Those that are there are in `established`.
pub(super) fn step(
    device: &mut SoftwareDevice,
    pairs: &[QueuePair],
    established: &mut Vec<ConnectionId>,
    control: &Control,
) -> Result<()> {
    while let Some(event) = device.poll_connection() {
        let ConnectionEvent {
            connection,
            peer,
            change,
        } = event;
        match change {
            ConnectionChange::Requested { private_data, .. } => {
                let pair = asked_for(&private_data, pairs, &peer.to_string())?;
                device.accept(connection, pair, &[])?;
            }
            ConnectionChange::Established { .. } => established.push(connection),
            ConnectionChange::Rejected {
                reason: Reason::INVALID_MTU,
                ..
            } => bail!("{peer} has a smaller MTU than this side: give --mtu as large as it has"),
            ConnectionChange::Rejected { reason, .. } => {
                bail!(
                    "{peer} rejects the connection (reason {} of rdma_cm)",
                    reason.0
                )
            }
            ConnectionChange::Unreachable => bail!(
                "{peer} doesn't answer to rdma_cm, though {} is there: does UDP port 4791 get through?",
                control.peer()
            ),
            ConnectionChange::Disconnected => established.retain(|&it| it != connection),
        }
    }
    Ok(())
}
