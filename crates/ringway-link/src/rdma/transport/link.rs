//! The queue pairs to one peer: what may be posted on them, and what is.
//!
//! The first channel carries frames and short messages, as SENDs into slots that are posted before; the others carry long
//! messages, as WRITEs with immediate data, which use up receives without memory. For each receive the peer has a credit,
//! so that there is always one.

use std::{collections::VecDeque, time::Instant};

use ringway_sys::{Memory, Staging};

use super::{
    MAX_CHANNELS, RdmaSettings,
    exchange::Terms,
    frame::{Credit, Frame, HEADER, Tag},
    pace::{self, Pace},
    pool::{Buffer, Lease, NoBuffer, Pool},
    slab::Slab,
};
use crate::{
    MessageKey,
    rdma::{
        AckTimeout, Device, DeviceError, Mtu, QueuePair, QueuePairOptions, ReceiveRequest, Remote,
        SendRequest, Source, Work,
    },
};

/// Receives for frames that are no messages, and so never stay in their slot.
const FRAMES: u16 = 32;

/// Receives on each data channel.
const DATA: u16 = 64;

/// Queue pairs for long messages, unless the setting says how many: on a NIC several, whose flows switches spread over paths;
/// in software what was fastest over loopback.
const NIC_DATA: usize = 4;
const SOFTWARE_DATA: usize = 2;

/// Slots for SENDs that are too long to go inline.
const SEND_SLOTS: u16 = 32;

/// How many SENDs, or WRITEs on a data channel, may be under way.
const SEND_DEPTH: u32 = 128;

/// Up to so many bytes go inline, if the device takes as many.
const INLINE: usize = 256;

/// The credit for frames that only those may use that give credit back.
const RESERVE: u16 = 1;

/// The immediate data of greetings, which is no offer's number.
pub(super) const GREETING: u32 = u32::MAX;

/// The same of what is sent to measure how fast it goes: a packet that is to be answered, the answer, and a message of a
/// stream.
pub(super) const PING: u32 = u32::MAX - 1;
pub(super) const PONG: u32 = u32::MAX - 2;
pub(super) const STREAM: u32 = u32::MAX - 3;

/// The bytes of a message of a stream, and the room for greetings.
pub(super) const PROBE_ROOM: usize = 64 << 10;

/// The number of requests that are no flight.
const NO_FLIGHT: u64 = u64::MAX;

/// A queue pair.
#[derive(Debug)]
struct Channel {
    pair: QueuePair,
    /// How much more may be sent.
    credit: u16,
    /// How many receives are posted again that the peer does not know of.
    owed: u16,
    /// The send requests that are under way, in their order: they end in it.
    under_way: VecDeque<u64>,
    /// How many have ended, and how many of the peer's have come, modulo 2^16.
    ended: u16,
    arrived: u16,
    pace: Pace,
    /// The peer was heard on it.
    heard: bool,
    /// The most payload of a packet.
    mtu: Mtu,
}

/// A long message that the peer has a place for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Write {
    pub(super) key: MessageKey,
    pub(super) src: Memory,
    pub(super) priority: u8,
    pub(super) number: u32,
    pub(super) place: Remote,
}

/// A request that is under way.
#[derive(Debug)]
struct Flight {
    /// The message that has left its memory, and reached the peer, when this ends: unless its operation has ended before.
    key: Option<MessageKey>,
    /// Where it is sent from; neither if it went inline.
    slot: Option<u16>,
    lease: Option<Lease>,
    /// The bytes of a WRITE.
    len: usize,
}

/// A place that the peer was told of.
#[derive(Debug)]
pub(super) struct Offered {
    pub(super) key: MessageKey,
    pub(super) lease: Lease,
    /// Its operation has ended: what comes is dropped.
    pub(super) ended: bool,
}

/// A link to a peer.
#[derive(Debug)]
pub(super) struct Link {
    channels: Vec<Channel>,
    /// Receive slots, then send slots, then room for greetings.
    slots: Option<Buffer>,
    slot_bytes: usize,
    /// Where the greetings' room begins in the slots' buffer.
    greetings_at: usize,
    /// The peer's.
    peer_greetings: Remote,
    eager_slots: u16,
    send_slots: Vec<u16>,
    inline: usize,
    /// The longest short message for both sides.
    eager_limit: usize,
    /// How many short messages may still be sent.
    eager_credit: u16,
    /// How many slots of the peer's short messages are free again, which it does not know of.
    eager_owed: u16,
    /// Frames that wait for credit.
    queue: VecDeque<Frame>,
    /// Long messages that wait for credit, by priority.
    writes: VecDeque<Write>,
    /// Requests that are under way and are of messages, or have memory.
    flights: Slab<Flight>,
    pub(super) offers: Slab<Offered>,
    /// Flights from the user's memory, and offers of it, whose operation has ended.
    lingering: usize,
    /// Long messages that wait for an offer and are not announced.
    pub(super) unannounced: Vec<MessageKey>,
    /// The queue pairs are destroyed; memory stays for what is still looked at.
    closed: bool,
}

/// Why a link could not be made or used.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(
        "buffers would take {wanted} bytes where the limit is {limit}; raise RINGWAY_BUFFER_SIZE, and RINGWAY_MEMORY_LIMIT where that is lower"
    )]
    Limit { wanted: usize, limit: usize },
}

impl From<NoBuffer> for Fault {
    fn from(none: NoBuffer) -> Self {
        match none {
            NoBuffer::Limit(wanted, limit) => Self::Limit { wanted, limit },
            NoBuffer::Device(error) => Self::Device(error),
        }
    }
}

impl Link {
    /// Makes the queue pairs and posts their receives.
    pub(super) fn new(
        device: &mut dyn Device,
        pool: &mut Pool,
        settings: &RdmaSettings,
    ) -> Result<Self, Fault> {
        let slot_bytes = HEADER + settings.eager_limit;
        let receives = settings.eager_messages + FRAMES;
        let greetings_at = usize::from(receives + SEND_SLOTS) * slot_bytes;
        let slots = pool.take(device, greetings_at + PROBE_ROOM)?;
        let peer_greetings = slots.region.remote(greetings_at as u64);
        let inline = INLINE.min(device.limits().inline as usize);
        let mut link = Self {
            channels: Vec::with_capacity(MAX_CHANNELS),
            slots: Some(slots),
            slot_bytes,
            greetings_at,
            peer_greetings,
            eager_slots: settings.eager_messages,
            send_slots: (receives..receives + SEND_SLOTS).collect(),
            inline,
            eager_limit: settings.eager_limit,
            eager_credit: 0,
            eager_owed: 0,
            queue: VecDeque::new(),
            writes: VecDeque::new(),
            flights: Slab::default(),
            offers: Slab::default(),
            lingering: 0,
            unannounced: Vec::new(),
            closed: false,
        };
        let made = link.make_channels(device, receives, settings);
        if let Err(error) = made {
            link.close(Some(device), pool);
            link.recycle(pool);
            return Err(error.into());
        }
        Ok(link)
    }

    fn make_channels(
        &mut self,
        device: &mut dyn Device,
        receives: u16,
        settings: &RdmaSettings,
    ) -> Result<(), DeviceError> {
        let (data, ack_timeout, retries) = if device.limits().answers_alone {
            // rxe takes 7 retries for endless.
            (NIC_DATA, AckTimeout::LONG, 6)
        } else {
            (SOFTWARE_DATA, AckTimeout::USUAL, 7)
        };
        let data = settings.data_channels.unwrap_or(data);
        for channel in 0..=data.clamp(1, MAX_CHANNELS - 1) {
            let (depth, inline) = match channel {
                0 => (receives, self.inline as u32),
                _ => (DATA, 0),
            };
            let pair = device.create(&QueuePairOptions {
                send_depth: SEND_DEPTH,
                receive_depth: depth.into(),
                inline,
                ack_timeout: settings.ack_timeout.unwrap_or(ack_timeout),
                retries,
                ..QueuePairOptions::default()
            })?;
            self.channels.push(Channel {
                pair,
                credit: 0,
                owed: 0,
                under_way: VecDeque::with_capacity(SEND_DEPTH as usize),
                ended: 0,
                arrived: 0,
                pace: Pace::default(),
                heard: false,
                mtu: Mtu::M256,
            });
            for slot in 0..depth {
                self.post_receive(device, channel, slot.into())?;
            }
        }
        Ok(())
    }

    /// What the peer has to know.
    pub(super) fn terms(&self, device: &dyn Device) -> Result<Terms, DeviceError> {
        let addresses = self
            .channels
            .iter()
            .map(|channel| device.address(channel.pair));
        let greetings = self.slots.as_ref().map_or(self.peer_greetings, |slots| {
            slots.region.remote(self.greetings_at as u64)
        });
        Ok(Terms {
            eager_limit: u32::try_from(self.eager_limit).unwrap_or(u32::MAX),
            eager: self.eager_slots,
            frames: FRAMES,
            data: DATA,
            greetings,
            measures: false,
            addresses: addresses.collect::<Result<_, _>>()?,
        })
    }

    /// Connects to the peer's queue pairs. Those that only one side has are not used.
    pub(super) fn connect(
        &mut self,
        device: &mut dyn Device,
        terms: &Terms,
    ) -> Result<(), DeviceError> {
        for unpaired in self
            .channels
            .drain(terms.addresses.len().min(self.channels.len())..)
        {
            device.destroy(unpaired.pair);
        }
        for (channel, address) in self.channels.iter_mut().zip(&terms.addresses) {
            device.connect(channel.pair, address)?;
            channel.mtu = device.address(channel.pair)?.mtu.min(address.mtu);
            channel.credit = terms.data;
        }
        self.channels[0].credit = terms.frames;
        self.peer_greetings = terms.greetings;
        self.eager_credit = terms.eager;
        self.eager_limit = self.eager_limit.min(terms.eager_limit as usize);
        Ok(())
    }

    /// Sends one packet of the largest size on each channel, a WRITE with immediate data, which proves to the peer that it is
    /// reached: by small packets alone, a path of a smaller MTU would pass too.
    pub(super) fn greet(&mut self, device: &mut dyn Device) -> Result<(), DeviceError> {
        (0..self.channels.len()).try_for_each(|channel| {
            let packet = self.channels[channel].mtu.bytes();
            self.write_greeting(device, channel, packet, GREETING)
        })
    }

    /// Sends what measures how fast it goes: a packet on the first channel, a message of a stream on the one of the others with the
    /// least under way.
    pub(super) fn probe(&mut self, device: &mut dyn Device, code: u32) -> Result<(), DeviceError> {
        if code != STREAM {
            let packet = self.channels[0].mtu.bytes();
            return self.write_greeting(device, 0, packet, code);
        }
        let of = |channel: &usize| self.channels[*channel].under_way.len();
        match (1..self.channels.len()).min_by_key(of) {
            Some(channel) => self.write_greeting(device, channel, PROBE_ROOM as u32, code),
            None => Ok(()),
        }
    }

    fn write_greeting(
        &mut self,
        device: &mut dyn Device,
        channel: usize,
        bytes: u32,
        code: u32,
    ) -> Result<(), DeviceError> {
        let Some(slots) = &self.slots else {
            return Ok(());
        };
        let channel = &mut self.channels[channel];
        let start = self.greetings_at as u64;
        let work = Work::Write {
            source: Source::Memory(slots.region.local(start..start + u64::from(bytes))),
            remote: self.peer_greetings,
            immediate: Some(code),
        };
        device.post_send(channel.pair, &request(NO_FLIGHT, work))?;
        channel.under_way.push_back(NO_FLIGHT);
        Ok(())
    }

    /// The peer's greeting has come.
    pub(super) fn greeted(
        &mut self,
        device: &mut dyn Device,
        channel: usize,
        slot: u64,
    ) -> Result<(), DeviceError> {
        self.channels[channel].heard = true;
        self.came(channel);
        self.post_receive(device, channel, slot)
    }

    /// A request of the peer's has ended here.
    pub(super) fn came(&mut self, channel: usize) {
        let arrived = &mut self.channels[channel].arrived;
        *arrived = arrived.wrapping_add(1);
    }

    /// How many requests of the peer's have ended here, on each channel.
    pub(super) fn arrived(&self) -> [u16; MAX_CHANNELS] {
        let mut counts = [0; MAX_CHANNELS];
        for (count, channel) in counts.iter_mut().zip(&self.channels) {
            *count = channel.arrived;
        }
        counts
    }

    /// Of a closed link, the messages under way of which the peer says that they have come. `arrived` is the peer's count for
    /// each channel; None if it can't be right.
    pub(super) fn delivered(&mut self, arrived: &[u16; MAX_CHANNELS]) -> Option<Vec<MessageKey>> {
        let mut delivered = Vec::new();
        for (channel, arrived) in self.channels.iter_mut().zip(arrived) {
            let count = usize::from(arrived.wrapping_sub(channel.ended));
            if count > channel.under_way.len() {
                return None;
            }
            for id in channel.under_way.drain(..count) {
                let flight = u32::try_from(id)
                    .ok()
                    .and_then(|id| self.flights.remove(id));
                delivered.extend(flight.and_then(|flight| flight.key));
            }
        }
        Some(delivered)
    }

    /// Whether both sides were heard on all channels.
    pub(super) fn is_proven(&self) -> bool {
        self.channels
            .iter()
            .all(|channel| channel.heard && channel.under_way.is_empty())
    }

    pub(super) fn pairs(&self) -> impl Iterator<Item = QueuePair> {
        self.channels.iter().map(|channel| channel.pair)
    }

    /// The longest short message.
    pub(super) const fn eager_limit(&self) -> usize {
        self.eager_limit
    }

    /// Sends a short message, if there is credit and room: returns the number of its flight.
    pub(super) fn send_eager(
        &mut self,
        device: &mut dyn Device,
        tag: Tag,
        src: Memory,
    ) -> Result<Option<u32>, DeviceError> {
        if self.eager_credit == 0 || !self.has_room(HEADER + src.len()) {
            return Ok(None);
        }
        self.eager_credit -= 1;
        let flight = self.flights.insert(Flight {
            key: Some(tag.key),
            slot: None,
            lease: None,
            len: 0,
        });
        self.post(device, Frame::Eager(tag), src, Some(flight))?;
        Ok(Some(flight))
    }

    /// Sends a frame, now or as soon as there is credit.
    pub(super) fn send(
        &mut self,
        device: &mut dyn Device,
        frame: Frame,
    ) -> Result<(), DeviceError> {
        if self.closed {
            return Ok(());
        }
        if !self.queue.is_empty() || !self.post_frame(device, frame, RESERVE)? {
            self.queue.push_back(frame);
        }
        Ok(())
    }

    /// Puts a long message behind those of the same priority.
    pub(super) fn write(&mut self, write: Write) {
        if self.closed {
            return;
        }
        let later = |other: &Write| other.priority < write.priority;
        let at = self.writes.iter().position(later);
        self.writes.insert(at.unwrap_or(self.writes.len()), write);
    }

    /// Takes out the long messages of an operation that are not under way.
    pub(super) fn cancel_writes(&mut self, group: u64, op: u32, mut each: impl FnMut(u32)) {
        self.writes.retain(|write| {
            let keep = (write.key.group, write.key.op) != (group, op);
            if !keep {
                each(write.number);
            }
            keep
        });
    }

    /// The operation of a message that is under way has ended.
    pub(super) fn abandon(&mut self, flight: u32) {
        if let Some(flight) = self.flights.get_mut(flight)
            && flight.key.take().is_some()
            && flight.lease.as_ref().is_some_and(Lease::is_in_place)
        {
            self.lingering += 1;
        }
    }

    /// The operation of a message that the peer may still write has ended.
    pub(super) fn end_offer(&mut self, number: u32) {
        if let Some(offered) = self.offers.get_mut(number)
            && !std::mem::replace(&mut offered.ended, true)
            && offered.lease.is_in_place()
        {
            self.lingering += 1;
        }
    }

    /// Takes out an offer that is used, or will not be.
    pub(super) fn take_offer(&mut self, number: u32) -> Option<Offered> {
        let offered = self.offers.remove(number)?;
        self.lingering -= usize::from(offered.ended && offered.lease.is_in_place());
        Some(offered)
    }

    /// Whether either side may still touch user memory for an operation that has ended.
    pub(super) const fn lingers(&self) -> bool {
        self.lingering > 0
    }

    /// Posts what has waited, and gives credit back. Long messages that are under way now go to `started`, with the
    /// numbers of their flights.
    pub(super) fn flush(
        &mut self,
        device: &mut dyn Device,
        pool: &mut Pool,
        started: &mut Vec<(MessageKey, u32)>,
    ) -> Result<(), Fault> {
        while let Some(&frame) = self.queue.front() {
            if !self.post_frame(device, frame, RESERVE)? {
                break;
            }
            self.queue.pop_front();
        }
        while let Some(&write) = self.writes.front() {
            let Some(flight) = self.post_write(device, pool, &write)? else {
                break;
            };
            self.writes.pop_front();
            started.push((write.key, flight));
        }
        if self.owes_much() {
            self.post_frame(device, Frame::Credit, 0)?;
        }
        Ok(())
    }

    /// Whether anything waits that a flush could post.
    pub(super) fn has_output(&self) -> bool {
        !self.closed && (!self.queue.is_empty() || !self.writes.is_empty() || self.owes_much())
    }

    /// Whether the peer has all that was sent.
    pub(super) fn is_idle(&self) -> bool {
        self.closed
            || self.queue.is_empty()
                && self.writes.is_empty()
                && self
                    .channels
                    .iter()
                    .all(|channel| channel.under_way.is_empty())
    }

    fn owes_much(&self) -> bool {
        let half = |channel: usize| if channel == 0 { FRAMES / 2 } else { DATA / 2 };
        self.eager_owed >= self.eager_slots.div_ceil(2)
            || (0..self.channels.len()).any(|at| self.channels[at].owed >= half(at))
    }

    /// The peer has given credit back. False if it is more than there can be.
    pub(super) fn credit(&mut self, credit: &Credit) -> bool {
        let eager = self.eager_credit.checked_add(credit.eager);
        self.eager_credit = eager.unwrap_or(u16::MAX);
        let mut fits = eager.is_some();
        let data = credit.data.map(u16::from);
        let all = std::iter::once(credit.frames).chain(data);
        for (channel, more) in self.channels.iter_mut().zip(all) {
            let sum = channel.credit.checked_add(more);
            channel.credit = sum.unwrap_or(u16::MAX);
            fits &= sum.is_some();
        }
        fits
    }

    fn take_credit(&mut self) -> Credit {
        let mut credit = Credit {
            eager: std::mem::take(&mut self.eager_owed),
            ..Credit::default()
        };
        let [frames, data @ ..] = &mut self.channels[..] else {
            return credit;
        };
        credit.frames = std::mem::take(&mut frames.owed);
        for (into, channel) in credit.data.iter_mut().zip(data) {
            // No more than there are receives.
            *into = std::mem::take(&mut channel.owed) as u8;
        }
        credit
    }

    /// Posts a frame if there is more credit than `reserve`. False if not.
    fn post_frame(
        &mut self,
        device: &mut dyn Device,
        frame: Frame,
        reserve: u16,
    ) -> Result<bool, DeviceError> {
        if self.channels[0].credit <= reserve || !self.has_room(HEADER) {
            return Ok(false);
        }
        self.channels[0].credit -= 1;
        self.post(device, frame, Memory::EMPTY, None)?;
        Ok(true)
    }

    /// Whether a SEND of so many bytes can be posted.
    fn has_room(&self, len: usize) -> bool {
        !self.closed
            && self.channels[0].under_way.len() < SEND_DEPTH as usize
            && (len <= self.inline || !self.send_slots.is_empty())
    }

    /// Posts a SEND, inline or from a slot: there must be room.
    fn post(
        &mut self,
        device: &mut dyn Device,
        frame: Frame,
        payload: Memory,
        flight: Option<u32>,
    ) -> Result<(), DeviceError> {
        let len = HEADER + payload.len();
        let header = frame.encode(&self.take_credit());
        let mut bytes = [0; INLINE];
        let (id, source) = match (self.send_slots.last(), &self.slots) {
            (Some(&slot), Some(slots)) if len > self.inline => {
                self.send_slots.pop();
                let memory = self.slot(slot.into(), len);
                memory.write(&header);
                memory.slice(HEADER..len).copy_from(payload);
                let flight = flight.unwrap_or_else(|| {
                    self.flights.insert(Flight {
                        key: None,
                        slot: None,
                        lease: None,
                        len: 0,
                    })
                });
                if let Some(flight) = self.flights.get_mut(flight) {
                    flight.slot = Some(slot);
                }
                let start = u64::from(slot) * self.slot_bytes as u64;
                let local = slots.region.local(start..start + len as u64);
                (flight.into(), Source::Memory(local))
            }
            _ => {
                bytes[..HEADER].copy_from_slice(&header);
                payload.read(&mut bytes[HEADER..len]);
                (
                    flight.map_or(NO_FLIGHT, u64::from),
                    Source::Inline(&bytes[..len]),
                )
            }
        };
        let immediate = None;
        let work = Work::Send { source, immediate };
        device.post_send(self.channels[0].pair, &request(id, work))?;
        self.channels[0].under_way.push_back(id);
        Ok(())
    }

    /// Posts a WRITE on the data channel that will have done with it first: returns the number of its flight. None if all
    /// lack credit or room.
    fn post_write(
        &mut self,
        device: &mut dyn Device,
        pool: &mut Pool,
        write: &Write,
    ) -> Result<Option<u32>, Fault> {
        let len = write.src.len();
        let may =
            |channel: &Channel| channel.credit > 0 && channel.under_way.len() < SEND_DEPTH as usize;
        let channels = self.channels.iter().enumerate().skip(1);
        let paces = channels
            .filter(|(_, channel)| may(channel))
            .map(|(at, channel)| (at, &channel.pace));
        let Some(channel) = pace::fastest(paces, len) else {
            return Ok(None);
        };
        let channel = &mut self.channels[channel];
        let (lease, local) = pool.source(device, write.src)?;
        let source = Source::Memory(local);
        let work = Work::Write {
            source,
            remote: write.place,
            immediate: Some(write.number),
        };
        let flight = self.flights.insert(Flight {
            key: Some(write.key),
            slot: None,
            lease: Some(lease),
            len,
        });
        device.post_send(channel.pair, &request(flight.into(), work))?;
        channel.under_way.push_back(flight.into());
        channel.credit -= 1;
        channel.pace.posted(Instant::now(), len);
        Ok(Some(flight))
    }

    /// A SEND or WRITE has ended; returns the message that is sent with it.
    pub(super) fn ended(&mut self, channel: usize, id: u64, pool: &mut Pool) -> Option<MessageKey> {
        let channel = &mut self.channels[channel];
        channel.under_way.pop_front();
        channel.ended = channel.ended.wrapping_add(1);
        let flight = self.flights.remove(u32::try_from(id).ok()?)?;
        if flight.len > 0 {
            channel.pace.ended(Instant::now(), flight.len);
        }
        self.send_slots.extend(flight.slot);
        if let Some(lease) = flight.lease {
            self.lingering -= usize::from(flight.key.is_none() && lease.is_in_place());
            pool.end(lease);
        }
        flight.key
    }

    /// Gives the slot of a frame, or of a short message, back to the peer.
    pub(super) fn give_back(
        &mut self,
        device: &mut dyn Device,
        slot: u64,
        eager: bool,
    ) -> Result<(), DeviceError> {
        if eager {
            self.eager_owed += 1;
        } else {
            self.channels[0].owed += 1;
        }
        self.post_receive(device, 0, slot)
    }

    /// A long message has arrived: the receive that it used up is posted again.
    pub(super) fn landed(
        &mut self,
        device: &mut dyn Device,
        channel: usize,
    ) -> Result<(), DeviceError> {
        self.came(channel);
        self.channels[channel].owed += 1;
        self.post_receive(device, channel, 0)
    }

    /// The first bytes of a slot.
    pub(super) fn slot(&self, slot: u64, len: usize) -> Memory {
        let start = slot as usize * self.slot_bytes;
        let end = start + len.min(self.slot_bytes);
        match &self.slots {
            Some(buffer) => buffer.memory(end).slice(start..end),
            None => Memory::EMPTY,
        }
    }

    /// A copy of the short message in a slot.
    pub(super) fn save(&self, slot: u64, len: u32) -> Staging {
        let len = len as usize;
        let saved = Staging::new(len);
        let memory = self.slot(slot, HEADER + len).slice(HEADER..HEADER + len);
        saved.memory().copy_from(memory);
        saved
    }

    fn post_receive(
        &self,
        device: &mut dyn Device,
        channel: usize,
        id: u64,
    ) -> Result<(), DeviceError> {
        let Some(slots) = self.slots.as_ref().filter(|_| !self.closed) else {
            return Ok(());
        };
        let (start, len) = match channel {
            0 => (id * self.slot_bytes as u64, self.slot_bytes as u64),
            _ => (0, 0),
        };
        let into = slots.region.local(start..start + len);
        device.post_receive(self.channels[channel].pair, ReceiveRequest { id, into })
    }

    /// Whether it has queue pairs.
    pub(super) const fn is_open(&self) -> bool {
        !self.closed
    }

    /// Ends the queue pairs, if they haven't ended with the device: from then on neither side reaches the other's memory. What
    /// is looked at stays.
    pub(super) fn close(&mut self, device: Option<&mut dyn Device>, pool: &mut Pool) {
        if let Some(device) = device.filter(|_| !self.closed) {
            for channel in &self.channels {
                device.destroy(channel.pair);
            }
        }
        self.closed = true;
        self.queue.clear();
        self.writes.clear();
        self.unannounced.clear();
        let flights = self
            .flights
            .iter_mut()
            .filter_map(|flight| flight.lease.take());
        let offers = self.offers.drain().map(|offered| offered.lease);
        flights.chain(offers).for_each(|lease| pool.end(lease));
        self.lingering = 0;
    }

    /// Gives the slots back, of a closed link, when nobody looks at a message in one.
    pub(super) fn recycle(&mut self, pool: &mut Pool) {
        if let Some(slots) = self.slots.take() {
            pool.give(slots);
        }
    }
}

const fn request(id: u64, work: Work<'_>) -> SendRequest<'_> {
    SendRequest {
        id,
        work,
        signaled: true,
        solicited: false,
    }
}
