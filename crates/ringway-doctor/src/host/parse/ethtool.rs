//! Outputs of ethtool.

use std::collections::BTreeMap;

/// Pause frames of the whole link (IEEE 802.3x).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// Whether both ends agree about them; not all drivers tell.
    pub autoneg: Option<bool>,
    /// Whether they are heeded.
    pub rx: bool,
    /// Whether they are sent.
    pub tx: bool,
}

/// From `ethtool -a`.
pub fn pause(output: &str) -> Option<Pause> {
    let state = |name: &str| {
        let value = output
            .lines()
            .find_map(|line| line.trim().strip_prefix(name))?;
        match value.trim() {
            "on" => Some(true),
            "off" => Some(false),
            _ => None,
        }
    };
    Some(Pause {
        autoneg: state("Autonegotiate:"),
        rx: state("RX:")?,
        tx: state("TX:")?,
    })
}

/// Counters by name, from `ethtool -S`.
pub fn statistics(output: &str) -> BTreeMap<String, u64> {
    output
        .lines()
        .filter_map(|line| {
            let (name, value) = line.trim().rsplit_once(':')?;
            Some((name.trim().to_owned(), value.trim().parse().ok()?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pause_and_statistics() {
        let output = "Pause parameters for eth0:\nAutonegotiate:\toff\nRX:\t\ton\nTX:\t\toff\n\n";
        assert_eq!(
            pause(output),
            Some(Pause {
                autoneg: Some(false),
                rx: true,
                tx: false
            })
        );
        assert_eq!(pause("Pause parameters for eth0:\n"), None);
        let output = "NIC statistics:\n     rx_prio3_pause: 17\n     rx_queue: x\n";
        let expected = BTreeMap::from([("rx_prio3_pause".to_owned(), 17)]);
        assert_eq!(statistics(output), expected);
    }
}
