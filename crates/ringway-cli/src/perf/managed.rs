//! Queue pairs connected by rdma_cm: the client asks for each of them, by its index as private data.

use std::net::SocketAddr;

use anyhow::{Result, anyhow, bail};
use ringway_link::rdma::{ConnectionChange, ConnectionEvent, Reason, SoftwareDevice};

use super::{
    control::Control,
    device::Opened,
    end::{End, WHILE_SERVING},
    message::Party,
};

/// The port that a server listens at, which has nothing to do with TCP's.
const SERVICE: u16 = 18515;

impl End {
    /// Lets the client connect. Returns the port of rdma_cm's that it has to ask for.
    pub(super) fn listen(&mut self) -> Result<u16> {
        self.managed()?.listen(SERVICE)?;
        Ok(SERVICE)
    }

    /// Connects to a server that listens. Returns the MTU in bytes.
    pub(super) fn connect_managed(
        &mut self,
        control: &mut Control,
        server: &Party,
        service: u16,
    ) -> Result<u32> {
        self.reach_memory_of(server);
        let mut mtu = self.test.mtu;
        for (index, peer) in server.addresses(self.test.qps)?.iter().enumerate() {
            let pair = self.pairs[index];
            mtu = self.device.address(pair)?.agree(peer)?.mtu.bytes();
            let to = SocketAddr::new(peer.ip, service);
            let said = (index as u32).to_le_bytes();
            self.managed()?.connect_to(pair, to, &said)?;
        }
        // An answer, or that there is none, comes within seconds.
        while self.connections.len() < self.pairs.len() {
            self.poll(control, WHILE_SERVING)?;
        }
        Ok(mtu)
    }

    /// Takes what has happened to connections, and accepts what the client asks for.
    pub(super) fn manage(&mut self, control: &Control) -> Result<()> {
        let Opened::Software(device) = &mut self.device else {
            return Ok(());
        };
        while let Some(event) = device.poll_connection() {
            let ConnectionEvent {
                connection,
                peer,
                change,
            } = event;
            match change {
                ConnectionChange::Requested { private_data, .. } => {
                    let index = private_data.first_chunk().map(|it| u32::from_le_bytes(*it));
                    let pair = index.and_then(|index| self.pairs.get(index as usize));
                    let Some(&pair) = pair else {
                        bail!(
                            "{peer} asks for queue pair {index:?} by rdma_cm, expected one of {}",
                            self.pairs.len()
                        );
                    };
                    device.accept(connection, pair, &[])?;
                }
                ConnectionChange::Established { .. } => self.connections.push(connection),
                ConnectionChange::Rejected {
                    reason: Reason::INVALID_MTU,
                    ..
                } => {
                    bail!("{peer} has a smaller MTU than this side: give --mtu as large as it has")
                }
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
                ConnectionChange::Disconnected => self.connections.retain(|&it| it != connection),
            }
        }
        Ok(())
    }

    /// Ends the connections by rdma_cm; the other side will know, or doesn't care any more.
    pub(super) fn disconnect(&mut self) -> Result<()> {
        for connection in std::mem::take(&mut self.connections) {
            self.managed()?.disconnect(connection)?;
        }
        self.device.flush();
        Ok(())
    }

    fn managed(&mut self) -> Result<&mut SoftwareDevice> {
        match &mut self.device {
            Opened::Software(device) => Ok(device),
            Opened::Verbs(_) => Err(anyhow!("--cm is of the device in software only")),
        }
    }
}
