//! What was measured, kept for the next job on the same fabric: a file of eight lines.
//!
//! ```text
//! ringway probes 1
//! fabric 89abcdef01234567
//! measured 1764547200
//! between 12000 5000 1100000000 70
//! within 100 50 11000000000 0
//! reduce 40000000000
//! tuned 16384 1000 1000 1100 780 1000 1000 1000 1000 1000
//! tuned 1048576 1000 1000 1100 780 1000 1000 1000 1000 1000
//! ```
//!
//! `measured` is in seconds since 1970; a link has its latency and overhead in nanoseconds, bytes per second, and
//! thousandths of unsteadiness; `reduce` is in bytes per second; `tuned` has a size, and for each algorithm by how many thousandths
//! predictions are multiplied. A file that is not like this is not used, and the log says why.

use std::{
    env, fs,
    io::{self, Read as _},
    path::PathBuf,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use ringway_plan::Algorithm;

use super::{Numbers, Pace};
use crate::engine::Tuning;

const HEADING: &str = "ringway probes 1";

/// A file that no job has renewed for so long is removed: 30 days.
const ABANDONED: Duration = Duration::from_secs(30 * 86_400);

/// A file is shorter than this.
const MOST_BYTES: u64 = 4096;

/// An hour: nothing takes longer.
const MOST_NANOSECONDS: u64 = 3_600_000_000_000;

/// A petabyte per second.
const MOST_RATE: u64 = 1_000_000_000_000_000;

/// The file of a fabric.
pub(super) struct Cache {
    path: PathBuf,
    fingerprint: u64,
}

impl Cache {
    /// In the user's directory of caches; none without one.
    pub(super) fn new(fingerprint: u64) -> Option<Self> {
        let of = |name: &str| {
            env::var_os(name)
                .map(PathBuf::from)
                .filter(|p| p.is_absolute())
        };
        let caches = of("XDG_CACHE_HOME").or_else(|| Some(of("HOME")?.join(".cache")))?;
        Some(Self {
            path: caches.join(format!("ringway/probes-{fingerprint:016x}")),
            fingerprint,
        })
    }

    /// What is kept, and how old it is. `None` if there is nothing that can be used.
    pub(super) fn read(&self, lifetime: Duration, now: SystemTime) -> Option<(Duration, Numbers)> {
        let reason = match self.text().map(|text| parse(&text, self.fingerprint)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => error.to_string(),
            Ok(Err(reason)) => reason,
            Ok(Ok((measured, numbers))) => {
                match now.duration_since(UNIX_EPOCH + Duration::from_secs(measured)) {
                    Ok(age) if age <= lifetime => return Some((age, numbers)),
                    Ok(age) => format!("it is {} s old", age.as_secs()),
                    Err(_) => "it is of the future".to_owned(),
                }
            }
        };
        let path = self.path.display();
        tracing::info!(reason, "{path} is not used: links are measured anew");
        None
    }

    fn text(&self) -> io::Result<String> {
        let mut text = String::new();
        let file = fs::File::open(&self.path)?;
        file.take(MOST_BYTES).read_to_string(&mut text)?;
        Ok(text)
    }

    /// Keeps numbers, whole or not at all. That they cannot be kept is no error: the next job measures.
    pub(super) fn write(&self, numbers: &Numbers, now: SystemTime) {
        let seconds = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        match self.replace(&show(self.fingerprint, seconds, numbers)) {
            Ok(()) => self.sweep(now),
            Err(error) => {
                let path = self.path.display();
                tracing::info!(%error, "{path} is not written: the next job measures links anew");
            }
        }
    }

    /// Removes abandoned files of other hosts. A cluster gives each job others, and containers have new addresses each time:
    /// files would only become more.
    fn sweep(&self, now: SystemTime) {
        let Some(entries) = self.path.parent().and_then(|at| fs::read_dir(at).ok()) else {
            return;
        };
        for entry in entries.filter_map(Result::ok) {
            let path = entry.path();
            let is_other =
                path != self.path && entry.file_name().to_string_lossy().starts_with("probes-");
            let written = entry.metadata().and_then(|about| about.modified());
            let age = written.ok().and_then(|at| now.duration_since(at).ok());
            if is_other && age.is_some_and(|age| age > ABANDONED) {
                // Another job may have removed it.
                let _ = fs::remove_file(path);
            }
        }
    }

    fn replace(&self, text: &str) -> io::Result<()> {
        if let Some(directory) = self.path.parent() {
            fs::create_dir_all(directory)?;
        }
        let new = self.path.with_extension(std::process::id().to_string());
        fs::write(&new, text)
            .and_then(|()| fs::rename(&new, &self.path))
            .inspect_err(|_| {
                // It may not even be there.
                let _ = fs::remove_file(&new);
            })
    }
}

fn show(fingerprint: u64, seconds: u64, numbers: &Numbers) -> String {
    let pace = |p: Pace| format!("{} {} {} {}", p.latency, p.overhead, p.rate, p.unsteady);
    let mut text = format!(
        "{HEADING}\nfabric {fingerprint:016x}\nmeasured {seconds}\nbetween {}\nwithin {}\nreduce {}\n",
        pace(numbers.between),
        pace(numbers.within),
        numbers.reduce
    );
    let tuning = numbers.tuning;
    for (bytes, thousandths) in tuning.bytes.iter().zip(tuning.thousandths) {
        let all: Vec<String> = thousandths.iter().map(u64::to_string).collect();
        text += &format!("tuned {bytes} {}\n", all.join(" "));
    }
    text
}

/// When it was measured, and the numbers.
fn parse(text: &str, fingerprint: u64) -> Result<(u64, Numbers), String> {
    let mut lines = text.lines();
    let mut line = |key: &str| {
        let line = lines.next().unwrap_or_default();
        line.strip_prefix(key)
            .and_then(|rest| rest.strip_prefix(' '))
            .ok_or_else(|| format!("expected `{key} ...`, found `{}`", line.escape_debug()))
    };
    let version = line("ringway probes")?;
    if version != "1" {
        return Err(format!(
            "it is of format `{}`, expected 1",
            version.escape_debug()
        ));
    }
    let fabric = line("fabric")?;
    if u64::from_str_radix(fabric, 16) != Ok(fingerprint) {
        return Err(format!(
            "it is of another fabric, `{}`",
            fabric.escape_debug()
        ));
    }
    let [measured] = numbers(line("measured")?)?;
    let between = pace(line("between")?)?;
    let within = pace(line("within")?)?;
    let [reduce] = numbers(line("reduce")?)?;
    let reduce = rate(reduce)?;
    let mut tuning = Tuning {
        bytes: [0; 2],
        thousandths: [[0; Algorithm::ALL.len()]; 2],
    };
    for at in 0..2 {
        let [bytes, all @ ..] = numbers::<{ 1 + Algorithm::ALL.len() }>(line("tuned")?)?;
        if all.iter().any(|t| !(10..=100_000).contains(t)) {
            return Err(format!(
                "expected thousandths from 10 to 100000, found {all:?}"
            ));
        }
        tuning.bytes[at] = bytes;
        tuning.thousandths[at] = all;
    }
    match lines.next() {
        None => Ok((
            measured.min(u64::from(u32::MAX) * 16),
            Numbers {
                between,
                within,
                reduce,
                tuning,
            },
        )),
        Some(more) => Err(format!("expected its end, found `{}`", more.escape_debug())),
    }
}

fn numbers<const N: usize>(text: &str) -> Result<[u64; N], String> {
    let all: Result<Vec<u64>, _> = text.split(' ').map(str::parse).collect();
    all.ok()
        .and_then(|all| all.try_into().ok())
        .ok_or_else(|| format!("expected {N} numbers, found `{}`", text.escape_debug()))
}

fn rate(rate: u64) -> Result<u64, String> {
    match rate {
        1..=MOST_RATE => Ok(rate),
        _ => Err(format!(
            "expected bytes per second from 1 to 10^15, found {rate}"
        )),
    }
}

fn pace(text: &str) -> Result<Pace, String> {
    let [latency, overhead, bytes, unsteady] = numbers(text)?;
    if latency.max(overhead) > MOST_NANOSECONDS || unsteady > 1_000_000 {
        return Err(format!("expected what a link may take, found `{text}`"));
    }
    Ok(Pace {
        latency,
        overhead,
        rate: rate(bytes)?,
        unsteady,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NUMBERS: Numbers = Numbers {
        between: Pace {
            latency: 12_000,
            overhead: 5_000,
            rate: 1_100_000_000,
            unsteady: 70,
        },
        within: Pace {
            latency: 100,
            overhead: 50,
            rate: 11_000_000_000,
            unsteady: 0,
        },
        reduce: 40_000_000_000,
        tuning: Tuning {
            bytes: [16_384, 1_000_000],
            thousandths: [[1000; Algorithm::ALL.len()], [900; Algorithm::ALL.len()]],
        },
    };

    #[test]
    fn files_are_kept_for_their_lifetime_and_replaced_whole() {
        let directory = env::temp_dir().join(format!("ringway-probes-{}", std::process::id()));
        let cache = Cache {
            path: directory.join("ringway/probes-7"),
            fingerprint: 7,
        };
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let day = Duration::from_secs(86_400);
        assert_eq!(cache.read(day, at(0)), None);
        cache.write(&NUMBERS, at(1000));
        let age = Duration::from_secs(60);
        assert_eq!(cache.read(day, at(1060)), Some((age, NUMBERS)));
        assert_eq!(cache.read(day, at(90_000)), None);
        assert_eq!(cache.read(day, at(999)), None);
        let faster = Numbers {
            reduce: 1,
            ..NUMBERS
        };
        cache.write(&faster, at(2000));
        assert_eq!(cache.read(day, at(2000)), Some((Duration::ZERO, faster)));
        let files = fs::read_dir(directory.join("ringway")).unwrap().count();
        assert_eq!(files, 1);
        let [other, notes] = ["probes-8", "notes"].map(|name| directory.join("ringway").join(name));
        fs::write(&other, "").unwrap();
        fs::write(&notes, "").unwrap();
        cache.write(&NUMBERS, SystemTime::now() + 29 * day);
        assert!(other.exists());
        cache.write(&NUMBERS, SystemTime::now() + 31 * day);
        assert!(!other.exists() && notes.exists() && cache.path.exists());
        fs::write(&cache.path, [0xff; 9000]).unwrap();
        assert_eq!(cache.read(day, at(2000)), None);
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn broken_and_foreign_files_are_told_by_what_is_wrong() {
        let good = show(7, 1000, &NUMBERS);
        assert_eq!(parse(&good, 7), Ok((1000, NUMBERS)));
        for (from, to, says) in [
            ("probes 1", "probes 2", "format `2`"),
            ("fabric 0000000000000007", "fabric 8", "another fabric, `8`"),
            ("measured 1000", "measured", "expected `measured ...`"),
            ("measured 1000", "measured -4", "expected 1 numbers"),
            ("12000 5000", "12000", "expected 4 numbers"),
            ("12000", "99999999999999", "what a link may take"),
            ("1100000000", "0", "from 1 to 10^15"),
            ("reduce", "more\nreduce", "expected `reduce ...`"),
            ("tuned 16384", "tuned", "expected 10 numbers"),
            ("tuned 16384 1000", "tuned 16384 0", "thousandths from 10"),
            ("within 100", "", "expected `within ...`"),
        ] {
            let bad = good.replace(from, to);
            assert_ne!(bad, good, "{from}");
            let error = parse(&bad, 7).unwrap_err();
            assert!(error.contains(says), "{bad}: {error}");
        }
        let error = parse(&format!("{good}x"), 7).unwrap_err();
        assert!(error.contains("expected its end"), "{error}");
        // Wherever it is cut, but for the last line's end.
        for end in 0..good.len() - 4 {
            assert!(parse(&good[..end], 7).is_err(), "{end}");
        }
    }
}
