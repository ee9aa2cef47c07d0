//! A software device that can be made to fail.

use std::{
    os::fd::BorrowedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use ringway_link::rdma::{
    Access, Address, Completion, Device, DeviceError, DeviceEvent, Failure, Limits, QueuePair,
    QueuePairOptions, ReceiveRequest, Region, SendRequest, SoftwareDevice, Status,
};
use ringway_sys::Memory;

use crate::relay::{Faults, Relay, Sockets};

/// How a device is reached by its peers.
#[derive(Clone, Copy)]
pub(crate) enum Way {
    /// As it says.
    Straight,
    /// It tells peers a port where nobody listens.
    Nowhere,
    /// By a relay for each queue pair.
    Relayed(Faults),
}

pub(crate) struct Breakable {
    device: SoftwareDevice,
    way: Way,
    last: QueuePair,
    /// By the queue pair's number.
    relays: Vec<Option<(Sockets, Option<Relay>)>>,
    /// The last queue pair fails at the next poll.
    fails: Arc<AtomicBool>,
}

impl Breakable {
    pub(crate) const fn new(device: SoftwareDevice, way: Way, fails: Arc<AtomicBool>) -> Self {
        Self {
            device,
            way,
            last: QueuePair(0),
            relays: Vec::new(),
            fails,
        }
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
        self.last = self.device.create(options)?;
        let at = self.last.0 as usize;
        if self.relays.len() <= at {
            self.relays.resize_with(at + 1, || None);
        }
        if matches!(self.way, Way::Relayed(_)) {
            let ip = self.device.address(self.last)?.ip;
            self.relays[at] = Some((Sockets::open(ip), None));
        }
        Ok(self.last)
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
        if let Way::Relayed(faults) = self.way
            && let Some((sockets, relay)) = &mut self.relays[queue_pair.0 as usize]
        {
            *relay = Some(sockets.start([peer, own], faults));
            peer = sockets.seen_by(1, peer);
        }
        self.device.connect(queue_pair, &peer)
    }

    fn destroy(&mut self, queue_pair: QueuePair) {
        self.device.destroy(queue_pair);
        self.relays[queue_pair.0 as usize] = None;
    }

    fn post_send(
        &mut self,
        queue_pair: QueuePair,
        request: &SendRequest<'_>,
    ) -> Result<(), DeviceError> {
        self.device.post_send(queue_pair, request)
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
        let moved = self.device.poll(now, completions)?;
        if self.fails.swap(false, Ordering::Relaxed) {
            completions.push(Completion {
                queue_pair: self.last,
                id: 0,
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
