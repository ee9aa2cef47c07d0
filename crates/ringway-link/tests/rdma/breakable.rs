//! A software device that can be made to fail.

use std::{
    io,
    ops::Deref,
    os::fd::BorrowedFd,
    sync::{
        Arc, LockResult, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Instant,
};

use ringway_link::rdma::{
    Access, Address, Completion, Device, DeviceError, DeviceEvent, Done, Failure, Limits,
    PostError, QueuePair, QueuePairOptions, ReceiveRequest, Region, SendRequest, SoftwareDevice,
    Status,
};
use ringway_roce::rc;
use ringway_sys::Memory;

use crate::relay::{Faults, Path, Relay, Sockets};

/// How a device is reached by its peers.
#[derive(Clone, Copy)]
pub(crate) enum Way {
    /// As it says.
    Straight,
    /// It tells peers a port where nobody listens.
    Nowhere,
    /// By a relay for each queue pair.
    Relayed(Faults),
    /// The same, by this path.
    Along(&'static Path),
}

/// That a queue pair fails: the one with the request, of this many more that are posted at the device.
#[derive(Clone, Copy)]
pub(crate) struct Break {
    pub(crate) at: u32,
    /// The request is carried out all the same; its completion says that it wasn't.
    pub(crate) is_done: bool,
}

/// What happens to a device.
#[derive(Clone, Default)]
pub(crate) struct Breaks(Arc<State>);

#[derive(Default)]
pub(crate) struct State {
    /// To be broken next, until it has been.
    next: Mutex<Option<Break>>,
    /// The device is to fail as a whole, until it has told so.
    pub(crate) is_fatal: AtomicBool,
    /// No queue pair can be made.
    pub(crate) lacks_memory: AtomicBool,
    /// How many it was asked for.
    pub(crate) asked: AtomicU32,
    /// How many requests it was given to send.
    pub(crate) posted: AtomicU32,
}

impl Breaks {
    pub(crate) fn lock(&self) -> LockResult<MutexGuard<'_, Option<Break>>> {
        self.0.next.lock()
    }
}

impl Deref for Breaks {
    type Target = State;

    fn deref(&self) -> &State {
        &self.0
    }
}

pub(crate) struct Breakable {
    device: SoftwareDevice,
    way: Way,
    /// By the queue pair's number.
    relays: Vec<Option<(Sockets, Option<Relay>)>>,
    breaks: Breaks,
    /// Queue pairs that have failed, and requests that are to be told of.
    broken: Vec<QueuePair>,
    failed: Vec<(QueuePair, u64)>,
}

impl Breakable {
    pub(crate) const fn new(device: SoftwareDevice, way: Way, breaks: Breaks) -> Self {
        Self {
            device,
            way,
            relays: Vec::new(),
            breaks,
            broken: Vec::new(),
            failed: Vec::new(),
        }
    }
}

impl Breakable {
    /// Takes out those after the first `kept` that are lost, without memory of its own.
    fn lose(&self, kept: usize, completions: &mut Vec<Completion>) {
        let mut at = 0;
        completions.retain(|completion| {
            at += 1;
            at <= kept || !self.is_lost(completion)
        });
    }

    /// Whether it is of a request that a queue pair which has failed can't have known the end of.
    fn is_lost(&self, completion: &Completion) -> bool {
        self.broken.contains(&completion.queue_pair)
            && matches!(completion.result, Ok(Done::Send | Done::Write))
    }
}

impl Device for Breakable {
    fn name(&self) -> &str {
        self.device.name()
    }

    fn limits(&self) -> Limits {
        self.device.limits()
    }

    fn register(&mut self, memory: Memory, access: Access) -> Result<Region, DeviceError> {
        self.device.register(memory, access)
    }

    fn deregister(&mut self, region: &Region) -> Result<(), DeviceError> {
        self.device.deregister(region)
    }

    fn create(&mut self, options: &QueuePairOptions) -> Result<QueuePair, DeviceError> {
        self.breaks.asked.fetch_add(1, Ordering::Relaxed);
        if self.breaks.lacks_memory.load(Ordering::Relaxed) {
            return Err(DeviceError::System {
                device: self.name().into(),
                what: "making a queue pair",
                error: io::ErrorKind::OutOfMemory.into(),
                remedy: String::new(),
            });
        }
        let queue_pair = self.device.create(options)?;
        let at = queue_pair.0 as usize;
        if self.relays.len() <= at {
            self.relays.resize_with(at + 1, || None);
        }
        if let Way::Relayed(_) | Way::Along(_) = self.way {
            let mut sockets = Sockets::open(self.device.address(queue_pair)?.ip);
            if let Way::Along(path) = self.way {
                sockets.path = Some(path);
            }
            self.relays[at] = Some((sockets, None));
        }
        Ok(queue_pair)
    }

    fn address(&self, queue_pair: QueuePair) -> Result<Address, DeviceError> {
        let mut address = self.device.address(queue_pair)?;
        match (&self.way, &self.relays[queue_pair.0 as usize]) {
            (Way::Nowhere, _) => {
                if let Some(software) = &mut address.software {
                    software.port = 9;
                }
            }
            (_, Some((sockets, _))) => address = sockets.seen_by(0, address),
            _ => {}
        }
        Ok(address)
    }

    fn connect(&mut self, queue_pair: QueuePair, peer: &Address) -> Result<(), DeviceError> {
        let own = self.device.address(queue_pair)?;
        let mut peer = *peer;
        let faults = match self.way {
            Way::Relayed(faults) => faults,
            _ => Faults::NONE,
        };
        if let Some((sockets, relay)) = &mut self.relays[queue_pair.0 as usize] {
            *relay = Some(sockets.start([peer, own], faults));
            peer = sockets.seen_by(1, peer);
        }
        self.device.connect(queue_pair, &peer)
    }

    fn stop(&mut self, queue_pair: QueuePair, completions: &mut Vec<Completion>) {
        let before = completions.len();
        self.device.stop(queue_pair, completions);
        self.lose(before, completions);
    }

    fn footprint(&self) -> usize {
        self.device.footprint()
    }

    fn limit_footprint(&mut self, bytes: usize) {
        self.device.limit_footprint(bytes);
    }

    fn destroy(&mut self, queue_pair: QueuePair) {
        self.broken.retain(|broken| *broken != queue_pair);
        self.device.destroy(queue_pair);
        self.relays[queue_pair.0 as usize] = None;
    }

    fn post_send(
        &mut self,
        queue_pair: QueuePair,
        request: &SendRequest<'_>,
    ) -> Result<(), DeviceError> {
        if self.broken.contains(&queue_pair) {
            let error = PostError::State(rc::State::Error);
            return Err(DeviceError::Post { queue_pair, error });
        }
        self.breaks.posted.fetch_add(1, Ordering::Relaxed);
        let fails = {
            let mut breaks = self.breaks.lock().unwrap_or_else(PoisonError::into_inner);
            match &mut *breaks {
                Some(Break { at: 0, .. }) => breaks.take(),
                Some(Break { at, .. }) => {
                    *at -= 1;
                    None
                }
                None => None,
            }
        };
        let Some(fails) = fails else {
            return self.device.post_send(queue_pair, request);
        };
        self.broken.push(queue_pair);
        self.failed.push((queue_pair, request.id));
        if fails.is_done {
            self.device.post_send(queue_pair, request)?;
            // It arrives before this side is told.
            self.device.flush();
        }
        Ok(())
    }

    fn post_receive(
        &mut self,
        queue_pair: QueuePair,
        request: ReceiveRequest,
    ) -> Result<(), DeviceError> {
        self.device.post_receive(queue_pair, request)
    }

    fn poll(
        &mut self,
        now: Instant,
        completions: &mut Vec<Completion>,
    ) -> Result<bool, DeviceError> {
        let before = completions.len();
        let moved = self.device.poll(now, completions)?;
        self.lose(before, completions);
        for (queue_pair, id) in self.failed.drain(..) {
            completions.push(Completion {
                queue_pair,
                id,
                result: Err(Failure {
                    status: Status::RetriesExceeded,
                    vendor: 0x81,
                }),
            });
        }
        Ok(moved)
    }

    fn flush(&mut self) {
        self.device.flush();
    }

    fn poll_event(&mut self) -> Option<DeviceEvent> {
        if self.breaks.is_fatal.swap(false, Ordering::Relaxed) {
            return Some(DeviceEvent::Fatal);
        }
        self.device.poll_event()
    }

    fn arm(&mut self) -> bool {
        self.device.arm()
    }

    fn disarm(&mut self) {
        self.device.disarm();
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.device.fd()
    }

    fn counters(&self, tell: &mut dyn FnMut(&str, u64)) {
        self.device.counters(tell);
    }
}
