//! Outputs of ethtool.

use std::collections::BTreeMap;

/// Whether the interface heeds and sends pause frames of the whole link (IEEE 802.3x), from `ethtool -a`.
pub fn pause(output: &str) -> Option<(bool, bool)> {
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
    Some((state("RX:")?, state("TX:")?))
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
        assert_eq!(pause(output), Some((true, false)));
        assert_eq!(pause("Pause parameters for eth0:\n"), None);
        let output = "NIC statistics:\n     rx_prio3_pause: 17\n     rx_queue: x\n";
        let expected = BTreeMap::from([("rx_prio3_pause".to_owned(), 17)]);
        assert_eq!(statistics(output), expected);
    }
}
