//! Worlds of processes: this test binary again, told by the environment which rank it is.

use std::{
    collections::HashSet,
    ffi::OsString,
    fs::{self, File},
    io::{BufRead, BufReader},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rustix::process::Pid;

use crate::port::free_port;

/// What is to go wrong.
pub(crate) enum Mishap {
    /// Nothing by itself: the test sees to it.
    None,
    /// A link, by the middleware's plan.
    Fault(String),
    /// Chance, by the middleware's plan, but nothing that ends a call.
    Perturb(String),
    /// The ranks make different calls, in this way.
    Disagree(&'static str),
    /// A rank kills itself at that step, counted after the first round.
    KillAt { victim: usize, step: usize },
}

/// How a rank ended.
pub(crate) struct Outcome {
    pub(crate) rank: usize,
    /// The error of its last call; none if all went well.
    pub(crate) error: Option<String>,
    /// When it was returned.
    pub(crate) at: Duration,
    /// The longest round.
    pub(crate) took: Duration,
}

/// A rank in a process of its own.
pub(crate) struct Process {
    child: Child,
    _stdin: ChildStdin,
    lines: Receiver<String>,
}

impl Process {
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// What follows one of `words` on the next line that has it.
    fn read(&self, words: &[&str]) -> (usize, String) {
        loop {
            let Ok(line) = self.lines.recv_timeout(Duration::from_secs(15)) else {
                panic!(
                    "process {} said nothing of {words:?} for 15 s",
                    self.child.id()
                );
            };
            // The test harness may print on the same line.
            for (i, word) in words.iter().enumerate() {
                if let Some((_, rest)) = line.split_once(word) {
                    return (i, rest.trim().to_owned());
                }
            }
        }
    }

    /// The time that it says after `word`.
    pub(crate) fn time_of(&self, word: &str) -> Duration {
        micros(&self.read(&[word]).1)
    }
}

/// The ranks of a world. Those that are left when it is dropped are killed.
pub(crate) struct World {
    pub(crate) ranks: Vec<Process>,
    before: HashSet<OsString>,
}

impl World {
    /// Starts all ranks; unless links are to fail early, waits until each has made a round of calls.
    pub(crate) fn start(size: usize, transports: &str, timeout: &str, mishap: &Mishap) -> Self {
        let before = shared_files();
        let port = free_port();
        let start = |rank: usize| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command
                .args(["rank::rank_of_a_world", "--exact", "--nocapture"])
                .env("RINGWAY_TEST_RANK", format!("{rank} {size} {port}"))
                .env("RINGWAY_TEST_TRANSPORTS", transports)
                .env("RINGWAY_TEST_TIMEOUT", timeout);
            match mishap {
                Mishap::None => {
                    command.env("RINGWAY_TEST_ENDLESS", "yes");
                }
                Mishap::Fault(plan) => {
                    command.env("RINGWAY_TEST_FAULT", plan);
                    command.env("RINGWAY_TEST_ENDLESS", "yes");
                }
                Mishap::Perturb(plan) => {
                    command.env("RINGWAY_TEST_FAULT", plan);
                }
                Mishap::Disagree(how) => {
                    command.env("RINGWAY_TEST_DISAGREE", how);
                }
                Mishap::KillAt { victim, step } => {
                    command.env("RINGWAY_TEST_ENDLESS", "yes");
                    if *victim == rank {
                        command.env("RINGWAY_TEST_KILL_AT", step.to_string());
                    }
                }
            }
            let mut child = command
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let stdin = child.stdin.take().unwrap();
            let output = BufReader::new(child.stdout.take().unwrap());
            let (sender, lines) = channel();
            thread::spawn(move || {
                for line in output.lines().map_while(Result::ok) {
                    let _ = sender.send(line);
                }
            });
            Process {
                child,
                _stdin: stdin,
                lines,
            }
        };
        let ranks: Vec<_> = (0..size).map(start).collect();
        if matches!(mishap, Mishap::None) {
            for rank in &ranks {
                rank.read(&["READY"]);
            }
        }
        Self { ranks, before }
    }

    /// How all ranks but `victim` ended. Then nothing of the world is left.
    pub(crate) fn outcomes(&mut self, victim: Option<usize>) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        for (rank, process) in self.ranks.iter_mut().enumerate() {
            if Some(rank) == victim {
                continue;
            }
            let mut outcome = Outcome {
                rank,
                error: None,
                at: now(),
                took: Duration::ZERO,
            };
            let (end, text) = process.read(&["END ", "ERROR "]);
            let left = if end == 0 {
                micros(&text)
            } else {
                let mut words = text.splitn(3, ' ');
                outcome.at = micros(words.next().unwrap());
                outcome.took = micros(words.next().unwrap());
                outcome.error = words.next().map(str::to_owned);
                process.time_of("END ")
            };
            assert!(
                left < Duration::from_secs(3),
                "rank {rank} left in {left:?}"
            );
            let status = process.child.wait().unwrap();
            assert!(status.success(), "rank {rank}: {status}");
            outcomes.push(outcome);
        }
        if let Some(victim) = victim {
            let _ = self.ranks[victim].child.kill();
            let _ = self.ranks[victim].child.wait();
        }
        let left: Vec<_> = shared_files().difference(&self.before).cloned().collect();
        assert!(left.is_empty(), "left in /dev/shm: {left:?}");
        outcomes
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for process in &mut self.ranks {
            let _ = process.child.kill();
            let _ = process.child.wait();
        }
    }
}

fn micros(text: &str) -> Duration {
    Duration::from_micros(text.parse().unwrap())
}

/// Ringway's files in shared memory.
fn shared_files() -> HashSet<OsString> {
    let names = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    names
        .map(|entry| entry.file_name())
        .filter(|name| name.to_string_lossy().contains("ringway"))
        .collect()
}

/// Holds off the other tests of this file, in this process or another, while it lives.
pub(crate) fn undisturbed() -> File {
    let file = File::open(std::env::current_exe().unwrap()).unwrap();
    file.lock().unwrap();
    file
}

pub(crate) fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

/// The n-th number of a fixed course of chance (splitmix64).
pub(crate) fn chance(n: usize) -> u64 {
    let mut x = (n as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
