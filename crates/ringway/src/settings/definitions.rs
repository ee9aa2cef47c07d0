//! The one table of all settings.

use std::{fmt::Write, str::FromStr, time::Duration};

use ringway_plan::DataType;

use super::{
    Interfaces, LAUNCH_VARIABLES, Probing, Transports, Values, environment::PREFIX, parse_duration,
    parse_size, show_duration, show_size,
};

/// What there is to know about a setting.
#[derive(Debug)]
pub struct Definition {
    /// The key in the file, under `communication:`.
    pub name: &'static str,
    /// The value when nobody chooses one.
    pub default: &'static str,
    /// The values that it may have, with their unit, for errors and documents.
    pub expected: &'static str,
    /// What it does.
    pub doc: &'static str,
    /// Takes over a value, or says what is wrong with it.
    pub(super) set: fn(&mut Values, &str) -> Result<(), String>,
    /// The value as text that `set` reads.
    pub(super) show: fn(&Values) -> String,
}

impl Definition {
    /// The name in the environment: `RINGWAY_BUFFER_SIZE`.
    pub fn variable(&self) -> String {
        format!("{PREFIX}{}", self.name.to_ascii_uppercase())
    }
}

const KIB: u64 = 1 << 10;
const TIB: u64 = 1 << 40;
const MILLISECOND: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);

/// All settings, by name.
pub const DEFINITIONS: &[Definition] = &[
    Definition {
        name: "adapt_after",
        default: "5s",
        expected: "`off`, or a duration from 100ms to 1h",
        doc: "How long operations must have been a quarter slower, or quicker, than usual for all ranks of a job of several hosts to measure \
              links anew and go on by a better plan, if there is one. Such a job also tries algorithms that may be the quickest, for each power of two of lengths of all-reduce that counts most: in one or more rounds of about 1.5 s, longer on slow links. `off`, or `probes: off`, never does. Rank 0's counts.",
        set: |v, text| {
            put(
                &mut v.adapt_after,
                match text {
                    "off" => Ok(None),
                    _ => duration(text, 100 * MILLISECOND, HOUR).map(Some),
                },
            )
        },
        show: |v| {
            v.adapt_after
                .map_or_else(|| "off".to_owned(), show_duration)
        },
    },
    Definition {
        name: "algorithm",
        default: "auto",
        expected: "an algorithm (`ring`, `tree`, `hierarchical` ...), `auto`, or a choice by size such as \
                   `recursive_doubling:0-8KiB;ring:8KiB-max`",
        doc: "How collectives are carried out. `auto` takes the fastest by the cost model for the size, the \
              ranks, the hosts and what links do. `broadcast=tree:0-1MiB` is for one collective and goes before what is for all.",
        set: |v, text| put(&mut v.algorithm, word(text)),
        show: |v| v.algorithm.clone(),
    },
    Definition {
        name: "arena_size",
        default: "64GiB",
        expected: "a size from 1MiB to 16TiB",
        doc: "Address space of a rank's arena, the memory that peers on the host share. Only what is used \
              takes memory.",
        set: |v, text| put(&mut v.arena_size, size(text, KIB * KIB, 16 * TIB)),
        show: |v| show_size(v.arena_size),
    },
    Definition {
        name: "batch_max",
        default: "10MB",
        expected: "a size from 4KiB to 1TiB",
        doc: "Bytes at which a batch of tensors is closed, at most; the size moves between this and `batch_min` to where most \
              bytes pass in a second. Rank 0's counts.",
        set: |v, text| put(&mut v.batch_max, size(text, 4 * KIB, TIB)),
        show: |v| show_size(v.batch_max),
    },
    Definition {
        name: "batch_min",
        default: "1MB",
        expected: "a size from 4KiB to 1TiB",
        doc: "Bytes at which a batch of tensors is closed, at least, unless its first tensor has waited for `batch_window`. Above \
              `batch_max`, that counts.",
        set: |v, text| put(&mut v.batch_min, size(text, 4 * KIB, TIB)),
        show: |v| show_size(v.batch_min),
    },
    Definition {
        name: "batch_window",
        default: "10ms",
        expected: "a duration from 0s to 10s",
        doc: "How long a tensor waits for others to be in a batch with, at most. Rank 0's counts, for all ranks.",
        set: |v, text| {
            put(
                &mut v.batch_window,
                duration(text, Duration::ZERO, 10_000 * MILLISECOND),
            )
        },
        show: |v| show_duration(v.batch_window),
    },
    Definition {
        name: "buffer_size",
        default: "256MB",
        expected: "a size from 64KiB to 1TiB, such as 256MB (10^6) or 256MiB (2^20)",
        doc: "Memory for a rank's transport buffers, at most. Buffers are made when first used.",
        set: |v, text| put(&mut v.buffer_size, size(text, 64 * KIB, TIB)),
        show: |v| show_size(v.buffer_size),
    },
    Definition {
        name: "connect_timeout",
        default: "60s",
        expected: "a duration from 10ms to 24h",
        doc: "How long a rank waits for all others to join, and for a connection to a peer.",
        set: |v, text| {
            put(
                &mut v.connect_timeout,
                duration(text, 10 * MILLISECOND, 24 * HOUR),
            )
        },
        show: |v| show_duration(v.connect_timeout),
    },
    Definition {
        name: "fabric",
        default: "none",
        expected: "`none`, or the path of a file as `ringway fabric new` writes",
        doc: "The network under the job, for the order of hosts in rings and trees, and for the choice of algorithms. Rank 0's \
              counts. Hosts are found in it by their names.",
        set: |v, text| {
            put(
                &mut v.fabric,
                word(text).map(|text| (text != "none").then(|| text.into())),
            )
        },
        show: |v| {
            let path = v.fabric.as_ref();
            path.map_or_else(|| "none".to_owned(), |path| path.display().to_string())
        },
    },
    Definition {
        name: "failure_after",
        default: "1500ms",
        expected: "a duration from 100ms to 1h, at least three heartbeats",
        doc: "A rank that gives no sign of life for so long has failed.",
        set: |v, text| {
            put(
                &mut v.failure_after,
                duration(text, 100 * MILLISECOND, HOUR),
            )
        },
        show: |v| show_duration(v.failure_after),
    },
    Definition {
        name: "heartbeat",
        default: "250ms",
        expected: "a duration from 10ms to 20min",
        doc: "Time between two signs of life of a rank.",
        set: |v, text| put(&mut v.heartbeat, duration(text, 10 * MILLISECOND, HOUR / 3)),
        show: |v| show_duration(v.heartbeat),
    },
    Definition {
        name: "hierarchy_levels",
        default: "auto",
        expected: "`auto`, or a number from 1 to 8",
        doc: "Levels of hierarchical algorithms, at most: 1 is flat, 2 is hosts and the ranks in them, 3 has racks above, 4 \
              pods. `auto` is 2, or, with a `fabric`, as many as it has.",
        set: |v, text| put(&mut v.hierarchy_levels, auto(text, 1, 8)),
        show: |v| show_auto(v.hierarchy_levels),
    },
    Definition {
        name: "interfaces",
        default: "all",
        expected: "`all`, or interfaces (`*` at the end for any ending), addresses and subnets, separated by commas, \
                   `^` in front to exclude: `eth*,10.0.0.0/8,^docker0`",
        doc: "Network interfaces whose addresses are offered to peers. Of those offered, the ones that reach \
              the peer are found by probing: this is for forcing traffic onto a network.",
        set: |v, text| put(&mut v.interfaces, Interfaces::parse(text)),
        show: |v| v.interfaces.to_string(),
    },
    Definition {
        name: "log",
        default: "warn",
        expected: "`off`, `error`, `warn`, `info`, `debug` or `trace`",
        doc: "What is logged to standard error.",
        set: |v, text| {
            put(
                &mut v.log,
                FromStr::from_str(text).map_err(|_| "it is no level".to_owned()),
            )
        },
        show: |v| v.log.to_string(),
    },
    Definition {
        name: "memory_limit",
        default: "8GiB",
        expected: "a size from 1MiB to 16TiB",
        doc: "Memory that Ringway may use in a rank for buffers and scratch, at most, beside what the user puts \
              into the arena. Operations that would need more fail.",
        set: |v, text| put(&mut v.memory_limit, size(text, KIB * KIB, 16 * TIB)),
        show: |v| show_size(v.memory_limit),
    },
    Definition {
        name: "port",
        default: "any",
        expected: "`any`, a port such as 29400, or a range such as 29400-29499",
        doc: "The one TCP port that a rank listens on. Of a range the first free one is taken, so that a \
              firewall needs one range for all ranks of a host.",
        set: |v, text| {
            put(
                &mut v.port,
                text.parse()
                    .map_err(|_| "it is no port or range".to_owned()),
            )
        },
        show: |v| v.port.to_string(),
    },
    Definition {
        name: "probe_lifetime",
        default: "24h",
        expected: "a duration from 0s to 8760h",
        doc: "How long what was measured of links is kept for later jobs on the same hosts, in `$XDG_CACHE_HOME/ringway` (or \
              `~/.cache/ringway`) of rank 0. 0s keeps nothing.",
        set: |v, text| {
            put(
                &mut v.probe_lifetime,
                duration(text, Duration::ZERO, 8760 * HOUR),
            )
        },
        show: |v| show_duration(v.probe_lifetime),
    },
    Definition {
        name: "probes",
        default: "auto",
        expected: "`auto`, `off` or `refresh`",
        doc: "Whether a job of several hosts measures its links at start, in some 100 ms, to choose algorithms by. `auto` does where \
              nothing is kept, `refresh` always. Rank 0's counts.",
        set: |v, text| put(&mut v.probes, Probing::parse(text)),
        show: |v| v.probes.to_string(),
    },
    Definition {
        name: "queue_pairs",
        default: "auto",
        expected: "`auto`, or a number from 1 to 8",
        doc: "RDMA queue pairs to a peer that share its large messages by how fast each is, beside one for small messages. \
              `auto` is 4 on a NIC and 2 in software; of two ranks the lesser counts.",
        set: |v, text| put(&mut v.queue_pairs, auto(text, 1, 8)),
        show: |v| show_auto(v.queue_pairs),
    },
    Definition {
        name: "record",
        default: "none",
        expected: "`none`, or the path of a file",
        doc: "Where rank 0 writes down its operations, for `ringway replay` to simulate the job on other fabrics: some 100 bytes for each, \
              256 MiB at most.",
        set: |v, text| {
            put(
                &mut v.record,
                word(text).map(|text| (text != "none").then(|| text.into())),
            )
        },
        show: |v| {
            let path = v.record.as_ref();
            path.map_or_else(|| "none".to_owned(), |path| path.display().to_string())
        },
    },
    Definition {
        name: "registered_limit",
        default: "64GiB",
        expected: "a size from 4KiB to 16TiB",
        doc: "Memory of the user's, arena included, that a rank registers with its RDMA device, at most. It is locked in \
              RAM where the device is a NIC. What is beyond is copied, or, where it is to be registered, refused.",
        set: |v, text| put(&mut v.registered_limit, size(text, 4 * KIB, 16 * TIB)),
        show: |v| show_size(v.registered_limit),
    },
    Definition {
        name: "ring_size",
        default: "auto",
        expected: "`auto`, or a number from 2 to 65536",
        doc: "Ranks in each ring of hierarchical algorithms. `auto` is the ranks of a host.",
        set: |v, text| put(&mut v.ring_size, auto(text, 2, 65536)),
        show: |v| show_auto(v.ring_size),
    },
    Definition {
        name: "spin",
        default: "50us",
        expected: "a duration from 0s to 1s",
        doc: "How long a waiting thread looks again and again before it sleeps. Longer answers faster, and \
              takes processor time from others.",
        set: |v, text| {
            put(
                &mut v.spin,
                duration(text, Duration::ZERO, 1000 * MILLISECOND),
            )
        },
        show: |v| show_duration(v.spin),
    },
    Definition {
        name: "streams",
        default: "2",
        expected: "a number from 1 to 64",
        doc: "TCP connections to a peer that share its large messages.",
        set: |v, text| put(&mut v.streams, count(text, 1, 64)),
        show: |v| v.streams.to_string(),
    },
    Definition {
        name: "timeout",
        default: "300s",
        expected: "a duration from 10ms to 720h",
        doc: "How long an operation may take before it fails on every rank.",
        set: |v, text| put(&mut v.timeout, duration(text, 10 * MILLISECOND, 720 * HOUR)),
        show: |v| show_duration(v.timeout),
    },
    Definition {
        name: "transports",
        default: "auto",
        expected: "`auto`, or any of `shm`, `tcp` and `rdma`, separated by commas",
        doc: "What may carry messages; the same on all ranks. `auto` takes shared memory within a host; between \
              hosts an RDMA NIC unless TCP is measured to be faster, and TCP where there is none. `rdma` is a NIC, or \
              else RoCE v2 in software, and TCP to ranks that it does not reach; with `tcp` beside it (`shm,tcp,rdma`), \
              what is measured to be faster.",
        set: |v, text| put(&mut v.transports, Transports::parse(text)),
        show: |v| v.transports.to_string(),
    },
    Definition {
        name: "wire_between_hosts",
        default: "off",
        expected: "`off`, `f16` or `bf16`",
        doc: "As what elements of `f32` go from host to host in all-reduces by `hierarchical`; within hosts they stay what they \
              are. Half the bytes, and each message between hosts rounds to nearest; see docs/compression.md.",
        set: |v, text| put(&mut v.wire_between_hosts, half(text)),
        show: |v| {
            v.wire_between_hosts
                .map_or_else(|| "off".to_owned(), |dtype| dtype.to_string())
        },
    },
];

/// The table of settings and the table of launch variables, in Markdown, as `docs/settings.md` has them.
pub fn reference() -> String {
    let cell = |text: &str| text.replace('|', "\\|");
    let mut page = String::from("| key | variable | default | values | |\n|---|---|---|---|---|\n");
    for d in DEFINITIONS {
        let (name, variable, default) = (d.name, d.variable(), d.default);
        let (expected, doc) = (cell(d.expected), cell(d.doc));
        // Writing to a String cannot fail.
        let _ = writeln!(
            page,
            "| `{name}` | `{variable}` | `{default}` | {expected} | {doc} |"
        );
    }
    page.push_str("\n| variable of a launch | |\n|---|---|\n");
    for v in LAUNCH_VARIABLES {
        let _ = writeln!(page, "| `{}` | {} |", v.name, cell(v.doc));
    }
    page
}

fn put<T>(value: &mut T, parsed: Result<T, String>) -> Result<(), String> {
    *value = parsed?;
    Ok(())
}

fn word(text: &str) -> Result<String, String> {
    if text.is_empty() {
        Err("it is empty".to_owned())
    } else {
        Ok(text.to_owned())
    }
}

fn size(text: &str, least: u64, most: u64) -> Result<u64, String> {
    within(parse_size(text)?, least, most, show_size)
}

fn duration(text: &str, least: Duration, most: Duration) -> Result<Duration, String> {
    within(parse_duration(text)?, least, most, show_duration)
}

fn count(text: &str, least: usize, most: usize) -> Result<usize, String> {
    let value = text
        .parse()
        .map_err(|_| "it is no whole number".to_owned())?;
    within(value, least, most, |n| n.to_string())
}

fn auto(text: &str, least: usize, most: usize) -> Result<Option<usize>, String> {
    if text == "auto" {
        Ok(None)
    } else {
        count(text, least, most).map(Some)
    }
}

fn half(text: &str) -> Result<Option<DataType>, String> {
    match text {
        "off" => Ok(None),
        "bf16" => Ok(Some(DataType::Bf16)),
        "f16" => Ok(Some(DataType::F16)),
        _ => Err("it is none of these".to_owned()),
    }
}

fn show_auto(value: Option<usize>) -> String {
    value.map_or_else(|| "auto".to_owned(), |n| n.to_string())
}

fn within<T: Ord + Copy>(
    value: T,
    least: T,
    most: T,
    show: impl Fn(T) -> String,
) -> Result<T, String> {
    if value < least {
        Err(format!("it is below the least, {}", show(least)))
    } else if value > most {
        Err(format!("it is above the most, {}", show(most)))
    } else {
        Ok(value)
    }
}
