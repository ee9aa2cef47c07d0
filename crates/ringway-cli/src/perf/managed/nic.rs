//! The same by librdmacm, for devices of libibverbs.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Result, bail};
use ringway_link::rdma::{Address, Device as _, QueuePair, Verbs};
use ringway_verbs::{CmEventKind, CmId, ConnectionTerms, EventChannel};

use super::{super::control::Control, asked_for};

/// How long an address or a route may take to be found.
const PATIENCE: Duration = Duration::from_secs(2);

/// Requests that may wait to be accepted: all of a client's, as most have fewer queue pairs.
const BACKLOG: i32 = 128;

/// Conversations of one side.
pub(super) struct Nic {
    channel: Arc<EventChannel>,
    /// Of its first queue pair: all have the same but for numbers.
    own: Address,
    listener: Option<CmId>,
    conversations: Vec<Conversation>,
}

struct Conversation {
    id: CmId,
    /// The queue pair's index, where this side has asked; None where it was asked.
    asked: Option<usize>,
    established: bool,
}

impl Nic {
    pub(super) fn new(device: &Verbs, own: Address) -> Result<Self> {
        Ok(Self {
            channel: EventChannel::new(device.context().library())?,
            own,
            listener: None,
            conversations: Vec::new(),
        })
    }

    /// How many connections there are.
    pub(super) fn established(&self) -> usize {
        self.conversations
            .iter()
            .filter(|it| it.established)
            .count()
    }

    /// Listens at a port of rdma_cm's.
    pub(super) fn listen(&mut self, port: u16) -> Result<()> {
        let listener = self.id()?;
        listener.listen(SocketAddr::new(self.own.ip, port), BACKLOG)?;
        self.listener = Some(listener);
        Ok(())
    }

    /// Begins to ask who listens at `to` for the queue pair of this index.
    pub(super) fn ask(&mut self, to: SocketAddr, index: usize) -> Result<()> {
        let id = self.id()?;
        id.resolve_address(SocketAddr::new(self.own.ip, 0), to, PATIENCE)?;
        self.conversations.push(Conversation {
            id,
            asked: Some(index),
            established: false,
        });
        Ok(())
    }

    fn id(&self) -> Result<CmId> {
        let id = CmId::new(&self.channel)?;
        id.set_traffic_class(self.own.traffic_class)?;
        Ok(id)
    }

    /// Takes what has happened, and accepts what the client asks for.
    pub(super) fn step(
        &mut self,
        device: &mut Verbs,
        pairs: &[QueuePair],
        control: &Control,
    ) -> Result<()> {
        while let Some(event) = self.channel.take()? {
            if let CmEventKind::ConnectRequest(id) = event.kind {
                let peer = id
                    .peer_address()
                    .map_or_else(|| control.peer().to_owned(), |peer| peer.to_string());
                let pair = asked_for(&event.private_data, pairs, &peer)?;
                device.connect_by(pair, &id)?;
                id.accept(&terms(device, pair)?, &[])?;
                self.conversations.push(Conversation {
                    id,
                    asked: None,
                    established: false,
                });
                continue;
            }
            let of = |it: &&mut Conversation| it.id.token() == event.id;
            let Some(conversation) = self.conversations.iter_mut().find(of) else {
                continue;
            };
            let Conversation {
                id,
                asked,
                established,
            } = conversation;
            match (event.kind, asked) {
                (CmEventKind::AddressResolved, _) => id.resolve_route(PATIENCE)?,
                (CmEventKind::RouteResolved, Some(index)) => {
                    let said = (*index as u32).to_le_bytes();
                    id.connect(&terms(device, pairs[*index])?, &said)?;
                }
                (CmEventKind::ConnectResponse, Some(index)) => {
                    device.connect_by(pairs[*index], id)?;
                    id.establish()?;
                    *established = true;
                }
                (CmEventKind::Established, _) => *established = true,
                (CmEventKind::Disconnected, _) => *established = false,
                (CmEventKind::Failed { step, status }, _) => bail!(
                    "no connection to {} by rdma_cm: {step} failed ({status}); do UDP packets to port 4791 get through?",
                    control.peer()
                ),
                (CmEventKind::DeviceRemoval, _) => bail!("{} is being removed", device.name()),
                _ => {}
            }
        }
        Ok(())
    }

    /// Ends the connections.
    pub(super) fn disconnect(self) -> Result<()> {
        let established = self.conversations.iter().filter(|it| it.established);
        for conversation in established {
            conversation.id.disconnect()?;
        }
        Ok(())
    }
}

/// What a side proposes for a queue pair. 7 retries would be for ever with rxe; a receive is posted as soon as the
/// receiver has its turn.
fn terms(device: &Verbs, pair: QueuePair) -> Result<ConnectionTerms> {
    let own = device.address(pair)?;
    Ok(ConnectionTerms {
        queue_pair: own.number.get(),
        reads_answered: own.initiator_depth,
        reads_asked: own.initiator_depth,
        retries: 6,
        rnr_retries: 7,
    })
}
