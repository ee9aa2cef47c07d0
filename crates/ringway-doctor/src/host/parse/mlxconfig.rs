//! Settings of a ConnectX card's firmware, from `mlxconfig -d PCI-ADDRESS query` or mstconfig.

use std::collections::BTreeMap;

/// Values by name, as they stand for the next boot: numbers as they are, `True(1)` and `ALL(2)` as the number in brackets.
pub fn mlxconfig(output: &str) -> BTreeMap<String, i64> {
    output
        .lines()
        .filter_map(|line| {
            // With -e there are the columns default, current and next boot.
            let mut words = line.trim_start_matches(['*', ' ', '\t']).split_whitespace();
            let name = words.next()?;
            let value = words.next_back()?;
            let number = match value.split_once('(') {
                Some((_, number)) => number.trim_end_matches(')'),
                None => value,
            };
            let is_name = name
                .bytes()
                .all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == b'_');
            Some((name.to_owned(), number.parse().ok()?)).filter(|_| is_name)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_with_and_without_columns() {
        let output = "Device #1:\n----------\n\nConfigurations:                              Next Boot\n        \
                      LLDP_NB_DCBX_P1                             False(0)            \n        \
                      CNP_DSCP_P1                                 48                  \n*        \
                      DCBX_WILLING_P1    True(1)    False(0)     True(1)\n";
        let values = mlxconfig(output);
        assert_eq!(values["LLDP_NB_DCBX_P1"], 0);
        assert_eq!(values["CNP_DSCP_P1"], 48);
        assert_eq!(values["DCBX_WILLING_P1"], 1);
        assert_eq!(values.len(), 3);
    }
}
