//! One side of a connection: a device with a queue pair and some memory.

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

use ringway_link::rdma::{
    Access, Address, Completion, Device, Local, QueuePair, QueuePairOptions, ReceiveRequest,
    Region, Remote, SendRequest, SoftwareDevice, SoftwareOptions, Work,
};
use ringway_sys::Staging;

/// How much memory each side has.
pub(crate) const LENGTH: usize = 1 << 20;

/// No test waits longer.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

pub(crate) struct End {
    pub(crate) device: SoftwareDevice,
    pub(crate) queue_pair: QueuePair,
    pub(crate) region: Region,
    pub(crate) memory: Staging,
    pub(crate) completions: Vec<Completion>,
}

impl End {
    pub(crate) fn new(ip: IpAddr, options: &QueuePairOptions) -> Self {
        Self::open(ip, false, options)
    }

    /// With port 4791 or without.
    pub(crate) fn open(ip: IpAddr, roce_port: bool, options: &QueuePairOptions) -> Self {
        let mut device = SoftwareDevice::open(&SoftwareOptions { ip, roce_port }).unwrap();
        let memory = Staging::new(LENGTH);
        memory.memory().write(&vec![0; LENGTH]);
        let region = device.register(memory.memory(), Access::ALL).unwrap();
        let queue_pair = device.create(options).unwrap();
        Self {
            device,
            queue_pair,
            region,
            memory,
            completions: Vec::new(),
        }
    }

    pub(crate) fn address(&self) -> Address {
        self.device.address(self.queue_pair).unwrap()
    }

    pub(crate) fn connect(&mut self, peer: &Address) {
        // As it would go over a session.
        let peer = Address::parse(&peer.encode()).unwrap();
        self.device.connect(self.queue_pair, &peer).unwrap();
    }

    pub(crate) fn local(&self, at: usize, length: usize) -> Local {
        self.region.local(at as u64..(at + length) as u64)
    }

    pub(crate) fn remote(&self, at: usize) -> Remote {
        self.region.remote(at as u64)
    }

    pub(crate) fn post(&mut self, id: u64, work: Work<'_>) {
        let request = SendRequest {
            id,
            work,
            signaled: true,
            solicited: false,
        };
        self.device.post_send(self.queue_pair, &request).unwrap();
    }

    pub(crate) fn post_receive(&mut self, id: u64, at: usize, length: usize) {
        let into = self.local(at, length);
        let request = ReceiveRequest { id, into };
        self.device.post_receive(self.queue_pair, request).unwrap();
    }

    pub(crate) fn poll(&mut self) {
        self.device
            .poll(Instant::now(), &mut self.completions)
            .unwrap();
    }

    pub(crate) fn fill(&self, at: usize, bytes: &[u8]) {
        self.memory.memory().slice(at..LENGTH).write(bytes);
    }

    pub(crate) fn bytes(&self, at: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.memory.memory().slice(at..LENGTH).read(&mut bytes);
        bytes
    }

    pub(crate) fn counter(&self, name: &str) -> u64 {
        let mut found = None;
        self.device.counters(&mut |other, count| {
            if other == name {
                found = Some(count);
            }
        });
        found.expect(name)
    }
}

/// Two sides that are connected.
pub(crate) fn pair(ip: IpAddr, options: &QueuePairOptions) -> [End; 2] {
    let mut ends = [End::new(ip, options), End::new(ip, options)];
    let addresses = [ends[0].address(), ends[1].address()];
    ends[0].connect(&addresses[1]);
    ends[1].connect(&addresses[0]);
    ends
}

/// Polls both until `done` says so.
pub(crate) fn until(ends: &mut [End; 2], mut done: impl FnMut(&mut [End; 2]) -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !done(ends) {
        assert!(Instant::now() < deadline, "nothing more happens");
        for end in &mut *ends {
            end.poll();
        }
    }
}

/// Bytes that differ from place to place and from seed to seed.
pub(crate) fn pattern(seed: u64, length: usize) -> Vec<u8> {
    (0..length as u64)
        .map(|i| ((i + 1).wrapping_mul(seed * 2 + 0x9e37_79b9) >> 11) as u8)
        .collect()
}
