//! Sizes and durations as people write them.

use std::time::Duration;

/// Units of size, in small letters. `MB` is 10^6 bytes, `MiB` and, as in
/// nccl-tests, a bare `M` are 2^20.
const SIZES: [(&str, u64); 16] = [
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("k", 1 << 10),
    ("m", 1 << 20),
    ("g", 1 << 30),
    ("t", 1 << 40),
    ("bytes", 1),
    ("byte", 1),
    ("b", 1),
    ("", 1),
];

/// Units of time, in nanoseconds.
const TIMES: [(&str, u64); 7] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("min", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Bytes, from `4096`, `64KiB`, `256MB`, `1.5G`: letters of either case, a space before the unit allowed.
///
/// # Errors
/// What is wrong with the text.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text)?;
    let unit = unit.to_ascii_lowercase();
    let Some(&(_, scale)) = SIZES.iter().find(|(name, _)| *name == unit) else {
        return Err(format!("`{unit}` is no unit of size"));
    };
    let bytes = scaled(number, scale)?;
    if unit.is_empty() && number.contains('.') {
        return Err("part of a byte".to_owned());
    }
    Ok(bytes)
}

/// A duration, from `250ms`, `1.5s`, `5min`. The unit is not optional: a bare number is more often a
/// mistake (seconds for milliseconds) than meant.
///
/// # Errors
/// What is wrong with the text.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text)?;
    match TIMES.iter().find(|(name, _)| *name == unit) {
        Some(&(_, scale)) => scaled(number, scale).map(Duration::from_nanos),
        None if unit.is_empty() => Err(format!(
            "the unit is missing: write {number}s or {number}ms"
        )),
        None => Err(format!("`{unit}` is no unit of time")),
    }
}

/// The shortest exact form that [`parse_size`] reads back.
pub fn show_size(bytes: u64) -> String {
    let unit = ["TiB", "TB", "GiB", "GB", "MiB", "MB", "KiB", "kB"]
        .into_iter()
        .find_map(|unit| {
            let scale = SIZES
                .iter()
                .find(|(name, _)| name.eq_ignore_ascii_case(unit))?
                .1;
            (bytes > 0 && bytes.is_multiple_of(scale)).then_some((unit, scale))
        });
    match unit {
        Some((unit, scale)) => format!("{}{unit}", bytes / scale),
        None => format!("{bytes}B"),
    }
}

/// The shortest exact form that [`parse_duration`] reads back.
pub fn show_duration(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    for (unit, scale) in [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000)] {
        if nanos.is_multiple_of(scale) {
            return format!("{}{unit}", nanos / scale);
        }
        if nanos.is_multiple_of(scale / 10) && nanos > scale {
            return format!("{}.{}{unit}", nanos / scale, nanos % scale / (scale / 10));
        }
    }
    format!("{nanos}ns")
}

/// The number, and the unit after it.
fn split(text: &str) -> Result<(&str, &str), String> {
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    if number.is_empty() {
        return Err("it does not begin with a number".to_owned());
    }
    Ok((number, unit.trim_start()))
}

/// `number` times `scale`, exactly where it has at most nine decimals.
fn scaled(number: &str, scale: u64) -> Result<u64, String> {
    let no_number = || format!("`{number}` is no number");
    let too_large = || format!("{number} is too large");
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    if part.contains('.') || part.is_empty() || part.len() > 9 {
        return Err(no_number());
    }
    let parse = |digits: &str| match digits.parse::<u64>() {
        Ok(value) => Ok(value),
        Err(e) if *e.kind() == std::num::IntErrorKind::PosOverflow => Err(too_large()),
        Err(_) => Err(no_number()),
    };
    let (whole, part) = (parse(whole)?, parse(&format!("{part:0<9}"))?);
    let part = u128::from(part) * u128::from(scale) / 1_000_000_000;
    u64::try_from(u128::from(whole) * u128::from(scale) + part).map_err(|_| too_large())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("256MB", 256_000_000),
            ("256 mb", 256_000_000),
            ("64KiB", 65536),
            ("1.5G", 3 << 29),
            ("8M", 8 << 20),
            ("1TB", 1_000_000_000_000),
            ("12b", 12),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for bad in [
            "",
            "MB",
            "-1",
            "1..5MB",
            "1.MB",
            "12XB",
            "1.5",
            "99999999999TB",
            "256MBs",
            "1e3",
        ] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn durations() {
        for (text, nanos) in [
            ("250ms", 250_000_000),
            ("1.5s", 1_500_000_000),
            ("5min", 300_000_000_000),
            ("50us", 50_000),
            ("0s", 0),
        ] {
            assert_eq!(
                parse_duration(text),
                Ok(Duration::from_nanos(nanos)),
                "{text}"
            );
        }
        assert!(parse_duration("300").unwrap_err().contains("300s"));
        for bad in ["", "s", "-1s", "1 fortnight", "1.5.s", "99999999999h"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
        assert_eq!(show_duration(Duration::from_millis(1500)), "1.5s");
        assert_eq!(show_duration(Duration::from_millis(250)), "250ms");
    }

    proptest! {
        #[test]
        fn what_is_shown_reads_back(n in any::<u64>(), shift in 0_u32..60) {
            let n = n >> shift;
            prop_assert_eq!(parse_size(&show_size(n)), Ok(n));
            let duration = Duration::from_nanos(n);
            prop_assert_eq!(parse_duration(&show_duration(duration)), Ok(duration));
        }

        #[test]
        fn no_text_panics(text in ".{0,24}") {
            let _ = parse_size(&text);
            let _ = parse_duration(&text);
        }
    }
}
