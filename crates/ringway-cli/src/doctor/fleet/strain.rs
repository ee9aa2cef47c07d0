//! What others take of this machine's processors while something is measured.

use std::{collections::BTreeMap, fs, time::Instant};

use ringway_doctor::fleet::{Burner, Strain};

use crate::processors::Processors;

/// Ticks of CPU time per second in /proc (USER_HZ), on all architectures of Linux but two that are gone.
const TICKS: f64 = 100.0;

/// Processes that take less, in CPUs, are not worth a word.
const LEAST: f64 = 0.1;

/// How many are named.
const NAMED: usize = 3;

/// Looks at the counters of the kernel, and once more at the end.
pub(super) struct Watch {
    began: Instant,
    counters: Counters,
}

/// Counters that only rise.
#[derive(Default)]
struct Counters {
    /// Nanoseconds in which this process' threads ran, and in which they waited for a CPU.
    own: Option<(u64, u64)>,
    processors: Option<Processors>,
    /// Microseconds in which some process waited for a CPU.
    pressure: Option<u64>,
    processes: BTreeMap<u32, Process>,
}

/// A process, or a thread of the kernel.
#[derive(Debug, PartialEq)]
struct Process {
    name: String,
    /// What it took so far, as user and system.
    ticks: u64,
    kernel: bool,
}

impl Watch {
    pub(super) fn start() -> Self {
        Self {
            counters: Counters::read(),
            began: Instant::now(),
        }
    }

    /// What was taken since.
    pub(super) fn end(self) -> Strain {
        let seconds = self.began.elapsed().as_secs_f64().max(f64::MIN_POSITIVE);
        self.counters.until(Counters::read(), seconds)
    }
}

impl Counters {
    /// What was taken between these and those of some seconds later.
    fn until(self, now: Self, seconds: f64) -> Strain {
        let before = self;
        let rise = |a: u64, b: u64| b.saturating_sub(a) as f64;
        let share = |part: f64, of: f64| if of > 0.0 { part / of } else { 0.0 };
        let waited = before.own.zip(now.own).map(|(a, b)| {
            let (ran, waited) = (rise(a.0, b.0), rise(a.1, b.1));
            share(waited, ran + waited)
        });
        let own = std::process::id();
        let burners = now.processes.into_iter().filter_map(|(pid, process)| {
            let then = before.processes.get(&pid).map_or(0, |it| it.ticks);
            let cpus = rise(then, process.ticks) / TICKS / seconds;
            (pid != own && cpus >= LEAST).then_some(Burner {
                pid,
                name: process.name,
                cpus,
                kernel: process.kernel,
            })
        });
        let mut burners: Vec<Burner> = burners.collect();
        burners.sort_by(|a, b| b.cpus.total_cmp(&a.cpus));
        burners.truncate(NAMED);
        let of_all = |part: fn(Processors, Processors) -> f64| {
            let counted = before.processors.zip(now.processors);
            counted.map(|(before, now)| part(now, before))
        };
        // The kernel's number is an average over the CPUs that are not idle (kernel/sched/psi.c, collect_percpu_times): of many
        // CPUs a single one, which two processes are bound to, would make it 100 %.
        let used = of_all(Processors::busy_since).unwrap_or(1.0);
        let waiting = before.pressure.zip(now.pressure);
        Strain {
            waited,
            stolen: of_all(Processors::stolen_since).unwrap_or(0.0),
            pressure: waiting.map(|(a, b)| (rise(a, b) / 1e6 / seconds).min(1.0) * used),
            burners,
        }
    }

    fn read() -> Self {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let names = |dir: &str| {
            let entries = fs::read_dir(dir).into_iter().flatten().flatten();
            entries.filter_map(|entry| entry.file_name().into_string().ok())
        };
        let threads = names("/proc/self/task")
            .filter_map(|thread| schedstat(&text(&format!("/proc/self/task/{thread}/schedstat"))));
        let own = threads.reduce(|(ran, waited), it| (ran + it.0, waited + it.1));
        let processes = names("/proc").filter_map(|name| {
            let pid: u32 = name.parse().ok()?;
            Some((pid, process(&text(&format!("/proc/{pid}/stat")))?))
        });
        Self {
            own,
            processors: Processors::now().ok(),
            pressure: pressure(&text("/proc/pressure/cpu")),
            processes: processes.collect(),
        }
    }
}

/// Nanoseconds on a CPU and waiting for one (Linux, Documentation/scheduler/sched-stats.rst).
fn schedstat(text: &str) -> Option<(u64, u64)> {
    let mut words = text.split_whitespace().map(str::parse);
    Some((words.next()?.ok()?, words.next()?.ok()?))
}

/// `some avg10=0.00 avg60=0.00 avg300=0.00 total=1234` (Linux, Documentation/accounting/psi.rst).
fn pressure(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with("some "))?;
    line.rsplit_once("total=")?.1.trim().parse().ok()
}

/// The flag of the kernel's own threads (Linux, include/linux/sched.h: PF_KTHREAD).
const KERNEL_THREAD: u64 = 0x0020_0000;

/// A process. Its name may have spaces and parentheses (proc(5)).
fn process(text: &str) -> Option<Process> {
    let (_, rest) = text.split_once('(')?;
    let (name, numbers) = rest.rsplit_once(')')?;
    // The flags are the ninth field, utime and stime the 14th and 15th, of which two stand before.
    let mut numbers = numbers.split_whitespace().skip(6);
    let flags: u64 = numbers.next()?.parse().ok()?;
    let mut numbers = numbers.skip(4);
    let user: u64 = numbers.next()?.parse().ok()?;
    let system: u64 = numbers.next()?.parse().ok()?;
    Some(Process {
        name: name.to_owned(),
        ticks: user.saturating_add(system),
        kernel: flags & KERNEL_THREAD != 0,
    })
}

#[cfg(test)]
mod tests {
    use std::{process::Command, thread, time::Duration};

    use super::*;

    #[test]
    fn lines_of_proc_are_read_and_others_are_not() {
        assert_eq!(schedstat("348145 70415 2\n"), Some((348_145, 70_415)));
        let text = "some avg10=0.27 avg60=7.59 avg300=22.14 total=215908321\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";
        assert_eq!(pressure(text), Some(215_908_321));
        let line =
            "42 (a (b) c) R 1 42 42 0 -1 4194304 92 0 0 0 17 5 0 0 20 0 1 0 12345 5000000 300";
        let of = |kernel| Process {
            name: "a (b) c".to_owned(),
            ticks: 22,
            kernel,
        };
        assert_eq!(process(line), Some(of(false)));
        assert_eq!(process(&line.replace("4194304", "2129984")), Some(of(true)));
        for text in ["", "x", "42 (", "42 (a) R 1", "some total=x"] {
            assert_eq!(
                (schedstat(text), pressure(text), process(text)),
                (None, None, None),
                "{text}"
            );
        }
    }

    #[test]
    fn who_takes_a_processor_is_named() {
        let mut burner = Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .spawn()
            .unwrap();
        let watch = Watch::start();
        thread::sleep(Duration::from_millis(400));
        let strain = watch.end();
        burner.kill().unwrap();
        burner.wait().unwrap();
        // On a machine whose processors all others want, it may not be one of the first.
        let crowded = strain.burners.len() == NAMED;
        let found = strain.burners.iter().find(|it| it.pid == burner.id());
        assert!(
            crowded || found.is_some_and(|it| it.cpus > LEAST),
            "{strain:?}"
        );
        assert!((0.0..=1.0).contains(&strain.stolen), "{strain:?}");
    }

    #[test]
    fn one_cpu_of_many_that_is_wanted_twice_is_not_all_of_them() {
        // Two processes bound to one of 128 CPUs, for a second.
        let ticks = |used: u64, idle: u64| {
            Processors::parse(&format!("cpu  {used} 0 0 {idle} 0 0 0 0 0 0"))
        };
        let before = Counters {
            processors: ticks(50_000, 50_000),
            pressure: Some(7),
            ..Counters::default()
        };
        let now = Counters {
            processors: ticks(50_000 + 100, 50_000 + 127 * 100),
            pressure: Some(1_000_007),
            ..Counters::default()
        };
        let pressure = before.until(now, 1.0).pressure.unwrap();
        assert!((pressure - 1.0 / 128.0).abs() < 1e-9, "{pressure}");
    }
}
