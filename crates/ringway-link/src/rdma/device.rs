//! The interface.

use std::{ops::Range, os::fd::BorrowedFd, time::Instant};

use ringway_roce::{
    Access, Key,
    rc::{Class, Done, Local, Mtu, ReceiveRequest, Remote, SendRequest, Status},
    timer::{AckTimeout, RnrTimer},
};
use ringway_sys::Memory;

use super::{Address, DeviceError};

/// A queue pair at its device, from [`Device::create`] to [`Device::destroy`]. Devices number theirs from 0 and use
/// numbers again, so that a table may be indexed with them. It isn't the number that packets carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueuePair(pub u32);

/// Registered memory: what requests of this side and of the peer need to name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// The address of the first byte: its virtual address.
    pub address: u64,
    /// The length in bytes.
    pub length: u64,
    /// The key for this side's requests (lkey).
    pub local: Key,
    /// The key for the peer's (rkey).
    pub remote: Key,
}

impl Region {
    /// A piece of it, by offsets, for this side's requests. Devices check the bounds when it is used.
    ///
    /// # Panics
    /// If it ends before it starts, or is more than a request can move (4 GiB less one byte).
    pub fn local(&self, range: Range<u64>) -> Local {
        let length = range.end.checked_sub(range.start);
        let Some(length) = length.and_then(|length| u32::try_from(length).ok()) else {
            panic!(
                "a request for the bytes {range:?} of a region, expected 0 to {} of them",
                u32::MAX
            );
        };
        Local {
            key: self.local,
            address: self.address + range.start,
            length,
        }
    }

    /// A place in it, by its offset, for the peer's requests.
    pub const fn remote(&self, offset: u64) -> Remote {
        Remote {
            key: self.remote,
            address: self.address + offset,
        }
    }
}

/// The most that a device does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most requests in a send queue, or receives in a receive queue.
    pub depth: u32,
    /// The most inline bytes of a request.
    pub inline: u32,
    /// The most payload of a packet on this port.
    pub mtu: Mtu,
    /// The longest message in bytes.
    pub message: u32,
    /// The most queue pairs.
    pub queue_pairs: u32,
    /// The most regions.
    pub regions: u32,
    /// The most READs and atomic operations under way at a queue pair, going out or coming in.
    pub initiator_depth: u8,
    /// Whether it answers peers while nobody polls it, as NICs do.
    pub answers_alone: bool,
    /// Whether registering is done at once and binds no pages, so that it may be done for each message.
    pub registers_at_once: bool,
}

/// What a queue pair is to be. The defaults suit one of several to a peer in a data center.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePairOptions {
    /// How many send requests may wait or be under way.
    pub send_depth: u32,
    /// How many receives may be posted.
    pub receive_depth: u32,
    /// How many bytes a request may carry inline.
    pub inline: u32,
    /// How many READs and atomic operations may be under way, going out and coming in.
    pub initiator_depth: u8,
    /// The most payload of a packet; less if the port or the peer has less.
    pub mtu: Mtu,
    /// The type of service or traffic class byte of all packets, which the peer must have as well.
    pub traffic_class: u8,
    /// How long to wait for an acknowledgement.
    pub ack_timeout: AckTimeout,
    /// How often to send again without progress, 0 to 7. Linux's rxe takes 7 as "for ever". The software device with 7 waits
    /// twice as long each time, 17 s in all with the usual time-out: its peers may answer nothing while they compute.
    pub retries: u8,
    /// How often to send again after "receiver not ready", 0 to 6; 7 is for ever.
    pub rnr_retries: u8,
    /// How long the peer shall wait if no receive is posted.
    pub rnr_timer: RnrTimer,
}

impl Default for QueuePairOptions {
    fn default() -> Self {
        Self {
            send_depth: 256,
            receive_depth: 256,
            inline: 64,
            initiator_depth: 16,
            mtu: Mtu::M4096,
            traffic_class: Class::Data.traffic_class(),
            // With six retries, a peer that is gone is noticed after half a second.
            ack_timeout: AckTimeout::USUAL,
            retries: 6,
            rnr_retries: 6,
            rnr_timer: RnrTimer::USUAL,
        }
    }
}

/// The end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Where it was posted.
    pub queue_pair: QueuePair,
    /// The request's own number.
    pub id: u64,
    /// What was done; without success a NIC doesn't tell what it was that failed.
    pub result: Result<Done, Failure>,
}

/// Why a request failed. Its queue pair has failed with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{status} (vendor's code {vendor:#x})")]
pub struct Failure {
    /// Verbs' status.
    pub status: Status,
    /// The device's own code for it, 0 if it has none.
    pub vendor: u32,
}

/// What happened to a device or a queue pair, by no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceEvent {
    /// The device can't be used any more.
    Fatal,
    /// The port's addresses have changed: queue pairs go on, but an [`Address`] taken before may be of no use.
    AddressChange,
    /// The port's link, or its interface, is down: requests are retried for as long as their queue pair's options say.
    PortDown,
    /// The port's link is there again.
    PortUp,
    /// A queue pair has failed. Its requests complete as flushed.
    QueuePair(QueuePair),
}

/// A port of an RDMA device with one of its addresses, and everything made on it.
///
/// One thread at a time drives a device. Nothing blocks but the caller's own sleep on [`Device::fd`], and once queue
/// pairs are connected, neither posting nor polling allocates. Memory must stay valid while it is registered (the
/// contract of [`Memory`]), and what a request names must be left alone until its completion; bounds, keys and rights
/// the device checks itself.
pub trait Device: Send {
    /// `mlx5_0`, `software` ...
    fn name(&self) -> &str;

    /// The most that it does.
    fn limits(&self) -> Limits;

    /// Registers memory for requests of this side, and of peers as `access` says.
    ///
    /// # Errors
    /// If the device or the operating system refuses (locked memory), there are too many regions, or `access` has
    /// `REMOTE_WRITE` or `REMOTE_ATOMIC` without `LOCAL_WRITE` (ibv_reg_mr(3)).
    fn register(&mut self, memory: Memory, access: Access) -> Result<Region, DeviceError>;

    /// Ends a registration: neither side's requests reach the memory any more.
    ///
    /// # Errors
    /// If there is no such region, or the device refuses: then it may go on using the memory, which has to stay valid
    /// until the device is dropped.
    fn deregister(&mut self, region: &Region) -> Result<(), DeviceError>;

    /// Makes a queue pair, to which receives can be posted at once.
    ///
    /// # Errors
    /// If a limit is passed, or the operating system refuses.
    fn create(&mut self, options: &QueuePairOptions) -> Result<QueuePair, DeviceError>;

    /// What the peer needs to connect to it.
    ///
    /// # Errors
    /// If there is no such queue pair.
    fn address(&self, queue_pair: QueuePair) -> Result<Address, DeviceError>;

    /// Connects to the peer's queue pair. Both sides do so, in any order; what is sent before the other has done so
    /// is sent again.
    ///
    /// # Errors
    /// If the two don't go together, the queue pair is connected already, or the device refuses.
    fn connect(&mut self, queue_pair: QueuePair, peer: &Address) -> Result<(), DeviceError>;

    /// Ends all that a queue pair sends and receives, and appends what had ended by then to `completions`: a message that was
    /// acknowledged to the peer is among those, or was before. Then [`Device::destroy`] loses nothing.
    fn stop(&mut self, queue_pair: QueuePair, completions: &mut Vec<Completion>);

    /// The bytes that it has allocated for packets which came before their turn, beside registered memory.
    fn footprint(&self) -> usize;

    /// The most that [`Device::footprint`] may become; what it is already stays. Packets that have no room are dropped, and come
    /// again.
    fn limit_footprint(&mut self, bytes: usize);

    /// Ends a queue pair. No completion of its requests comes any more, not even of those that are done.
    fn destroy(&mut self, queue_pair: QueuePair);

    /// Puts a request into the send queue. It may wait there for the next [`Device::poll`], [`Device::arm`] or
    /// [`Device::flush`].
    ///
    /// A request keeps its place in the queue until its completion is polled; an unsignaled one, which has none, until
    /// that of a later signaled one is. So at least one in every send depth has to be signaled, or the queue stays full.
    ///
    /// # Errors
    /// If the queue pair has no room, isn't connected or has failed, or the request is beyond a limit.
    fn post_send(
        &mut self,
        queue_pair: QueuePair,
        request: &SendRequest<'_>,
    ) -> Result<(), DeviceError>;

    /// Makes room for a message.
    ///
    /// # Errors
    /// If the queue pair has no room or has failed.
    fn post_receive(
        &mut self,
        queue_pair: QueuePair,
        request: ReceiveRequest,
    ) -> Result<(), DeviceError>;

    /// Moves what can be moved without blocking, and appends what has ended to `completions`; the requests of one
    /// queue are there in their order. Returns whether anything moved, completions or not.
    ///
    /// # Errors
    /// If the device can't be used any more. Queue pairs that fail say so by completions.
    fn poll(
        &mut self,
        now: Instant,
        completions: &mut Vec<Completion>,
    ) -> Result<bool, DeviceError>;

    /// Sends what is posted and acknowledges what has come, as far as that goes without blocking; completions stay for the
    /// next [`Device::poll`]. For who leaves the device alone for a while: whoever sleeps on [`Device::fd`] meanwhile is
    /// neither woken nor forgotten.
    fn flush(&mut self);

    /// What else has happened.
    fn poll_event(&mut self) -> Option<DeviceEvent>;

    /// Before sleeping on [`Device::fd`]: asks for it to become readable at the next completion or event, and at
    /// whatever else needs a [`Device::poll`]. False if there is something already, so that the caller must poll in
    /// place of sleeping.
    fn arm(&mut self) -> bool;

    /// After sleeping, or after `arm` returned false.
    fn disarm(&mut self);

    /// Readable, once armed, when [`Device::poll`] or [`Device::poll_event`] may find something.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Tells all counters, each with its name: a NIC's own (`packet_seq_err`, `np_cnp_sent` ...), and the same names
    /// where software counts the same.
    fn counters(&self, tell: &mut dyn FnMut(&str, u64));
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGION: Region = Region {
        address: 0x1000,
        length: 1 << 33,
        local: Key(1),
        remote: Key(2),
    };

    #[test]
    fn a_piece_is_as_long_as_asked_for() {
        let most = u64::from(u32::MAX);
        let piece = REGION.local(8..8 + most);
        assert_eq!((piece.address, piece.length), (0x1008, u32::MAX));
    }

    #[test]
    #[should_panic(expected = "0..4294967296 of a region")]
    fn a_piece_of_four_gibibytes_is_none_of_no_bytes() {
        REGION.local(0..1 << 32);
    }

    #[test]
    #[should_panic(expected = "9..8 of a region")]
    fn a_piece_does_not_end_before_it_starts() {
        let (start, end) = (9, 8);
        REGION.local(start..end);
    }
}
