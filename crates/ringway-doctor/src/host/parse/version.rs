//! Versions of kernels, drivers and firmware.

use std::fmt;

/// The numbers of a version, the first first; what follows them is left out.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(Vec<u64>);

impl Version {
    /// From `6.1.0-22-amd64`, `450.80.02`, `22.35.1012 (MT_0000000223)`.
    pub fn parse(text: &str) -> Option<Self> {
        let end = text
            .find(|c: char| c != '.' && !c.is_ascii_digit())
            .unwrap_or(text.len());
        let numbers: Option<Vec<u64>> = text[..end]
            .trim_end_matches('.')
            .split('.')
            .map(|part| part.parse().ok())
            .collect();
        numbers.map(Self)
    }

    /// Whether it is older than `numbers`.
    pub fn before(&self, numbers: &[u64]) -> bool {
        self.0.as_slice() < numbers
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, number) in self.0.iter().enumerate() {
            write!(f, "{}{number}", if i == 0 { "" } else { "." })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_by_number() {
        let parse = |text| Version::parse(text).unwrap();
        assert!(parse("450.51.06").before(&[450, 80, 2]));
        assert!(!parse("450.80.02").before(&[450, 80, 2]));
        assert!(!parse("1000.1").before(&[450, 80, 2]));
        assert!(parse("5.4.0-150-generic").before(&[5, 12]));
        assert!(!parse("6.1.0-22-amd64").before(&[5, 12]));
        assert_eq!(Version::parse("unknown"), None);
        assert_eq!(Version::parse("99999999999999999999999.1"), None);
    }
}
