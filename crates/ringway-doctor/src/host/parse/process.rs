//! Files of /proc/PID.

use std::{collections::BTreeMap, fmt};

/// How much memory a process may lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locked {
    /// As much as it wants.
    Unlimited,
    /// So many bytes.
    Bytes(u64),
}

impl fmt::Display for Locked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unlimited => f.write_str("unlimited"),
            Self::Bytes(bytes) => write!(f, "{bytes} bytes"),
        }
    }
}

/// The soft and hard limit of locked memory in /proc/PID/limits: `Max locked memory   8388608   8388608   bytes`.
pub fn locked_memory(limits: &str) -> Option<(Locked, Locked)> {
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max locked memory"))?;
    let mut words = line.split_whitespace().map(|word| match word {
        "unlimited" => Some(Locked::Unlimited),
        number => number.parse().ok().map(Locked::Bytes),
    });
    Some((words.next()??, words.next()??))
}

/// The value of a line `name: value` of /proc/PID/status or /proc/meminfo.
pub fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let rest = text
        .lines()
        .find_map(|line| line.trim_start().strip_prefix(name)?.strip_prefix(':'))?;
    Some(rest.trim())
}

/// The effective capabilities in /proc/PID/status, a bit for each.
pub fn capabilities(status: &str) -> Option<u64> {
    u64::from_str_radix(field(status, "CapEff")?, 16).ok()
}

/// The variables in /proc/PID/environ.
pub fn environment(bytes: &[u8]) -> BTreeMap<String, String> {
    bytes
        .split(|&byte| byte == 0)
        .filter_map(|variable| {
            let text = String::from_utf8_lossy(variable);
            let (name, value) = text.split_once('=')?;
            // A recording ends each file with a new line.
            Some((name.trim().to_owned(), value.trim().to_owned()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_capabilities_and_variables() {
        let limits =
            "Limit  Soft  Hard  Units\nMax locked memory         65536    unlimited   bytes     \n";
        let expected = Some((Locked::Bytes(65536), Locked::Unlimited));
        assert_eq!(locked_memory(limits), expected);
        assert_eq!(locked_memory("Max locked memory many"), None);
        assert_eq!(capabilities("CapEff:\t0000000000004000\n"), Some(1 << 14));
        let variables = environment(b"A=1\0NCCL_IB_TC=106\0broken\0");
        assert_eq!(variables["NCCL_IB_TC"], "106");
        assert_eq!(variables.len(), 2);
    }
}
