//! NICs, and Linux's soft RoCE, through libibverbs.

mod completions;
mod outstanding;
mod pairs;
mod words;

use std::{
    collections::HashMap,
    io,
    os::fd::{AsFd as _, BorrowedFd},
    path::Path as FilePath,
    sync::Arc,
    time::{Duration, Instant},
};

use ringway_sys::{Epoll, Interest, Memory};
use ringway_verbs::{
    self as verbs, AsyncEvent, Context, Library, ProtectionDomain,
    gid::{self, Choice, Wish},
};

use self::{
    completions::{Completions, Reservation},
    pairs::{Pair, Pairs},
};
use super::{
    Access, Address, Completion, Device, DeviceError, DeviceEvent, Done, Key, Limits, PostError,
    Psn, QueuePair, QueuePairOptions, ReceiveRequest, Region, SendRequest, Source, Work,
    random::random,
};

/// How many completions are fetched at once.
const BATCH: usize = 64;

/// How long the receives of a queue pair that is stopped may take to be flushed.
const FLUSH: Duration = Duration::from_millis(100);

/// What queue pairs allow peers to do; regions allow less.
const RIGHTS: verbs::Access = verbs::Access::ALL;

/// A port of a device of libibverbs with one of its GIDs.
#[derive(Debug)]
pub struct Verbs {
    name: String,
    context: Arc<Context>,
    domain: Arc<ProtectionDomain>,
    completions: Completions,
    epoll: Epoll,
    port_number: u8,
    choice: Choice,
    limits: Limits,
    pairs: Pairs,
    regions: HashMap<u32, verbs::Region>,
    /// Completions that were fetched and not yet told.
    held: Vec<verbs::Completion>,
    /// Whether the device's end was told: it is told once.
    ended: bool,
}

impl Verbs {
    /// Opens a port of the device of this name, with the GID that [`gid::choose`] gives for the wish.
    ///
    /// # Errors
    /// If the device cannot be opened, the port is down or not of Ethernet, or has no GID that can be used.
    pub fn open(
        library: &Arc<Library>,
        name: &str,
        port_number: u8,
        wish: Wish,
    ) -> Result<Self, DeviceError> {
        let context = Context::open(library, name)?;
        let port = context.port(port_number)?;
        let misuse = |what| DeviceError::Misuse {
            device: name.to_owned(),
            what,
        };
        if !port.ethernet {
            return Err(misuse(
                "the port is of InfiniBand, expected Ethernet: set its link type, or use another port",
            ));
        }
        if !port.active {
            return Err(misuse(
                "the port is down: check the cable, and `ip link set ... up`",
            ));
        }
        let table = context.gid_table(port_number)?;
        let choice = gid::choose(&table, wish).map_err(|source| verbs::VerbsError::Gid {
            device: name.to_owned(),
            port: port_number,
            source,
        })?;
        if let Some(note) = &choice.note {
            tracing::warn!(device = name, "{note}");
        }
        let domain = ProtectionDomain::new(&context)?;
        let most = context.limits()?;
        let completions = Completions::new(&context, most.completions)?;
        let epoll = Epoll::new().map_err(|error| system(name, "epoll_create", error))?;
        epoll
            .add(completions.channel(), 0, Interest::Read)
            .and_then(|()| epoll.add(&context, 1, Interest::Read))
            .map_err(|error| system(name, "epoll_ctl", error))?;
        let limits = Limits {
            // Sends and receives of a queue pair complete in the same queue.
            depth: most.queue_depth.min(completions.depth() / 2),
            inline: pairs::most_inline(&domain, completions.any()),
            mtu: words::mtu(port.mtu),
            message: port.max_message,
            queue_pairs: most.queue_pairs,
            regions: most.regions,
            initiator_depth: most.reads_answered.min(most.reads_asked),
            answers_alone: true,
            registers_at_once: false,
        };
        Ok(Self {
            name: name.to_owned(),
            pairs: Pairs::new(name),
            context,
            domain,
            completions,
            epoll,
            port_number,
            choice,
            limits,
            regions: HashMap::new(),
            held: Vec::with_capacity(BATCH),
            ended: false,
        })
    }

    /// The GID, and what is not as it was wished for.
    pub const fn gid(&self) -> &Choice {
        &self.choice
    }

    /// The device at libibverbs, for what the interface doesn't cover.
    pub const fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Connects a queue pair by a conversation of librdmacm's: of who listens before it accepts, of who has asked when the other side
    /// has accepted. Addresses, MTU, traffic class and first PSNs are the conversation's.
    ///
    /// # Errors
    /// If the conversation is not as far, or the queue pair is connected or has failed.
    pub fn connect_by(
        &mut self,
        queue_pair: QueuePair,
        conversation: &verbs::CmId,
    ) -> Result<(), DeviceError> {
        self.pairs.get_mut(queue_pair)?.connect_by(conversation)
    }

    /// Fetches completions into `held`; true if there were any.
    fn fetch(&mut self) -> Result<bool, DeviceError> {
        self.held.reserve(BATCH);
        Ok(self.completions.fetch(&mut self.held)?)
    }

    /// A queue pair whose completions have their place.
    fn make(
        &self,
        options: QueuePairOptions,
        reservation: &Reservation,
    ) -> Result<(verbs::QueuePair, Psn), DeviceError> {
        let depths = verbs::Depths {
            send: options.send_depth,
            receive: options.receive_depth,
            inline: options.inline,
        };
        let queue = self.completions.queue(reservation);
        let pair = verbs::QueuePair::new(&self.domain, queue, queue, depths)?;
        pair.to_init(self.port_number, RIGHTS)?;
        Ok((pair, self.first_psn()?))
    }

    /// Not to be guessed, and another each time: devices use a queue pair's number again, and packets of the earlier
    /// connection must not fit.
    fn first_psn(&self) -> Result<Psn, DeviceError> {
        let bits = random().map_err(|error| system(&self.name, "getrandom", error))?;
        Ok(Psn::new(bits))
    }

    /// The device can't be used any more. From a device that was removed the kernel gives an error for every event that
    /// is asked for, and keeps the descriptor readable, so neither is looked at again.
    fn end(&mut self) -> DeviceEvent {
        self.ended = true;
        if let Err(error) = self.epoll.remove(&self.context) {
            tracing::warn!(device = self.name, "epoll_ctl failed: {error}");
        }
        DeviceEvent::Fatal
    }

    fn check(&self, what: &'static str, asked: u32, most: u32) -> Result<(), DeviceError> {
        if asked <= most {
            return Ok(());
        }
        Err(DeviceError::Limit {
            device: self.name.clone(),
            what,
            asked: asked.into(),
            most: most.into(),
        })
    }
}

fn system(device: &str, what: &'static str, error: io::Error) -> DeviceError {
    DeviceError::System {
        device: device.to_owned(),
        what,
        error,
        remedy: String::new(),
    }
}

impl Device for Verbs {
    fn name(&self) -> &str {
        &self.name
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn register(&mut self, memory: Memory, access: Access) -> Result<Region, DeviceError> {
        // The kernel would say no more than "invalid argument".
        let changed_by_peers =
            access.contains(Access::REMOTE_WRITE) || access.contains(Access::REMOTE_ATOMIC);
        if changed_by_peers && !access.contains(Access::LOCAL_WRITE) {
            return Err(system(
                &self.name,
                "registering memory",
                io::Error::other(ringway_roce::RegisterError::NeedsLocalWrite),
            ));
        }
        let region = verbs::Region::register(&self.domain, memory, words::access(access))?;
        let made = Region {
            address: memory.as_ptr().addr() as u64,
            length: memory.len() as u64,
            local: Key(region.local_key()),
            remote: Key(region.remote_key()),
        };
        self.regions.insert(region.local_key(), region);
        Ok(made)
    }

    fn deregister(&mut self, region: &Region) -> Result<(), DeviceError> {
        match self.regions.remove(&region.local.0) {
            Some(region) => Ok(region.deregister()?),
            None => Err(DeviceError::Misuse {
                device: self.name.clone(),
                what: "there is no such region",
            }),
        }
    }

    fn create(&mut self, options: &QueuePairOptions) -> Result<QueuePair, DeviceError> {
        for (what, asked, most) in [
            ("send depth", options.send_depth, self.limits.depth),
            ("receive depth", options.receive_depth, self.limits.depth),
            ("inline bytes", options.inline, self.limits.inline),
        ] {
            self.check(what, asked, most)?;
        }
        let room = options.send_depth + options.receive_depth;
        let reservation = self.completions.reserve(room)?;
        match self.make(*options, &reservation) {
            Ok((pair, first_psn)) => {
                let pair = Pair::new(pair, *options, first_psn, reservation);
                Ok(self.pairs.add(pair))
            }
            Err(error) => {
                self.completions.give_back(&reservation);
                Err(error)
            }
        }
    }

    fn address(&self, queue_pair: QueuePair) -> Result<Address, DeviceError> {
        let pair = self.pairs.get(queue_pair)?;
        Ok(Address {
            ip: self.choice.entry.gid.address(),
            number: pair.number(),
            first_psn: pair.first_psn,
            mtu: pair.options.mtu.min(self.limits.mtu),
            traffic_class: pair.options.traffic_class,
            initiator_depth: pair
                .options
                .initiator_depth
                .min(self.limits.initiator_depth),
            software: None,
        })
    }

    fn connect(&mut self, queue_pair: QueuePair, peer: &Address) -> Result<(), DeviceError> {
        let own = self.address(queue_pair)?;
        let terms = own.agree(peer)?;
        // Looked up now: the kernel gives an address another index when the link goes down and up.
        let wish = Wish {
            address: Some(own.ip),
            ..Wish::default()
        };
        let table = self.context.gid_table(self.port_number)?;
        let entry = gid::choose(&table, wish)
            .map_err(|source| verbs::VerbsError::Gid {
                device: self.name.clone(),
                port: self.port_number,
                source,
            })?
            .entry;
        let port = self.port_number;
        let pair = self.pairs.get_mut(queue_pair)?;
        pair.connect(&entry, port, peer, terms)
    }

    fn stop(&mut self, queue_pair: QueuePair, completions: &mut Vec<Completion>) {
        let Ok(pair) = self.pairs.get_mut(queue_pair) else {
            return;
        };
        pair.fail();
        let number = pair.number().get();
        // Receives are flushed after those that have ended.
        let mut is_flushed = pair.outstanding.receives() == 0;
        if let Err(error) = pair.pair.to_error() {
            tracing::warn!(device = self.name, "a queue pair does not stop: {error}");
            is_flushed = true;
        }
        let deadline = Instant::now() + FLUSH;
        loop {
            let fetched = self.fetch();
            let own = self
                .held
                .extract_if(.., |completion| completion.queue_pair == number);
            for ended in own {
                match words::result(&ended) {
                    Ok(done) => completions.push(Completion {
                        queue_pair,
                        id: ended.id,
                        result: Ok(done),
                    }),
                    Err(_) => is_flushed = true,
                }
            }
            if is_flushed || fetched.is_err() || Instant::now() >= deadline {
                return;
            }
        }
    }

    fn footprint(&self) -> usize {
        0
    }

    fn limit_footprint(&mut self, _bytes: usize) {}

    fn destroy(&mut self, queue_pair: QueuePair) {
        let Some(pair) = self.pairs.remove(queue_pair) else {
            return;
        };
        let number = pair.number().get();
        self.completions.give_back(&pair.reservation);
        // Once it is gone no more of its completions come; those that are there must not be taken for a later pair's of
        // the same number.
        drop(pair);
        while self.fetch().is_ok_and(|more| more) {}
        self.held
            .retain(|completion| completion.queue_pair != number);
    }

    fn post_send(
        &mut self,
        queue_pair: QueuePair,
        request: &SendRequest<'_>,
    ) -> Result<(), DeviceError> {
        let message = self.limits.message;
        let pair = self.pairs.get_mut(queue_pair)?;
        let refuse = |error| Err(DeviceError::Post { queue_pair, error });
        if let Some(error) = pair.cannot_send() {
            return refuse(error);
        }
        if let Work::Send { source, .. } | Work::Write { source, .. } = request.work {
            let length = source.len();
            if length > message as usize {
                return refuse(PostError::TooLong {
                    length,
                    max: message,
                });
            }
            if matches!(source, Source::Inline(_)) && length > pair.options.inline as usize {
                return refuse(PostError::Inline {
                    length,
                    max: pair.options.inline as usize,
                });
            }
        }
        match pair.pair.post_send(&words::request(request)) {
            Err(verbs::VerbsError::Full { .. }) => {
                refuse(PostError::Full(pair.options.send_depth as usize))
            }
            other => {
                other?;
                pair.outstanding.sent(request.signaled);
                Ok(())
            }
        }
    }

    fn post_receive(
        &mut self,
        queue_pair: QueuePair,
        request: ReceiveRequest,
    ) -> Result<(), DeviceError> {
        let pair = self.pairs.get_mut(queue_pair)?;
        let refuse = |error| Err(DeviceError::Post { queue_pair, error });
        if let Some(error) = pair.cannot_receive() {
            return refuse(error);
        }
        match pair
            .pair
            .post_receive(request.id, words::local(request.into))
        {
            Err(verbs::VerbsError::Full { .. }) => {
                refuse(PostError::Full(pair.options.receive_depth as usize))
            }
            other => {
                other?;
                pair.outstanding.received();
                Ok(())
            }
        }
    }

    fn poll(
        &mut self,
        _now: Instant,
        completions: &mut Vec<Completion>,
    ) -> Result<bool, DeviceError> {
        self.fetch()?;
        let any = !self.held.is_empty();
        for ended in self.held.drain(..) {
            let Some(queue_pair) = self.pairs.numbered(ended.queue_pair) else {
                continue;
            };
            let result = words::result(&ended);
            if let Ok(pair) = self.pairs.get_mut(queue_pair) {
                match result {
                    Ok(Done::Receive { .. } | Done::ReceiveWrite { .. }) => {
                        pair.outstanding.receive_ended();
                    }
                    Ok(_) => pair.outstanding.send_ended(),
                    // Nothing is posted any more, and so nothing has to be counted.
                    Err(_) => pair.fail(),
                }
            }
            completions.push(Completion {
                queue_pair,
                id: ended.id,
                result,
            });
        }
        Ok(any)
    }

    /// A NIC needs nobody to send what is posted.
    fn flush(&mut self) {}

    fn poll_event(&mut self) -> Option<DeviceEvent> {
        while !self.ended {
            let event = match self.context.take_event() {
                Ok(event) => event?,
                Err(error) => {
                    tracing::error!(device = self.name, "{error}");
                    return Some(self.end());
                }
            };
            let of_port = |port| port == self.port_number;
            match event {
                AsyncEvent::PortDown(port) if of_port(port) => return Some(DeviceEvent::PortDown),
                AsyncEvent::PortUp(port) if of_port(port) => return Some(DeviceEvent::PortUp),
                AsyncEvent::GidChange(port) if of_port(port) => {
                    return Some(DeviceEvent::AddressChange);
                }
                AsyncEvent::QueuePairFatal(number) | AsyncEvent::QueuePairRefused(number) => {
                    if let Some(queue_pair) = self.pairs.numbered(number) {
                        if let Ok(pair) = self.pairs.get_mut(queue_pair) {
                            pair.fail();
                        }
                        return Some(DeviceEvent::QueuePair(queue_pair));
                    }
                }
                AsyncEvent::DeviceFatal | AsyncEvent::CompletionQueueOverrun => {
                    return Some(self.end());
                }
                // Another port's, or of a kind that concerns nothing here.
                _ => {}
            }
        }
        None
    }

    fn arm(&mut self) -> bool {
        // Whatever completes before the request for a notification is seen by the fetch after it. A failure of either
        // shows again in `poll`, so the caller must not sleep.
        self.held.is_empty()
            && self.completions.arm().is_ok()
            && self.fetch().is_ok_and(|more| !more)
    }

    fn disarm(&mut self) {
        while self.completions.channel().take().is_ok_and(|more| more) {}
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn counters(&self, tell: &mut dyn FnMut(&str, u64)) {
        let root = FilePath::new("/");
        for (name, value) in verbs::sysfs::counters(root, &self.name, self.port_number) {
            tell(&name, value);
        }
    }
}
