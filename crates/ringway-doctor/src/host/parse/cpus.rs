//! Sets of CPUs as the kernel writes them: `0-3,8`.

use std::{collections::BTreeSet, fmt};

/// More than any kernel is built for (CONFIG_NR_CPUS).
const MOST: u32 = 1 << 14;

/// A set of CPUs, or of NUMA nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuSet(BTreeSet<u32>);

impl CpuSet {
    /// From a list such as `0-3,8`; what is no number is left out.
    pub fn parse(list: &str) -> Self {
        let mut set = BTreeSet::new();
        for part in list.trim().split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            if let (Ok(first), Ok(last)) = (first.trim().parse(), last.trim().parse::<u32>()) {
                set.extend(first..=last.min(MOST));
            }
        }
        Self(set)
    }

    /// Whether there is none in it.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether one is in both.
    pub fn meets(&self, other: &Self) -> bool {
        !self.0.is_disjoint(&other.0)
    }

    /// Whether all are in the other, too.
    pub fn within(&self, other: &Self) -> bool {
        self.0.is_subset(&other.0)
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts: Vec<(u32, u32)> = Vec::new();
        for &cpu in &self.0 {
            match parts.last_mut() {
                Some((_, last)) if *last + 1 == cpu => *last = cpu,
                _ => parts.push((cpu, cpu)),
            }
        }
        for (i, (first, last)) in parts.into_iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            if first == last {
                write!(f, "{comma}{first}")?;
            } else {
                write!(f, "{comma}{first}-{last}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_as_the_kernel_writes_them() {
        let set = CpuSet::parse("0-3,8,10-11\n");
        assert_eq!((set.len(), set.to_string().as_str()), (7, "0-3,8,10-11"));
        assert!(set.meets(&CpuSet::parse("3-7")) && !set.meets(&CpuSet::parse("4-7")));
        assert!(CpuSet::parse("1-2").within(&set));
        assert!(CpuSet::parse("").is_empty() && CpuSet::parse("-,x,3-1").is_empty());
        assert!(CpuSet::parse("0-4294967295").len() <= MOST as usize + 1);
    }
}
