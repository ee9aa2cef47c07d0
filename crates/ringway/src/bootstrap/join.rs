//! From a launch to a world.

use std::{
    io,
    net::{SocketAddr, TcpListener, UdpSocket},
    sync::Arc,
    time::{Duration, Instant},
};

use ringway_link::{Bind, Identity, JobId, ListenError, Listener};
use ringway_plan::Rank;

use super::{
    BootstrapError, Launch, Launcher, Member, Rendezvous, Store, World,
    client::{Client, NoReply, place, resolve},
    detect::MOST_RANKS,
    exchange,
    process::{host_name, this_process},
    server::Server,
    wire::{Join, MOST_JOB, Reply, Request, SOFTWARE},
};
use crate::settings::{Settings, Values};

/// How long rank 0 looks for another rank 0 when the master is not an address of its host.
const LOOK: Duration = Duration::from_secs(1);

/// Opens this rank's port, and meets the other ranks.
///
/// Returns when all have come, within the setting `connect_timeout`.
///
/// # Errors
/// A rank that has not come by then is named on every rank that waits. Two processes with one rank, another world
/// size, version or job, and a place that cannot be reached are named as soon as they are seen.
pub fn join(settings: &Settings, launch: &Launch) -> Result<World, BootstrapError> {
    let began = Instant::now();
    let values = settings.values();
    let deadline = began + values.connect_timeout;
    let Launch { rank, size, .. } = *launch;
    if !(1..=MOST_RANKS).contains(&size) || rank >= size {
        return Err(BootstrapError::Environment {
            variable: "the launch".to_owned(),
            expected: format!("a rank below the world size, which is from 1 to {MOST_RANKS}"),
            found: format!("rank {rank} of {size}"),
            remedy: "correct what starts the ranks".to_owned(),
        });
    }

    let listener = open_port(values, launch)?;
    let address = listener
        .address(values.interfaces.filter())
        .map_err(|error| BootstrapError::Listen {
            rank,
            place: "the interfaces of this host".to_owned(),
            detail: error.to_string(),
            remedy: "see `ip address`".to_owned(),
        })?;
    let job = launch.job[..launch.job.floor_char_boundary(MOST_JOB)].to_owned();
    let me = Join {
        software: SOFTWARE.to_owned(),
        job,
        size,
        member: this_process(rank, address),
    };

    let (members, store): (_, Arc<dyn Store>) = match &launch.rendezvous {
        Rendezvous::Store(store) => (exchange::meet(&**store, &me, deadline)?, Arc::clone(store)),
        Rendezvous::Master { host, port } if rank == 0 => {
            let (server, note) = serve(host, *port, &me, deadline)?;
            let wait = deadline.saturating_duration_since(Instant::now());
            let mut reply = server.call(
                Request::Join {
                    join: me.clone(),
                    wait,
                },
                deadline,
            );
            if let Reply::Missing { note: text, .. } = &mut reply {
                let hint = (launch.launcher == Launcher::Slurm)
                    .then_some("under Slurm, start the program with srun, which starts all ranks");
                let parts = [Some(text.as_str()), note.as_deref(), hint];
                *text = parts
                    .into_iter()
                    .flatten()
                    .filter(|t| !t.is_empty())
                    .collect::<Vec<_>>()
                    .join("; ");
            }
            (
                settle(&me, &place(host, *port), began.elapsed(), reply)?,
                Arc::new(server),
            )
        }
        Rendezvous::Master { host, port } => {
            let client = Client::new(host.clone(), *port, size);
            let reply = ask(&client, &me, began, deadline)?;
            (
                settle(&me, &client.place(), began.elapsed(), reply)?,
                Arc::new(client),
            )
        }
    };
    Ok(World {
        rank,
        members: members.into(),
        store,
        listener: Arc::new(listener),
    })
}

/// The port that this rank listens on for its peers.
fn open_port(values: &Values, launch: &Launch) -> Result<Listener, BootstrapError> {
    let place = match &launch.rendezvous {
        Rendezvous::Master { host, port } => place(host, *port),
        Rendezvous::Store(_) => String::new(),
    };
    // Jobs without a name differ by their place, and the members' nonces keep strangers out of either.
    let job = JobId::from_name(&format!("{}@{place}", launch.job));
    let identity = Identity::new(job, launch.size, launch.rank);
    let bind = Bind {
        address: None,
        ports: values.port.clone(),
    };
    Listener::start(&bind, identity).map_err(|error: ListenError| BootstrapError::Listen {
        rank: launch.rank,
        place: format!("port {}", values.port),
        detail: error.to_string(),
        remedy: "RINGWAY_PORT chooses the port".to_owned(),
    })
}

/// What the reply of the rendezvous means for this rank.
pub(super) fn settle(
    me: &Join,
    place: &str,
    waited: Duration,
    reply: Reply,
) -> Result<Vec<Member>, BootstrapError> {
    let rank = me.member.rank;
    match reply {
        Reply::World(members) if members.len() == me.size => Ok(members),
        Reply::Missing { ranks, note } => Err(missing(me.size, &ranks, waited, note)),
        Reply::Duplicate { first } => Err(BootstrapError::Duplicate {
            rank,
            first,
            second: me.member.to_string(),
        }),
        Reply::Refused { reason } => Err(BootstrapError::Refused {
            rank,
            place: place.to_owned(),
            reason,
        }),
        other => Err(BootstrapError::Refused {
            rank,
            place: place.to_owned(),
            reason: format!("its answer does not fit the question: {other:?}"),
        }),
    }
}

/// The error that names the ranks that have not come.
pub(crate) fn missing(
    size: usize,
    ranks: &[Rank],
    waited: Duration,
    note: String,
) -> BootstrapError {
    let present: Vec<Rank> = (0..size).filter(|rank| !ranks.contains(rank)).collect();
    BootstrapError::Missing {
        missing: name_ranks(ranks),
        size,
        verb: if ranks.len() == 1 { "has" } else { "have" },
        waited,
        present: match present.len() {
            0 => "no rank has".to_owned(),
            1 => format!("{} has", name_ranks(&present)),
            _ => format!("{} have", name_ranks(&present)),
        },
        note: if note.is_empty() {
            ". See the missing ranks' logs; if they need longer to start, raise RINGWAY_CONNECT_TIMEOUT".to_owned()
        } else {
            format!(" ({note})")
        },
    }
}

/// `rank 3`, `ranks 1, 2, 5-7`.
pub(super) fn name_ranks(ranks: &[Rank]) -> String {
    let mut parts: Vec<(Rank, Rank)> = Vec::new();
    for &rank in ranks {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == rank => *last = rank,
            _ => parts.push((rank, rank)),
        }
    }
    let text: Vec<String> = parts
        .into_iter()
        .map(|(first, last)| match last - first {
            0 => first.to_string(),
            1 => format!("{first}, {last}"),
            _ => format!("{first}-{last}"),
        })
        .collect();
    format!(
        "rank{} {}",
        if ranks.len() == 1 { "" } else { "s" },
        text.join(", ")
    )
}

/// Opens the rendezvous on this host. The note says if this may be the wrong host.
fn serve(
    host: &str,
    port: u16,
    me: &Join,
    deadline: Instant,
) -> Result<(Server, Option<String>), BootstrapError> {
    let failed = |detail: String, remedy: &str| BootstrapError::Listen {
        rank: 0,
        place: place(host, port),
        detail,
        remedy: remedy.to_owned(),
    };
    if me.size == 1 {
        let server = Server::start(None, me.clone());
        return Ok((
            server.map_err(|e| failed(e.to_string(), "see `ulimit -n`"))?,
            None,
        ));
    }

    let addresses = resolve(host, port, deadline)
        .map_err(|detail| failed(detail, "RINGWAY_MASTER must name the host of rank 0"))?;
    // Whoever else serves the place is there already, or this rank would be.
    let look_elsewhere = || -> Result<(), BootstrapError> {
        let client = Client::new(host.to_owned(), port, me.size);
        let request = || Request::Join {
            join: me.clone(),
            wait: Duration::ZERO,
        };
        match client.call(request, Instant::now() + LOOK) {
            Ok(reply @ (Reply::Duplicate { .. } | Reply::Refused { .. })) => {
                settle(me, &client.place(), LOOK, reply).map(|_| ())
            }
            _ => Ok(()),
        }
    };
    let socket = match bind(port) {
        Ok(socket) => socket,
        Err(error) => {
            if error.kind() == io::ErrorKind::AddrInUse {
                look_elsewhere()?;
            }
            let remedy = "set RINGWAY_MASTER_PORT (on all ranks) to a free port; `ss -ltnp` shows who has this one";
            return Err(failed(error.to_string(), remedy));
        }
    };
    let note = if addresses.iter().any(is_local) {
        None
    } else {
        look_elsewhere()?;
        Some(format!(
            "{host} is no address of this host, {}: rank 0 must run on the master's host",
            host_name()
        ))
    };
    let server = Server::start(Some(socket), me.clone());
    Ok((
        server.map_err(|e| failed(e.to_string(), "see `ulimit -n`"))?,
        note,
    ))
}

/// Listens on all addresses of this host, IPv4 and IPv6.
fn bind(port: u16) -> io::Result<TcpListener> {
    use socket2::{Domain, Protocol, Socket, Type};
    let open = |at: SocketAddr| {
        let kind = Type::STREAM.nonblocking();
        let socket = Socket::new(Domain::for_address(at), kind, Some(Protocol::TCP))?;
        if at.is_ipv6() {
            socket.set_only_v6(false)?;
        }
        // The connections of an earlier job may not have timed out yet.
        socket.set_reuse_address(true)?;
        socket.bind(&at.into())?;
        socket.listen(4096)?;
        Ok(socket.into())
    };
    open((std::net::Ipv6Addr::UNSPECIFIED, port).into()).or_else(|error: io::Error| {
        match error.kind() {
            io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied => Err(error),
            // No IPv6 here.
            _ => open((std::net::Ipv4Addr::UNSPECIFIED, port).into()),
        }
    })
}

/// Whether this host has the address: only then can a socket be bound to it.
fn is_local(address: &SocketAddr) -> bool {
    UdpSocket::bind((address.ip(), 0)).is_ok()
}

/// Asks the rendezvous for the world.
fn ask(
    client: &Client,
    me: &Join,
    began: Instant,
    deadline: Instant,
) -> Result<Reply, BootstrapError> {
    let request = || Request::Join {
        join: me.clone(),
        wait: deadline.saturating_duration_since(Instant::now()),
    };
    client.call(request, deadline).map_err(|NoReply { detail, foreign }| BootstrapError::Unreachable {
        rank: me.member.rank,
        place: client.place(),
        waited: began.elapsed(),
        detail,
        remedy: if foreign {
            "another program has the port: set RINGWAY_MASTER_PORT (on all ranks) to a free one".to_owned()
        } else {
            "check that rank 0 has started, that it runs on this host, and that no firewall is between".to_owned()
        },
    })
}
