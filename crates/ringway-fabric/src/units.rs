//! Rates and latencies, as fabric files write them.

use std::time::Duration;

/// What is wrong with a rate or a latency.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadQuantity {
    /// No latency.
    #[error(
        "`{found}` is no latency; expected a number from 0 with its unit, such as 500ns, 1.5us or 2ms"
    )]
    Latency {
        /// What stood there.
        found: String,
    },
    /// No rate.
    #[error(
        "`{found}` is no rate; expected a number above 0 with its unit, such as 400Gbit/s (bits) or 50GB/s (bytes)"
    )]
    Rate {
        /// What stood there.
        found: String,
    },
}

/// Bytes per second, from `400Gbit/s`, `100Gb/s`, `25Gbps` or `50GB/s`: k, M, G and T are powers of 1000.
pub fn parse_rate(text: &str) -> Result<f64, BadQuantity> {
    let bad = || BadQuantity::Rate {
        found: text.to_owned(),
    };
    let (number, unit) = split(text);
    let (scale, rest) = match unit.chars().next() {
        Some('k' | 'K') => (1e3, &unit[1..]),
        Some('M') => (1e6, &unit[1..]),
        Some('G') => (1e9, &unit[1..]),
        Some('T') => (1e12, &unit[1..]),
        _ => (1.0, unit),
    };
    let bytes = match rest {
        "bit/s" | "b/s" | "bps" | "bit" => 0.125,
        "B/s" | "Bps" => 1.0,
        _ => return Err(bad()),
    };
    let rate = number.parse::<f64>().map_err(|_| bad())? * scale * bytes;
    // From a modem to a petabyte per second: what lies outside is a slip of the unit.
    (1e2..=1e15).contains(&rate).then_some(rate).ok_or_else(bad)
}

/// A duration, from `500ns`, `1.5us`, `2ms` or `1s`.
pub fn parse_latency(text: &str) -> Result<Duration, BadQuantity> {
    let bad = || BadQuantity::Latency {
        found: text.to_owned(),
    };
    let (number, unit) = split(text);
    let nanoseconds = match unit {
        "ns" => 1.0,
        "us" | "µs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return Err(bad()),
    };
    let latency = number.parse::<f64>().map_err(|_| bad())? * nanoseconds;
    (0.0..=1e13)
        .contains(&latency)
        .then(|| Duration::from_nanos(latency.round() as u64))
        .ok_or_else(bad)
}

/// `400 Gbit/s`, `12.5 Gbit/s` ...
pub fn show_rate(bytes_per_second: f64) -> String {
    let bits = bytes_per_second * 8.0;
    let (scale, unit) = match bits {
        b if b >= 1e12 => (1e12, "Tbit/s"),
        b if b >= 1e9 => (1e9, "Gbit/s"),
        b if b >= 1e6 => (1e6, "Mbit/s"),
        _ => (1e3, "kbit/s"),
    };
    format!("{} {unit}", (bits / scale * 100.0).round() / 100.0)
}

/// `600 ns`, `1.5 us` ...
pub fn show_latency(latency: Duration) -> String {
    let nanoseconds = latency.as_nanos() as f64;
    let (scale, unit) = match nanoseconds {
        n if n >= 1e9 => (1e9, "s"),
        n if n >= 1e6 => (1e6, "ms"),
        n if n >= 1e3 => (1e3, "us"),
        _ => (1.0, "ns"),
    };
    format!("{} {unit}", (nanoseconds / scale * 100.0).round() / 100.0)
}

fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    (number, unit.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_and_bytes_are_told_apart() {
        assert_eq!(parse_rate("400Gbit/s"), Ok(50e9));
        assert_eq!(parse_rate("400 Gb/s"), Ok(50e9));
        assert_eq!(parse_rate("50GB/s"), Ok(50e9));
        assert_eq!(parse_rate("2.5Mbps"), Ok(312_500.0));
        assert_eq!(
            [show_rate(50e9), show_rate(1.25e9), show_rate(2e12)],
            ["400 Gbit/s", "10 Gbit/s", "16 Tbit/s"]
        );
        for bad in [
            "400G",
            "fast",
            "-1GB/s",
            "0GB/s",
            "1e3GB/s",
            "9999999TB/s",
            "",
        ] {
            let error = parse_rate(bad).unwrap_err().to_string();
            assert!(error.contains("400Gbit/s"), "{error}");
        }
    }

    #[test]
    fn latencies_have_units() {
        assert_eq!(parse_latency("1.5us"), Ok(Duration::from_nanos(1500)));
        assert_eq!(parse_latency("0ns"), Ok(Duration::ZERO));
        assert_eq!(show_latency(Duration::from_nanos(1500)), "1.5 us");
        assert_eq!(show_latency(Duration::from_nanos(600)), "600 ns");
        for bad in ["5", "us", "5 weeks", "-1us"] {
            assert!(parse_latency(bad).is_err(), "{bad}");
        }
    }
}
