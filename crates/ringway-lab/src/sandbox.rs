//! Namespaces of a lab's own, and the process that keeps them.
//!
//! The lab's process is this program again, as the first of a process namespace (by `unshare`): when it ends, the kernel
//! kills all that run in the lab, and with the last of them the network goes. Its standard input is a socket, over which it
//! says when the lab is ready.

use std::{
    env, fs,
    io::{self, BufRead as _, BufReader, Write as _},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::{net::UnixStream, process::CommandExt as _},
    },
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, geteuid, kill_process_group};

use crate::{command::run, error::LabError};

/// How long a lab may take to start: thousands of links take seconds.
const START: Duration = Duration::from_secs(120);

/// Among the names of namespaces, none of which begins with a dot.
const SCRATCH: &str = "/run/netns/.lab";

/// A directory of the lab's own, for processes in it; gone when it ends.
pub fn scratch() -> &'static Path {
    Path::new(SCRATCH)
}

/// What a lab that is ready says, with its process number as the machine sees it.
const READY: &str = "ready ";

/// `unshare`'s flags: the namespaces of a lab.
const NAMESPACES: [&str; 6] = [
    "--mount",
    "--net",
    "--pid",
    "--ipc",
    "--fork",
    "--kill-child",
];

/// And those that a user needs besides, who is root within.
const USER: &[&str] = &["--user", "--map-root-user"];

/// How namespaces are made: by root, or within one of users.
fn ways() -> &'static [&'static [&'static str]] {
    match geteuid().is_root() {
        // Root of a container may be less than that.
        true => &[&[], USER],
        false => &[USER],
    }
}

/// The first way that works: what it takes besides [`NAMESPACES`].
fn way() -> Result<&'static [&'static str], LabError> {
    let mut reasons = Vec::new();
    for way in ways() {
        let test = [
            "sh",
            "-c",
            "mount -t tmpfs ringway-lab /proc/fs && ip link set lo up",
        ];
        let mut command = Command::new("unshare");
        command.args(*way).args(NAMESPACES).args(test);
        match run("unshare", &mut command, "") {
            Ok(_) => return Ok(way),
            Err(error) => reasons.push(error.to_string()),
        }
    }
    let reason = reasons.join("; ");
    Err(LabError::Namespaces { reason })
}

/// Whether labs can be made here, or why not.
pub fn can_make_namespaces() -> Result<(), LabError> {
    way().map(drop)
}

/// A lab's process, seen by who started it.
#[derive(Debug)]
pub struct Sandbox {
    child: Child,
    /// The lab's first process, as the machine sees it.
    pid: u32,
    user: bool,
    /// By which it says that it is ready.
    tie: UnixStream,
}

impl Sandbox {
    /// Starts this program again with `arguments`, in namespaces of its own, and waits until it has called
    /// [`Inside::ready`]. With `tied`, it does not outlive this process.
    pub fn start(arguments: &[String], tied: bool) -> Result<Self, LabError> {
        let way = way()?;
        let file = |path: &str, source| LabError::File {
            path: path.into(),
            source,
        };
        let exe = env::current_exe().map_err(|e| file("/proc/self/exe", e))?;
        let (tie, theirs) = UnixStream::pair().map_err(|e| file("a socket", e))?;
        let mut command = Command::new("unshare");
        command.args(way).args(NAMESPACES);
        command.arg("--").arg(exe).args(arguments);
        // A group of its own: signals of the terminal reach it through this process only.
        command
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .process_group(0);
        if tied {
            ringway_sys::end_with_parent(&mut command);
        } else {
            command.stdout(Stdio::null()).stderr(Stdio::null());
        }
        let child = command.spawn().map_err(|e| LabError::Command {
            what: "unshare".into(),
            detail: e.to_string(),
        })?;
        // What is kept of the command keeps the other end open.
        drop(command);
        let mut sandbox = Self {
            child,
            pid: 0,
            user: !way.is_empty(),
            tie,
        };
        sandbox.await_ready()?;
        Ok(sandbox)
    }

    fn await_ready(&mut self) -> Result<(), LabError> {
        let start = |detail: String| LabError::Start { detail };
        let tie = &self.tie;
        tie.set_read_timeout(Some(START))
            .map_err(|e| start(e.to_string()))?;
        let mut line = String::new();
        let read = BufReader::new(tie).read_line(&mut line);
        let pid = line
            .strip_prefix(READY)
            .and_then(|pid| pid.trim().parse().ok());
        match (read, pid) {
            (Ok(_), Some(pid)) => {
                self.pid = pid;
                Ok(())
            }
            (Ok(n), _) if n > 0 => {
                let _ = self.child.wait();
                Err(start(line.trim().to_owned()))
            }
            (Ok(_), _) => {
                let ended = self.child.wait();
                Err(start(match ended {
                    Ok(status) => format!("its process ended with {status}"),
                    Err(error) => error.to_string(),
                }))
            }
            (Err(_), _) => {
                self.stop(Signal::KILL);
                Err(start(format!("not within {START:?}")))
            }
        }
    }

    /// The lab's first process, as the machine sees it.
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether it lives in a user namespace of its own.
    pub const fn is_user(&self) -> bool {
        self.user
    }

    /// Sends a signal to the lab's process.
    pub fn stop(&mut self, signal: Signal) {
        if let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // It may have ended.
            let _ = kill_process_group(group, signal);
        }
    }

    /// How it ended, once it has.
    pub fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }
}

/// The lab's process, seen by itself.
#[derive(Debug)]
pub struct Inside {
    tie: UnixStream,
    pid: u32,
}

impl Inside {
    /// For a process that [`Sandbox::start`] has started, before it does anything else: prepares its namespaces for
    /// [`crate::Lab::build`].
    pub fn enter() -> Result<Self, LabError> {
        let file = |path: &str, source| LabError::File {
            path: path.into(),
            source,
        };
        let tie = io::stdin().as_fd().try_clone_to_owned();
        let tie = UnixStream::from(tie.map_err(|e| file("the standard input", e))?);
        // /proc is still the machine's, and tells what it calls this process.
        let own = fs::read_link("/proc/self").map_err(|e| file("/proc/self", e))?;
        let pid = own.to_str().and_then(|pid| pid.parse().ok());
        let pid = pid.ok_or_else(|| LabError::Start {
            detail: format!("/proc/self is {}", own.display()),
        })?;
        let mount = |arguments: &[&str]| {
            let mut command = Command::new("mount");
            run("mount", command.args(arguments), "")
        };
        // Where `ip netns` keeps names: this lab's, seen by nobody else.
        let names = ["/run/netns", "/run"]
            .into_iter()
            .find(|p| Path::new(p).is_dir());
        mount(&["-t", "tmpfs", "ringway-lab", names.unwrap_or("/run")])?;
        fs::create_dir_all(SCRATCH).map_err(|e| file(SCRATCH, e))?;
        // Not where a container hides parts of /proc: then processes see the machine's.
        let _ = mount(&["-t", "proc", "proc", "/proc"]);
        Ok(Self { tie, pid })
    }

    /// The lab is made: who has started it may go on.
    pub fn ready(&mut self) {
        // If nobody listens any more, this process is killed.
        let _ = writeln!(self.tie, "{READY}{}", self.pid);
    }

    /// It cannot be made, and why.
    pub fn failed(&mut self, error: &str) {
        let _ = writeln!(self.tie, "{}", error.replace('\n', " "));
    }
}
