//! From nothing to the world's communicator.

use std::{fmt, sync::Arc, time::Duration};

use ringway_link::{
    Router, Transport,
    rdma::{self, RdmaSettings, RdmaTransport},
    shm::{HostSegment, SlotOptions, SlotTransport, mapped::GroupBlock},
    tcp::{TcpSettings, TcpTransport},
};

use ringway_plan::Rank;

use crate::{
    Communicator, Error,
    bootstrap::{self, Launch, World},
    communicator::Seat,
    control::Control,
    engine::{Engine, Membership, Site},
    probe,
    settings::{Settings, TransportKind, Transports},
    share::share_host,
};

/// Joins the job that this process was started in: by torchrun, Slurm's srun, mpirun or `ringway run`, or with
/// `RINGWAY_*` variables. Settings come from `ringway.yaml` and the environment.
///
/// # Errors
/// What is wrong with the environment or the settings, or which rank has not come within `connect_timeout`.
pub fn init() -> Result<Communicator, Error> {
    Builder::default().connect()
}

/// Puts something between the engine and its transport.
type Middleware = Box<dyn FnOnce(Box<dyn Transport>) -> Box<dyn Transport> + Send>;

/// Joins a job with settings, or by a rendezvous, of the caller's own.
#[derive(Default)]
pub struct Builder {
    settings: Option<Settings>,
    launch: Option<Launch>,
    middleware: Option<Middleware>,
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("settings", &self.settings)
            .field("launch", &self.launch)
            .finish_non_exhaustive()
    }
}

impl Builder {
    /// These settings, in place of `ringway.yaml` and the environment.
    pub fn settings(self, settings: Settings) -> Self {
        Self {
            settings: Some(settings),
            ..self
        }
    }

    /// This rank of this job, in place of what the environment says.
    pub fn launch(self, launch: Launch) -> Self {
        Self {
            launch: Some(launch),
            ..self
        }
    }

    /// This around the transport, to bring faults into it. For tests: it sees only what goes as messages.
    #[doc(hidden)]
    pub fn middleware(
        self,
        wrap: impl FnOnce(Box<dyn Transport>) -> Box<dyn Transport> + Send + 'static,
    ) -> Self {
        Self {
            middleware: Some(Box::new(wrap)),
            ..self
        }
    }

    /// Joins.
    ///
    /// # Errors
    /// As [`init`].
    pub fn connect(self) -> Result<Communicator, Error> {
        let settings = match self.settings {
            Some(settings) => settings,
            None => Settings::load()?,
        };
        settings.check()?;
        let launch = match self.launch {
            Some(launch) => launch,
            None => Launch::detect()?,
        };
        if launch.rank == 0 {
            Site::check(&settings)?;
        }
        let world = bootstrap::join(&settings, &launch)?;
        let control = Arc::new(Control::start(&world, &settings)?);
        let host = share_host(&world, &settings)?;
        let mut transport = transport(&world, &settings, host.as_ref())?;
        if let Some(wrap) = self.middleware {
            transport = wrap(transport);
        }
        let communicator = assemble(world, control.clone(), settings, transport, host)?;
        control.joined()?;
        probe::learn(&communicator)?;
        communicator.engine().begin_recording()?;
        Ok(communicator)
    }
}

/// The world's communicator over given parts.
pub(crate) fn assemble(
    world: World,
    control: Arc<Control>,
    settings: Settings,
    transport: Box<dyn Transport>,
    host: Option<Arc<HostSegment>>,
) -> Result<Communicator, Error> {
    let size = world.size();
    let engine = Engine::new(world, control, settings, transport, host)?;
    // Every rank's first block lies at the same place of its area.
    let block = engine.group_block()?;
    let place = block.as_ref().map(GroupBlock::offset);
    let seats: Vec<Seat> = (0..size).map(|rank| Seat { rank, block: place }).collect();
    let group = engine.group(0, &seats, block)?;
    Ok(Communicator {
        membership: Arc::new(Membership(engine)),
        group,
    })
}

/// What carries messages: shared memory to the ranks of this host, TCP or RDMA to the others.
fn transport(
    world: &World,
    settings: &Settings,
    host: Option<&Arc<HostSegment>>,
) -> Result<Box<dyn Transport>, Error> {
    let values = settings.values();
    let memory_limit = values.memory_limit.min(values.buffer_size);
    let memory_limit = usize::try_from(memory_limit).unwrap_or(usize::MAX);
    let failed = |error: &dyn fmt::Display| Error::Memory(error.to_string());
    let is_local = |rank: &Rank| host.is_some_and(|host| host.local_of(*rank).is_some());
    let peers = (0..world.size()).filter(|&rank| rank != world.rank);
    let (near, far): (Vec<Rank>, Vec<Rank>) = peers.partition(is_local);
    let mut parts: Vec<(Box<dyn Transport>, Vec<Rank>)> = Vec::new();
    if let Some(host) = host {
        let options = SlotOptions {
            memory_limit,
            ..SlotOptions::default()
        };
        let slots = SlotTransport::new(host.clone(), options).map_err(|e| failed(&e))?;
        parts.push((Box::new(slots), near));
    }
    if let Some(&peer) = far.first()
        && !values.transports.allow(TransportKind::Tcp)
        && !values.transports.allow(TransportKind::Rdma)
    {
        return Err(Error::Argument(format!(
            "setting transports ({}) is {}, which does not reach {}; add tcp or rdma, or run all ranks on one host",
            settings.source("transports"),
            values.transports,
            world.members[peer]
        )));
    }
    if parts.is_empty() || !far.is_empty() {
        let tcp = TcpSettings {
            streams: values.streams,
            connect_timeout: values.connect_timeout,
            silence: values.failure_after,
            memory_limit,
            ..TcpSettings::default()
        };
        let addresses = world
            .members
            .iter()
            .map(|member| member.address.clone())
            .collect();
        let tcp = TcpTransport::new(world.listener.clone(), addresses, tcp);
        let mut tcp = tcp.map_err(|e| {
            failed(&format!(
                "TCP: {e}; raise the limit of open files (ulimit -n)"
            ))
        })?;
        // The higher rank of a pair connects: it must not wait until it has something to say itself.
        tcp.connect_all();
        let over: Box<dyn Transport> = if far.is_empty() {
            Box::new(tcp)
        } else {
            over(tcp, world, settings, memory_limit)?
        };
        parts.push((over, far));
    }
    match <[_; 1]>::try_from(parts) {
        Ok([(only, _)]) => Ok(only),
        Err(parts) => Ok(Box::new(Router::new(parts).map_err(|e| failed(&e))?)),
    }
}

/// How long queue pairs may take to prove that they reach each other if messages may go over TCP as well.
const PROOF_BESIDE_TCP: Duration = Duration::from_secs(2);

/// What goes to other hosts: RDMA on top of TCP if it may be used, otherwise TCP. A device in software has to be asked for: it
/// moves nothing while its rank computes, which no measurement at the start would see.
fn over(
    tcp: TcpTransport,
    world: &World,
    settings: &Settings,
    memory_limit: usize,
) -> Result<Box<dyn Transport>, Error> {
    let transports = &settings.values().transports;
    if !transports.allow(TransportKind::Rdma) {
        return Ok(Box::new(tcp));
    }
    // Where all ranks are on one host, loopback is the address that every host has and no firewall keeps closed.
    let is_spread = world.machine_ranks() < world.size();
    let addresses = &world.me().address.addresses;
    let ip = addresses
        .iter()
        .map(|candidate| candidate.ip)
        .find(|ip| ip.is_loopback() != is_spread);
    let device = match ip.or_else(|| addresses.first().map(|candidate| candidate.ip)) {
        // A rank that has a device asks the others before it sends to them; so either all can answer or nobody asks.
        Some(_) if *transports == Transports::Auto && !world.has_nics() => {
            tracing::info!("no host has an RDMA device: messages to other hosts go over TCP");
            return Ok(Box::new(tcp));
        }
        Some(ip) if *transports == Transports::Auto => {
            rdma::open_nic(ip).map_err(|error| error.to_string())
        }
        Some(ip) => rdma::open(ip).map_err(|error| error.to_string()),
        None => Err("this rank has no address".to_owned()),
    };
    if let Err(reason) = &device {
        tracing::warn!(reason, "no RDMA here: all messages go over TCP");
    }
    let registered_limit = usize::try_from(settings.values().registered_limit);
    // Either may be used: then the faster one.
    let measures = transports.allow(TransportKind::Tcp);
    let defaults = RdmaSettings::default();
    let options = RdmaSettings {
        measures,
        // TCP would do as well: messages shall not wait long for what a firewall swallows.
        proof_timeout: if measures {
            PROOF_BESIDE_TCP
        } else {
            defaults.proof_timeout
        },
        data_channels: settings.values().queue_pairs,
        memory_limit,
        registered_limit: registered_limit.unwrap_or(usize::MAX),
        ..defaults
    };
    let transport = RdmaTransport::new(tcp, device, options);
    let transport = transport.map_err(|error| {
        Error::Memory(format!(
            "RDMA: {error}; raise the limit of open files (ulimit -n)"
        ))
    })?;
    Ok(Box::new(transport))
}
