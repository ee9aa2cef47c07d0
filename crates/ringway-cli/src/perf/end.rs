//! One side of the measurement: a device with its queue pairs and memory, and how it is driven.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use ringway_link::rdma::{
    Access, Address, Completion, DeviceEvent, Done, Key, QueuePair, QueuePairOptions,
    ReceiveRequest, Region, Remote, SendRequest, Source, Work,
};
use ringway_sys::{Memory, Staging, cpu_count, yield_now};

use super::{
    control::Control,
    device::Opened,
    managed::Conversations,
    message::{Message, Party},
    test::{Operation, Run, Test},
};

/// How long nothing of what is expected may happen: longer than a device tries again, by which it says why it fails.
const STALL: Duration = Duration::from_secs(10);

/// How often the control connection is looked at while this side measures, and while it serves. Each look is a system
/// call, which a latency of a microsecond would feel.
const WHILE_MEASURING: Duration = Duration::from_millis(100);
pub(super) const WHILE_SERVING: Duration = Duration::from_millis(1);

/// How long a side sleeps that has nothing to do, where the device answers by itself: then it is looked at for failures. A busy
/// processor would take from what the other side measures, where both are on one machine.
const NAP: Duration = Duration::from_millis(10);

/// How many polls have the same time. Reading the clock would be a part of short latencies, the more so in virtual machines;
/// what depends on it are milliseconds.
const POLLS_PER_CLOCK: u32 = 16;

/// The most bytes that go inline, next to the request.
const INLINE: u32 = 64;

/// How many receives are posted at a queue pair, for each request that the peer may have under way: the next is posted
/// once a completion is polled, which comes after the peer's.
const RECEIVES: u32 = 2;

#[derive(Debug, Default)]
struct Traffic {
    /// Requests posted and completed, in this run.
    posted: u64,
    done: u64,
    /// Receives posted and completed.
    offered: u64,
    arrived: u64,
    /// Receives that have to be posted in all.
    expected: u64,
}

/// A side whose queue pairs are made, and connected once [`End::connect`] is through.
pub(super) struct End {
    pub(super) device: Opened,
    pub(super) pairs: Vec<QueuePair>,
    region: Region,
    memory: Staging,
    pub(super) test: Test,
    peer: Remote,
    traffic: Vec<Traffic>,
    completions: Vec<Completion>,
    run: Run,
    /// The bytes that go inline: a copy of those of the memory.
    inline: [u8; INLINE as usize],
    most_inline: u64,
    /// The time a few polls ago at most, and the polls since the beginning.
    now: Instant,
    polls: u32,
    looked: Instant,
    moved: Instant,
    /// The other side may need this processor.
    shared: bool,
    /// Connections by rdma_cm.
    pub(super) conversations: Conversations,
}

impl End {
    /// Makes queue pairs and memory.
    pub(super) fn new(mut device: Opened, test: &Test) -> Result<Self> {
        let memory = Staging::new(test.memory() as usize);
        let region = device.register(memory.memory(), Access::ALL)?;
        let limits = device.limits();
        if test.longest > limits.message.into() {
            bail!(
                "messages of {} bytes asked for where {} has {}",
                test.longest,
                device.name(),
                limits.message
            );
        }
        let options = QueuePairOptions {
            send_depth: test.depth,
            receive_depth: match test.operation {
                Operation::Send => test.depth * RECEIVES,
                _ => 1,
            },
            inline: INLINE.min(limits.inline),
            initiator_depth: QueuePairOptions::default()
                .initiator_depth
                .min(limits.initiator_depth),
            mtu: test.mtu()?,
            // A receive is posted as soon as the receiver has its turn; if it never has, its silence says so.
            rnr_retries: 7,
            ..QueuePairOptions::default()
        };
        let pairs = (0..test.qps)
            .map(|_| device.create(&options))
            .collect::<Result<Vec<_>, _>>()?;
        let now = Instant::now();
        Ok(Self {
            device,
            traffic: pairs.iter().map(|_| Traffic::default()).collect(),
            pairs,
            region,
            memory,
            test: test.clone(),
            peer: Remote {
                key: Key(0),
                address: 0,
            },
            completions: Vec::with_capacity(256),
            run: Run {
                bytes: 1,
                iterations: 1,
                check: false,
            },
            inline: [0; INLINE as usize],
            most_inline: options.inline.into(),
            now,
            polls: 0,
            looked: now,
            moved: now,
            shared: cpu_count() < 2,
            conversations: Conversations::default(),
        })
    }

    /// What the other side needs.
    pub(super) fn party(&self) -> Result<Party> {
        let addresses = self
            .pairs
            .iter()
            .map(|&pair| self.device.address(pair))
            .collect::<Result<Vec<_>, _>>()?;
        let name = match addresses.first() {
            Some(first) => format!("{} ({})", self.device.name(), first.ip),
            None => self.device.name().to_owned(),
        };
        let memory = (self.region.address, self.region.remote.0);
        Ok(Party::new(&name, &addresses, memory))
    }

    /// Connects to the other side. Returns the MTU that both have, in bytes.
    pub(super) fn connect(&mut self, party: &Party) -> Result<u32> {
        let addresses = party.addresses(self.test.qps)?;
        let mut mtu = self.test.mtu;
        for (&pair, peer) in self.pairs.iter().zip(&addresses) {
            self.device.connect(pair, peer)?;
            mtu = self.device.address(pair)?.agree(peer)?.mtu.bytes();
        }
        self.reach_memory_of(party);
        Ok(mtu)
    }

    /// Requests are for this memory from now on.
    pub(super) const fn reach_memory_of(&mut self, party: &Party) {
        self.peer = Remote {
            key: Key(party.memory.1),
            address: party.memory.0,
        };
    }

    pub(super) const fn test(&self) -> &Test {
        &self.test
    }

    /// The bytes of a queue pair that go out: to the peer, or by its READ or atomic operation.
    pub(super) fn outgoing(&self, pair: usize) -> Memory {
        self.place(self.outgoing_at(pair))
    }

    /// The bytes of a queue pair that come in: from the peer, or by this side's READ or atomic operation.
    pub(super) fn incoming(&self, pair: usize) -> Memory {
        self.place(self.incoming_at(pair))
    }

    fn place(&self, at: u64) -> Memory {
        let at = at as usize;
        self.memory.memory().slice(at..at + self.run.bytes as usize)
    }

    const fn outgoing_at(&self, pair: usize) -> u64 {
        2 * pair as u64 * self.test.slot()
    }

    const fn incoming_at(&self, pair: usize) -> u64 {
        self.outgoing_at(pair) + self.test.slot()
    }

    /// Before a run, while the peer posts nothing: forgets the last one, and offers receives for messages of the peer's
    /// if it is to `receive`.
    pub(super) fn prepare(&mut self, run: Run, receive: bool) -> Result<()> {
        self.run = run;
        let receives = receive && self.test.operation == Operation::Send;
        for pair in 0..self.pairs.len() {
            self.traffic[pair] = Traffic {
                expected: if receives { run.iterations } else { 0 },
                ..Traffic::default()
            };
            for _ in 0..(self.test.depth * RECEIVES).min(self.traffic[pair].expected as u32) {
                self.offer(pair)?;
            }
        }
        self.now = Instant::now();
        self.has_moved();
        Ok(())
    }

    fn offer(&mut self, pair: usize) -> Result<()> {
        let at = self.incoming_at(pair);
        let id = self.traffic[pair].offered;
        let into = self.region.local(at..at + self.run.bytes);
        self.device
            .post_receive(self.pairs[pair], ReceiveRequest { id, into })?;
        self.traffic[pair].offered += 1;
        Ok(())
    }

    /// Posts the next request of a run. Unless it is `signaled`, it is done when a later one is.
    pub(super) fn ask(&mut self, pair: usize, signaled: bool) -> Result<()> {
        let (out, into, bytes) = (
            self.outgoing_at(pair),
            self.incoming_at(pair),
            self.run.bytes,
        );
        let source = Source::Memory(self.region.local(out..out + bytes));
        self.post(pair, signaled, out, into, source)
    }

    /// Posts the next request of a run with `mark` as the last byte of the message, by which the other side knows it.
    /// The last one must be done. Short messages go inline, as latency is measured by that.
    pub(super) fn ask_marked(&mut self, mark: u8) -> Result<()> {
        let bytes = self.run.bytes as usize;
        if self.run.bytes > self.most_inline {
            self.outgoing(0).slice(bytes - 1..bytes).write(&[mark]);
            return self.ask(0, true);
        }
        let mut inline = self.inline;
        inline[bytes - 1] = mark;
        let (out, into) = (self.outgoing_at(0), self.incoming_at(0));
        self.post(0, true, out, into, Source::Inline(&inline[..bytes]))
    }

    fn post(
        &mut self,
        pair: usize,
        signaled: bool,
        out: u64,
        into: u64,
        source: Source<'_>,
    ) -> Result<()> {
        let at = |place: u64| Remote {
            address: self.peer.address + place,
            ..self.peer
        };
        let result = self.region.local(into..into + self.run.bytes);
        let immediate = None;
        let work = match self.test.operation {
            Operation::Write => Work::Write {
                source,
                remote: at(into),
                immediate,
            },
            Operation::Send => Work::Send { source, immediate },
            Operation::Read => Work::Read {
                into: result,
                remote: at(out),
            },
            Operation::Atomic => Work::FetchAdd {
                into: result,
                remote: at(out),
                add: 1,
            },
        };
        let posted = self.traffic[pair].posted + 1;
        let request = SendRequest {
            // How many are done when it is.
            id: posted,
            work,
            signaled,
            solicited: false,
        };
        self.device.post_send(self.pairs[pair], &request)?;
        self.traffic[pair].posted = posted;
        Ok(())
    }

    /// How many requests of a queue pair were posted, and how many of them are done.
    pub(super) fn requests(&self, pair: usize) -> (u64, u64) {
        (self.traffic[pair].posted, self.traffic[pair].done)
    }

    /// How many requests of all queue pairs are done.
    pub(super) fn done(&self) -> u64 {
        self.traffic.iter().map(|it| it.done).sum()
    }

    /// How many messages have come into a queue pair's receives.
    pub(super) fn arrived(&self, pair: usize) -> u64 {
        self.traffic[pair].arrived
    }

    /// Whether all messages have come for which there was to be a receive.
    pub(super) fn all_arrived(&self) -> bool {
        self.traffic.iter().all(|it| it.arrived == it.expected)
    }

    /// Something that tells of itself by no completion has happened: the peer's WRITE.
    pub(super) const fn has_moved(&mut self) {
        self.moved = self.now;
    }

    /// Moves what can be moved, while this side measures.
    ///
    /// # Errors
    /// If a request has failed, the other side has, or nothing has ended for long.
    pub(super) fn turn(&mut self, control: &mut Control) -> Result<()> {
        let now = self.poll(control, WHILE_MEASURING)?;
        if now.saturating_duration_since(self.moved) > STALL {
            bail!(
                "no {} to or from {} has ended for {} s, though it is there: do its RDMA packets get through (PFC, MTU of switches, firewalls for UDP port 4791)?",
                self.test.operation.name(),
                control.peer(),
                STALL.as_secs()
            );
        }
        Ok(())
    }

    /// Serves the other side's requests until it says something. It speaks up at times, so this ends.
    pub(super) fn hear(&mut self, control: &mut Control) -> Result<Message> {
        loop {
            if let Some(message) = control.take() {
                return Ok(message);
            }
            if self.device.limits().answers_alone {
                control.sleep(NAP)?;
                // Many polls have the same time, by which the control connection is looked at.
                self.polls = 0;
                self.poll(control, Duration::ZERO)?;
            } else {
                self.poll(control, WHILE_SERVING)?;
            }
        }
    }

    pub(super) fn poll(&mut self, control: &mut Control, pause: Duration) -> Result<Instant> {
        if self.polls.is_multiple_of(POLLS_PER_CLOCK) {
            self.now = Instant::now();
        }
        self.polls = self.polls.wrapping_add(1);
        let now = self.now;
        let moved = self.device.poll(now, &mut self.completions)?;
        if !self.completions.is_empty() {
            self.has_moved();
            self.note(control)?;
        } else if !moved && self.shared {
            // Otherwise the next poll comes at once: a pause of the processor would be a part of short latencies.
            yield_now();
        }
        if now.saturating_duration_since(self.looked) >= pause {
            self.looked = now;
            control.pump()?;
            self.manage(control)?;
            match self.device.poll_event() {
                Some(DeviceEvent::Fatal) => {
                    bail!("{} has failed: see the kernel's log", self.device.name())
                }
                Some(DeviceEvent::QueuePair(_)) => {
                    bail!(
                        "a queue pair of {} to {} has failed",
                        self.device.name(),
                        control.peer()
                    )
                }
                _ => {}
            }
        }
        Ok(now)
    }

    fn note(&mut self, control: &mut Control) -> Result<()> {
        for at in 0..self.completions.len() {
            let ended = self.completions[at];
            let pair = self
                .pairs
                .iter()
                .position(|&pair| pair == ended.queue_pair)
                .ok_or_else(|| anyhow!("a completion of no queue pair of this test: {ended:?}"))?;
            match ended.result {
                Ok(Done::Receive { length, .. }) => {
                    if u64::from(length) != self.run.bytes {
                        bail!(
                            "a message of {length} bytes came from {}, expected {}",
                            control.peer(),
                            self.run.bytes
                        );
                    }
                    self.traffic[pair].arrived += 1;
                    if self.traffic[pair].offered < self.traffic[pair].expected {
                        self.offer(pair)?;
                    }
                }
                Ok(_) => self.traffic[pair].done = ended.id,
                Err(failure) => {
                    // If the other side has said why, that is the reason.
                    control.pump()?;
                    bail!(
                        "{} of {} bytes over {} to {} failed: {failure}",
                        self.test.operation.name(),
                        self.run.bytes,
                        self.device.name(),
                        control.peer()
                    );
                }
            }
        }
        self.completions.clear();
        Ok(())
    }
}

/// The addresses that a party has told, for the choice of one's own.
pub(super) fn first(party: &Party, test: &Test) -> Result<Address> {
    let addresses = party.addresses(test.qps)?;
    addresses
        .first()
        .copied()
        .ok_or_else(|| anyhow!("the other side has no queue pair"))
}
