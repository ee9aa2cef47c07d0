//! The queue pairs of a device: by the caller's numbers and by those of packets.

use std::{collections::HashMap, sync::Arc};

use ringway_roce::{hash, rc::State};
use ringway_verbs::{self as verbs, CompletionQueue, ProtectionDomain, gid::GidEntry};

use super::{RIGHTS, completions::Reservation, outstanding::Outstanding, words};
use crate::rdma::{Address, DeviceError, PostError, Psn, Qpn, QueuePair, QueuePairOptions, Terms};

/// A queue pair.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) pair: verbs::QueuePair,
    pub(super) options: QueuePairOptions,
    pub(super) first_psn: Psn,
    pub(super) outstanding: Outstanding,
    pub(super) reservation: Reservation,
    state: State,
}

/// Routers that a packet may pass; Linux's own default.
const HOPS: u8 = 64;

impl Pair {
    /// A new one, to which receives can be posted.
    pub(super) fn new(
        pair: verbs::QueuePair,
        options: QueuePairOptions,
        first_psn: Psn,
        reservation: Reservation,
    ) -> Self {
        Self {
            pair,
            options,
            first_psn,
            outstanding: Outstanding::new(options.send_depth),
            reservation,
            state: State::Init,
        }
    }

    pub(super) fn number(&self) -> Qpn {
        Qpn::new(self.pair.number())
    }

    /// Takes it to the peer, from the GID.
    pub(super) fn connect(
        &mut self,
        own: &GidEntry,
        port: u8,
        peer: &Address,
        terms: Terms,
    ) -> Result<(), DeviceError> {
        self.check_unconnected()?;
        let gid_index = u8::try_from(own.index).map_err(|_| DeviceError::Misuse {
            device: self.pair.domain().context().name().to_owned(),
            what: "the GID's index is above 255, which a queue pair cannot name: take unused addresses off the interface",
        })?;
        self.pair.to_receive(&verbs::Path {
            peer: peer.ip.into(),
            peer_number: peer.number.get(),
            first_psn: peer.first_psn.get(),
            gid_index,
            port,
            mtu: words::verbs_mtu(terms.mtu),
            traffic_class: self.options.traffic_class,
            flow_label: flow_label(self.number(), peer.number),
            hop_limit: HOPS,
            reads_answered: terms.initiator_depth,
            min_rnr_timer: self.options.rnr_timer.code(),
        })?;
        self.pair.to_send(&verbs::Persistence {
            first_psn: self.first_psn.get(),
            timeout: self.options.ack_timeout.code(),
            retries: self.options.retries,
            rnr_retries: self.options.rnr_retries,
            reads_asked: terms.initiator_depth,
        })?;
        self.state = State::ReadyToSend;
        Ok(())
    }

    /// Takes it to where a conversation of librdmacm's has come.
    pub(super) fn connect_by(&mut self, conversation: &verbs::CmId) -> Result<(), DeviceError> {
        self.check_unconnected()?;
        conversation.ready(&self.pair, RIGHTS)?;
        self.state = State::ReadyToSend;
        Ok(())
    }

    fn check_unconnected(&self) -> Result<(), DeviceError> {
        if self.state == State::Init {
            return Ok(());
        }
        Err(DeviceError::Misuse {
            device: self.pair.domain().context().name().to_owned(),
            what: "the queue pair is connected already, or has failed",
        })
    }

    /// One of its requests has failed, and so it.
    pub(super) const fn fail(&mut self) {
        self.state = State::Error;
    }

    pub(super) fn cannot_send(&self) -> Option<PostError> {
        if self.state != State::ReadyToSend {
            return Some(PostError::State(self.state));
        }
        let depth = self.options.send_depth as usize;
        (self.outstanding.sends() >= depth).then_some(PostError::Full(depth))
    }

    pub(super) fn cannot_receive(&self) -> Option<PostError> {
        if self.state == State::Error {
            return Some(PostError::State(self.state));
        }
        let depth = self.options.receive_depth as usize;
        (self.outstanding.receives() >= depth).then_some(PostError::Full(depth))
    }
}

/// Twenty bits that differ between the queue pairs of two hosts, so that each may take a path of its own: devices make
/// the UDP source port of it.
const fn flow_label(own: Qpn, peer: Qpn) -> u32 {
    // Neighbouring numbers are to give labels that are far apart: the multiplier is 2^32 over the golden ratio.
    let mixed = (own.get() ^ peer.get().rotate_left(12)).wrapping_mul(0x9e37_79b9);
    (mixed >> 12) | 1 // 0 would leave it to the device
}

/// The most inline bytes of a request that the device takes; there is no other way to know than to ask for them.
pub(super) fn most_inline(domain: &Arc<ProtectionDomain>, queue: &Arc<CompletionQueue>) -> u32 {
    let takes = |inline: &u32| {
        let depths = verbs::Depths {
            send: 1,
            receive: 1,
            inline: *inline,
        };
        verbs::QueuePair::new(domain, queue, queue, depths).is_ok()
    };
    [512, 256, 128, 64].into_iter().find(takes).unwrap_or(0)
}

/// All of them.
#[derive(Debug)]
pub(super) struct Pairs {
    device: String,
    slots: Vec<Option<Pair>>,
    by_number: HashMap<u32, u32, hash::Build>,
}

impl Pairs {
    pub(super) fn new(device: &str) -> Self {
        Self {
            device: device.to_owned(),
            slots: Vec::new(),
            by_number: HashMap::default(),
        }
    }

    pub(super) fn add(&mut self, pair: Pair) -> QueuePair {
        let number = pair.pair.number();
        let at = match self.slots.iter().position(Option::is_none) {
            Some(at) => at,
            None => {
                self.slots.push(None);
                self.slots.len() - 1
            }
        };
        self.slots[at] = Some(pair);
        self.by_number.insert(number, at as u32);
        QueuePair(at as u32)
    }

    pub(super) fn remove(&mut self, queue_pair: QueuePair) -> Option<Pair> {
        let pair = self.slots.get_mut(queue_pair.0 as usize)?.take()?;
        self.by_number.remove(&pair.pair.number());
        Some(pair)
    }

    pub(super) fn get(&self, queue_pair: QueuePair) -> Result<&Pair, DeviceError> {
        self.slots
            .get(queue_pair.0 as usize)
            .and_then(Option::as_ref)
            .ok_or_else(|| none(&self.device))
    }

    pub(super) fn get_mut(&mut self, queue_pair: QueuePair) -> Result<&mut Pair, DeviceError> {
        let slot = self.slots.get_mut(queue_pair.0 as usize);
        slot.and_then(Option::as_mut)
            .ok_or_else(|| none(&self.device))
    }

    /// The queue pair whose packets carry this number.
    pub(super) fn numbered(&self, number: u32) -> Option<QueuePair> {
        self.by_number.get(&number).copied().map(QueuePair)
    }
}

fn none(device: &str) -> DeviceError {
    DeviceError::Misuse {
        device: device.to_owned(),
        what: "there is no such queue pair",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_pairs_of_two_hosts_have_labels_of_their_own() {
        let labels: std::collections::HashSet<u32> = (17..25)
            .map(|number| flow_label(Qpn::new(number), Qpn::new(number)))
            .collect();
        assert_eq!(labels.len(), 8);
        assert!(labels.iter().all(|label| (1..1 << 20).contains(label)));
    }
}
