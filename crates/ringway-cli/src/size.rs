//! Sizes in bytes, and times in seconds, as users write and read them.

/// More than any vector has; times of more would not fit in 64 bits of picoseconds on slow links.
const LARGEST: u64 = 1 << 50;

/// From `4`, `64K`, `64KiB`, `1M`, `256MB`, `1G` ...: K, M and G are powers of 1024, as in nccl-tests; KB, MB, GB of 1000.
pub(crate) fn parse(text: &str) -> Result<usize, String> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let scale: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        _ => {
            return Err(format!(
                "`{text}` has no unit that is known: expected bytes, or K, M, G, KB, MB, GB, KiB, MiB, GiB"
            ));
        }
    };
    let bytes = match number.parse::<u64>() {
        Ok(number) => number.checked_mul(scale),
        Err(_) => number
            .parse::<f64>()
            .ok()
            .map(|number| (number * scale as f64) as u64),
    };
    let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok());
    match bytes {
        Some(bytes) if bytes as u64 <= LARGEST => Ok(bytes),
        Some(_) => Err(format!("`{text}`: expected 1 PiB (1048576G) at most")),
        None => Err(format!(
            "`{text}` is no size: expected a number of bytes such as 1048576, 64K or 256MB"
        )),
    }
}

/// As [`parse`], of what there must be something of.
pub(crate) fn positive(text: &str) -> Result<usize, String> {
    match parse(text)? {
        0 => Err(
            "expected at least 1 byte; `ringway bench barrier` measures what carries no data"
                .to_owned(),
        ),
        bytes => Ok(bytes),
    }
}

/// A number of things, of which there must be one at least.
pub(crate) fn count(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|&count| count > 0)
        .ok_or_else(|| "expected a whole number from 1".to_owned())
}

/// A positive number of seconds, from 0.5, 2 ...
pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|&seconds: &f64| seconds > 0.0 && seconds <= 1e9)
        .ok_or_else(|| {
            "expected a number of seconds that is more than 0 and at most 1e9, such as 0.5"
                .to_owned()
        })
}

/// `4`, `64K`, `1M` where that is exact, else bytes.
pub(crate) fn show(bytes: usize) -> String {
    for (shift, unit) in [(30, "G"), (20, "M"), (10, "K")] {
        if bytes >= 1 << shift && bytes.is_multiple_of(1 << shift) {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is more than a `Duration` holds would end in a panic.
    #[test]
    fn seconds_can_be_waited_for() {
        assert_eq!(seconds("0.5"), Ok(0.5));
        for bad in ["0", "-1", "nan", "inf", "1e10", "1e300"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_as_users_write_them() {
        assert_eq!(parse("4"), Ok(4));
        assert_eq!(parse("64K"), Ok(65536));
        assert_eq!(parse("1.5MiB"), Ok(3 << 19));
        assert_eq!(parse("25MB"), Ok(25_000_000));
        for bad in [
            "",
            "K",
            "1T",
            "-4",
            "1e99999999999999999999K",
            "99999999999G",
            "1048577G",
            "9223372036854775807",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert_eq!(
            [show(4), show(65536), show(1 << 20), show(1025)],
            ["4", "64K", "1M", "1025"]
        );
    }
}
