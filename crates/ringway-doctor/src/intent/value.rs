//! The values of an intent: each checks itself when it is read, so that the error has its line.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, de};
use serde_saphyr::Spanned;

/// A value with the line of the file that it stands in; 0 if it is a default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line<T> {
    /// The value.
    pub value: T,
    /// The line, from 1.
    pub line: u32,
}

impl<T> Line<T> {
    pub(super) const fn default_of(value: T) -> Self {
        Self { value, line: 0 }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Line<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<T>::deserialize(deserializer)?;
        Ok(Self {
            value: spanned.value,
            line: u32::try_from(spanned.referenced.line()).unwrap_or(u32::MAX),
        })
    }
}

/// A code point of DiffServ: 0 to 63, not the ToS byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Dscp(pub u8);

/// A priority of IEEE 802.1Q: 0 to 7.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Priority(pub u8);

/// 1 to 100 percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Percent(pub u8);

fn bounded<'de, D: Deserializer<'de>>(
    deserializer: D,
    what: &str,
    least: u8,
    most: u8,
    hint: &str,
) -> Result<u8, D::Error> {
    let number = i64::deserialize(deserializer)?;
    u8::try_from(number)
        .ok()
        .filter(|n| (least..=most).contains(n))
        .ok_or_else(|| {
            de::Error::custom(format_args!(
                "expected {what} from {least} to {most}, found {number}{hint}"
            ))
        })
}

impl<'de> Deserialize<'de> for Dscp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let hint = "; a ToS byte divided by four is the DSCP";
        bounded(deserializer, "a DSCP", 0, 63, hint).map(Self)
    }
}

impl<'de> Deserialize<'de> for Priority {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        bounded(deserializer, "a priority", 0, 7, "").map(Self)
    }
}

impl<'de> Deserialize<'de> for Percent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        bounded(deserializer, "percent", 1, 100, "").map(Self)
    }
}

/// Implements `Deserialize` for what is read from text.
macro_rules! from_text {
    ($($kind:ty),*) => {$(
        impl<'de> Deserialize<'de> for $kind {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(|why| {
                    de::Error::custom(format_args!("`{text}`: {why}"))
                })
            }
        }
    )*};
}

from_text!(Level, Name, PortRange, Size, Time);

/// A word that every system takes as a name, and no shell takes apart: letters, digits, `_`, `-` and `.`, of 1 to 20.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name(pub String);

impl FromStr for Name {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if (1..=20).contains(&text.len())
            && text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && text.chars().all(fits)
        {
            Ok(Self(text.to_owned()))
        } else {
            Err(
                "expected a name of 1 to 20 letters, digits, `_`, `-` and `.` that begins with a letter or digit",
            )
        }
    }
}

/// Bytes, written as `150kB` (1000) or `64KiB` (1024).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const UNITS: [(&str, u64); 8] = [
            ("KiB", 1 << 10),
            ("MiB", 1 << 20),
            ("GiB", 1 << 30),
            ("kB", 1000),
            ("KB", 1000),
            ("MB", 1_000_000),
            ("GB", 1_000_000_000),
            ("B", 1),
        ];
        let expected = || {
            "expected a size with its unit: 150kB (kB, MB: 1000) or 64KiB (KiB, MiB: 1024)"
                .to_owned()
        };
        let (digits, scale) = UNITS
            .iter()
            .find_map(|(unit, scale)| text.strip_suffix(unit).map(|digits| (digits, *scale)))
            .ok_or_else(expected)?;
        let number: u64 = digits.trim_end().parse().map_err(|_| expected())?;
        number
            .checked_mul(scale)
            .filter(|bytes| (1..=1 << 40).contains(bytes))
            .map(Self)
            .ok_or_else(|| "expected a size from 1B to 1024GiB".to_owned())
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes if bytes % 1000 == 0 => write!(f, "{}kB", bytes / 1000),
            bytes => write!(f, "{bytes}B"),
        }
    }
}

/// How full a queue is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Bytes in the queue.
    Bytes(Size),
    /// A part of the packet buffer; on Junos, of the queue.
    Percent(u8),
}

impl FromStr for Level {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let Some(digits) = text.strip_suffix('%') else {
            return text
                .parse()
                .map(Self::Bytes)
                .map_err(|why: String| format!("{why}, or percent of the buffer: 10%"));
        };
        digits
            .trim_end()
            .parse()
            .ok()
            .filter(|percent| (1..=100).contains(percent))
            .map(Self::Percent)
            .ok_or_else(|| "expected 1% to 100%".to_owned())
    }
}

impl Level {
    /// Bytes, in whole kB where it is a part of `buffer`, as most systems take no less.
    pub fn bytes(self, buffer: Option<Size>) -> Option<u64> {
        match self {
            Self::Bytes(size) => Some(size.0),
            // A buffer has at most 2^40 bytes.
            Self::Percent(percent) => {
                buffer.map(|Size(buffer)| buffer * u64::from(percent) / 100 / 1000 * 1000)
            }
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(size) => size.fmt(f),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

/// Milliseconds, written as `200ms` or `2s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub u32);

impl FromStr for Time {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (digits, scale) = match text.strip_suffix("ms") {
            Some(digits) => (digits, 1),
            None => (text.strip_suffix('s').unwrap_or(""), 1000),
        };
        digits
            .trim_end()
            .parse::<u32>()
            .ok()
            .and_then(|number| number.checked_mul(scale))
            .filter(|ms| (1..=60_000).contains(ms))
            .map(Self)
            .ok_or("expected a time from 1ms to 60s, with its unit")
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}ms", self.0)
    }
}

/// Ports of a switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortRange {
    /// As numbered on the front, from 1, both included.
    Numbers(u32, u32),
    /// As the system calls it.
    Name(String),
}

impl FromStr for PortRange {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const MOST: u32 = 1024;
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        if let (Ok(first), Ok(last)) = (first.parse(), last.parse()) {
            return if 1 <= first && first <= last && last <= MOST {
                Ok(Self::Numbers(first, last))
            } else {
                Err("expected port numbers from 1 to 1024, such as 1-32")
            };
        }
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '-' | '.' | ':');
        if (text.starts_with(|c: char| c.is_ascii_alphabetic()) || text.contains('/'))
            && text.len() <= 32
            && text.chars().all(fits)
        {
            Ok(Self::Name(text.to_owned()))
        } else {
            Err("expected a port number, a range such as 1-32, or the system's name of a port")
        }
    }
}

/// One value, or a list of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OneOrMore<T>(pub Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OneOrMore<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor<T>(std::marker::PhantomData<T>);

        impl<'de, T: Deserialize<'de>> de::Visitor<'de> for Visitor<T> {
            type Value = Vec<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value or a list of values")
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Vec<T>, E> {
                T::deserialize(de::value::I64Deserializer::new(value)).map(|value| vec![value])
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Vec<T>, E> {
                T::deserialize(de::value::U64Deserializer::new(value)).map(|value| vec![value])
            }

            fn visit_str<E: de::Error>(self, value: &str) -> Result<Vec<T>, E> {
                T::deserialize(de::value::StrDeserializer::new(value)).map(|value| vec![value])
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut items: A) -> Result<Vec<T>, A::Error> {
                let mut list = Vec::new();
                while let Some(item) = items.next_element()? {
                    list.push(item);
                }
                if list.is_empty() {
                    return Err(de::Error::custom("expected at least one value"));
                }
                Ok(list)
            }
        }

        deserializer
            .deserialize_any(Visitor(std::marker::PhantomData))
            .map(Self)
    }
}

/// `8, 10-12` as people write code points, for tables and reasons.
pub fn dscp_list(code_points: &[u8]) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut rest = code_points;
    while let Some((&first, _)) = rest.split_first() {
        let run = rest
            .iter()
            .zip(first..)
            .take_while(|(have, want)| *have == want)
            .count();
        parts.push(match run {
            1 => first.to_string(),
            _ => format!("{first}-{}", rest[run - 1]),
        });
        rest = &rest[run..];
    }
    parts.join(", ")
}

pub(super) fn default_name() -> Name {
    Name("RINGWAY".to_owned())
}

pub(super) const fn certain() -> Line<Percent> {
    Line::default_of(Percent(100))
}

pub(super) const fn short_cable() -> Line<u32> {
    Line::default_of(5)
}

pub(super) const fn lanes() -> Line<u32> {
    Line::default_of(4)
}

pub(super) const fn first() -> u8 {
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_need_a_unit_and_know_both_kinds() {
        assert_eq!("150kB".parse(), Ok(Size(150_000)));
        assert_eq!("64KiB".parse(), Ok(Size(65_536)));
        assert_eq!("2 MiB".parse(), Ok(Size(2 << 20)));
        for wrong in ["150", "kB", "-1kB", "1.5MB", "0B", "99999999GB", "１kB", ""] {
            assert!(wrong.parse::<Size>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn percent_of_the_buffer_are_whole_kilobytes() {
        let buffer = Some(Size(32 << 20));
        assert_eq!(Level::Percent(10).bytes(buffer), Some(3_355_000));
        assert_eq!(Level::Percent(10).bytes(None), None);
        assert_eq!("100%".parse(), Ok(Level::Percent(100)));
        assert!("0%".parse::<Level>().is_err());
        assert!("101%".parse::<Level>().is_err());
    }

    #[test]
    fn ports_are_numbers_or_names() {
        assert_eq!("1-32".parse(), Ok(PortRange::Numbers(1, 32)));
        assert_eq!("7".parse(), Ok(PortRange::Numbers(7, 7)));
        let name = |name: &str| Ok(PortRange::Name(name.to_owned()));
        assert_eq!("et-0/0/1".parse(), name("et-0/0/1"));
        for wrong in ["0-3", "4-3", "1-2000", "Ethernet 1", "$(reboot)", ""] {
            assert!(wrong.parse::<PortRange>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn runs_of_code_points_are_folded() {
        assert_eq!(dscp_list(&[0, 1, 2, 26, 48, 49]), "0-2, 26, 48-49");
        assert_eq!(dscp_list(&[]), "");
    }
}
