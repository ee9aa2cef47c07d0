//! Ranks as processes of this machine: their environment, their output, their end.

use std::{
    convert::Infallible,
    io::{BufRead, BufReader, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream},
    os::unix::process::{CommandExt as _, ExitStatusExt as _},
    process::{Child, Command, ExitCode, ExitStatus, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::output::READER_GONE;

/// How long ranks have to end by themselves when one has failed, before they are killed: long enough for them to
/// say what they know of it.
const GRACE: Duration = Duration::from_secs(5);

/// How long what ranks have printed may take to come when they have ended.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What to start.
#[derive(Debug)]
pub(crate) struct Job {
    /// The program and its arguments.
    pub(crate) command: Vec<String>,
    /// Where each rank runs.
    pub(crate) seats: Vec<Seat>,
    /// What becomes of what ranks print.
    pub(crate) output: Output,
    /// Where ranks meet; this machine's loopback interface if none.
    pub(crate) master: Option<IpAddr>,
    /// The port that they meet at; a free one of this machine, or [`MASTER_PORT`] elsewhere, if none.
    pub(crate) port: Option<u16>,
}

/// Where a rank runs.
#[derive(Clone, Debug)]
pub(crate) struct Seat {
    /// The number of its host.
    pub(crate) host: usize,
    /// Its number among the ranks of its host.
    pub(crate) local_rank: usize,
    /// How many ranks its host has.
    pub(crate) local_size: usize,
    /// What to put before the command to run it there.
    pub(crate) within: Vec<String>,
}

impl Seat {
    /// So many ranks on this machine.
    pub(crate) fn here(ranks: usize) -> Vec<Self> {
        let seat = |local_rank| Self {
            host: 0,
            local_rank,
            local_size: ranks,
            within: Vec::new(),
        };
        (0..ranks).map(seat).collect()
    }
}

/// What becomes of what ranks print.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    /// It is left as it is.
    Plain,
    /// Each line begins with its rank.
    Prefixed,
    /// Errors are left as they are, all else is thrown away.
    Errors,
}

/// Where ranks meet on another host, unless it is said: torchrun's default.
const MASTER_PORT: u16 = 29500;

/// Bytes of a line of output, at most: longer ones are cut.
const LONGEST_LINE: u64 = 64 << 10;

/// An address of the loopback interface, and a port of it that was free a moment ago. IPv6 where there is no IPv4.
fn free_port() -> Result<(IpAddr, u16)> {
    let bind = |ip: IpAddr| {
        let first = std::process::id() % 12_000;
        // Below the ports that Linux gives to connections, one of which could take it before rank 0 listens.
        let apart = (0..64).map(|n| 20_000 + ((first + n) % 12_000) as u16);
        let free = apart
            .map(|port| TcpListener::bind((ip, port)))
            .find_map(Result::ok);
        let socket = free.map_or_else(|| TcpListener::bind((ip, 0)), Ok);
        socket.map(|socket| (ip, socket))
    };
    // Addresses of an interface that is down can be bound to all the same.
    let reach = |(ip, socket): (IpAddr, TcpListener)| {
        TcpStream::connect(socket.local_addr()?).map(|_| (ip, socket))
    };
    let (ip, socket) = bind(Ipv4Addr::LOCALHOST.into())
        .and_then(reach)
        .or_else(|_| bind(Ipv6Addr::LOCALHOST.into()).and_then(reach))
        .context(
            "no address on the loopback interface, where ranks are to meet (`ip link set lo up`)",
        )?;
    Ok((ip, socket.local_addr()?.port()))
}

/// A name for the job, unless its user has given it one: what meets at the same port by mistake is told apart by it.
fn job_name() -> String {
    let given = std::env::var(JOB).ok().filter(|name| !name.is_empty());
    given.unwrap_or_else(|| format!("ringway run {}", std::process::id()))
}

/// The variable that names the job.
const JOB: &str = "RINGWAY_JOB";

impl Job {
    /// Runs all ranks to their end. The exit code is that of the first rank that failed.
    pub(crate) fn execute(&self) -> Result<ExitCode> {
        let Some((program, arguments)) = self.command.split_first() else {
            bail!("no program to run: expected `ringway run -n N -- PROGRAM [ARGUMENTS]`");
        };
        let (master, port) = match self.master {
            Some(master) => (master, self.port.unwrap_or(MASTER_PORT)),
            None => {
                let (master, free) = free_port()?;
                (master, self.port.unwrap_or(free))
            }
        };
        let job = job_name();
        let stop = stop_signals()?;
        let mut ranks = Vec::with_capacity(self.seats.len());
        // Closed when the last relay has ended.
        let (relaying, relays) = mpsc::channel::<Infallible>();
        for (rank, seat) in self.seats.iter().enumerate() {
            let mut command = match seat.within.split_first() {
                None => Command::new(program),
                Some((first, rest)) => {
                    let mut command = Command::new(first);
                    command.args(rest).arg(program);
                    command
                }
            };
            // A group of its own, so that what a rank starts can be ended with it.
            command
                .args(arguments)
                .stdin(Stdio::null())
                .process_group(0);
            ringway_sys::end_with_parent(&mut command);
            for (name, value) in [
                ("RANK", rank.to_string()),
                ("LOCAL_RANK", seat.local_rank.to_string()),
                ("WORLD_SIZE", self.seats.len().to_string()),
                ("LOCAL_WORLD_SIZE", seat.local_size.to_string()),
                ("GROUP_RANK", seat.host.to_string()),
                ("MASTER_ADDR", master.to_string()),
                ("MASTER_PORT", port.to_string()),
                (JOB, job.clone()),
            ] {
                command.env(name, value);
            }
            match self.output {
                Output::Plain => {}
                Output::Prefixed => drop(command.stdout(Stdio::piped()).stderr(Stdio::piped())),
                Output::Errors => drop(command.stdout(Stdio::null())),
            }
            let spawned = command
                .spawn()
                .with_context(|| format!("starting `{program}` as rank {rank}"));
            let mut child = match spawned {
                Ok(child) => child,
                Err(error) => {
                    stop_all(&mut ranks, Duration::ZERO);
                    return Err(error);
                }
            };
            let streams: [Option<Box<dyn Read + Send>>; 2] = [
                child.stdout.take().map(|s| Box::new(s) as _),
                child.stderr.take().map(|s| Box::new(s) as _),
            ];
            for (to_stderr, stream) in streams.into_iter().enumerate() {
                if let Some(stream) = stream {
                    let relaying = relaying.clone();
                    thread::spawn(move || {
                        relay(rank, stream, to_stderr == 1);
                        drop(relaying);
                    });
                }
            }
            ranks.push(child);
        }
        drop(relaying);
        let end = watch(&mut ranks, &stop)?;
        // What ranks have said is there by now; what they left behind may hold the pipes for ever.
        let _ = relays.recv_timeout(LAST_WORDS);
        Ok(match end {
            End::Well => ExitCode::SUCCESS,
            End::Failed { rank, status } => {
                if status.code() != Some(READER_GONE.into()) {
                    eprintln!("ringway: rank {rank} ended with {}", describe(status));
                }
                exit_code(status)
            }
            End::Stopped(status) => {
                eprintln!("ringway: stopped by {}", describe(status));
                exit_code(status)
            }
        })
    }
}

/// The number of SIGINT or SIGTERM, once one comes.
pub(crate) fn stop_signals() -> Result<Arc<AtomicUsize>> {
    let came = Arc::new(AtomicUsize::new(0));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register_usize(signal, came.clone(), signal as usize)
            .context("listening for signals")?;
    }
    Ok(came)
}

/// This command again, as several ranks.
pub(crate) fn start_self(ranks: usize) -> Result<ExitCode> {
    let program = std::env::current_exe().context("finding this program")?;
    let mut command = vec![program.display().to_string()];
    command.extend(std::env::args().skip(1));
    command.push("--started".to_owned());
    Job {
        command,
        seats: Seat::here(ranks),
        output: Output::Plain,
        master: None,
        port: None,
    }
    .execute()
}

/// How a job ended.
enum End {
    Well,
    Failed {
        rank: usize,
        status: ExitStatus,
    },
    /// As a process ends that the signal kills.
    Stopped(ExitStatus),
}

/// Copies lines, each with its rank before it. A line that is too long goes on in the next.
fn relay(rank: usize, stream: Box<dyn Read + Send>, to_stderr: bool) {
    let mut lines = BufReader::new(stream);
    let mut line = Vec::new();
    while (&mut lines)
        .take(LONGEST_LINE)
        .read_until(b'\n', &mut line)
        .is_ok_and(|n| n > 0)
    {
        let mut text = format!("[{rank}] ").into_bytes();
        text.append(&mut line);
        if text.last() != Some(&b'\n') {
            text.push(b'\n');
        }
        // Nobody reads any more: the ranks go on all the same.
        let _ = if to_stderr {
            std::io::stderr().lock().write_all(&text)
        } else {
            std::io::stdout().lock().write_all(&text)
        };
    }
}

/// Waits for all ranks, until the first fails, if any does: then the others are stopped.
fn watch(ranks: &mut [Child], stop: &AtomicUsize) -> Result<End> {
    let mut ended: Vec<Option<ExitStatus>> = vec![None; ranks.len()];
    loop {
        for (rank, child) in ranks.iter_mut().enumerate() {
            if ended[rank].is_none() {
                ended[rank] = child
                    .try_wait()
                    .with_context(|| format!("waiting for rank {rank}"))?;
            }
        }
        let signal = stop.load(Ordering::Relaxed);
        if signal > 0 {
            stop_all(ranks, Duration::ZERO);
            return Ok(End::Stopped(ExitStatus::from_raw(signal as i32)));
        }
        let failed = ended.iter().enumerate().filter_map(|(rank, status)| {
            let status = status.filter(|status| !status.success())?;
            Some((rank, status))
        });
        // Of several at once it was the one that was killed; the others say so and end.
        let first = failed.min_by_key(|(_, status)| status.code().is_some());
        if let Some((rank, status)) = first {
            stop_all(ranks, GRACE);
            return Ok(End::Failed { rank, status });
        }
        if ended.iter().all(Option::is_some) {
            return Ok(End::Well);
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Lets ranks end by themselves for `grace`, then asks them and what they started to (SIGTERM), then kills.
fn stop_all(ranks: &mut [Child], grace: Duration) {
    let all_ended = |ranks: &mut [Child]| {
        ranks
            .iter_mut()
            .all(|child| !matches!(child.try_wait(), Ok(None)))
    };
    let wait = |ranks: &mut [Child], longest: Duration| {
        let end = Instant::now() + longest;
        while !all_ended(ranks) && Instant::now() < end {
            thread::sleep(Duration::from_millis(10));
        }
    };
    let signal = |child: &Child, signal| {
        if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
            // There may be nobody left in it.
            let _ = kill_process_group(group, signal);
        }
    };
    wait(ranks, grace);
    ranks.iter().for_each(|child| signal(child, Signal::TERM));
    wait(ranks, Duration::from_secs(2));
    ranks.iter().for_each(|child| signal(child, Signal::KILL));
    for child in ranks {
        let _ = child.wait();
    }
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => status.to_string(),
    }
}

/// As shells have it: 128 + n for signal n.
pub(crate) fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(1));
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
