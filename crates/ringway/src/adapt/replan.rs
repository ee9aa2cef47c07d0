//! What a change of plan was, for people.

use std::{fmt, time::Duration};

use ringway_plan::{Algorithm, Collective};

/// A group has another plan since then: links have changed, and all its ranks have agreed to do otherwise. Hosts are numbered by
/// their lowest rank, in order.
#[derive(Clone, Debug, PartialEq)]
pub struct Replan {
    /// Its number in the group. A choice by trial has one too: so the first that is told need not be 1.
    pub plan: u32,
    /// How long the group had been there.
    pub after: Duration,
    /// What measuring and agreeing took.
    pub took: Duration,
    /// By how much operations had become slower, or quicker: thousandths of their usual time. None: links had changed before, and
    /// were looked at again.
    pub thousandths: Option<u64>,
    /// Of the operations that move the most bytes.
    pub collective: Collective,
    /// Bytes of their vector.
    pub bytes: usize,
    /// How they were carried out before, and are from now on.
    pub algorithms: [Algorithm; 2],
    /// What an all-reduce of as many bytes, but of 4 MiB at most, was measured to take by the plan before, when links had changed, and by this one.
    pub times: [Duration; 2],
    /// How hosts stood side by side before, and do from now on.
    pub orders: [Vec<usize>; 2],
    /// What the slowest pair of the order before was measured to do, and what that of the new one does: from, to, bytes per second.
    pub slowest: [Option<(usize, usize, u64)>; 2],
}

impl fmt::Display for Replan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (after, took) = (self.after.as_secs_f64(), self.took.as_secs_f64());
        write!(
            f,
            "plan {} after {after:.1} s, agreed in {took:.2} s: ",
            self.plan
        )?;
        let (collective, bytes) = (self.collective, self.bytes);
        match self.thousandths {
            Some(t) => write!(
                f,
                "{collective} of {bytes} bytes took {:.2} times the usual time",
                t as f64 / 1e3
            )?,
            None => f.write_str("links were looked at again")?,
        }
        let [before, now] = self.algorithms;
        match before == now {
            true => write!(f, "; {collective} of {bytes} bytes by {now} as before")?,
            false => write!(f, "; {collective} of {bytes} bytes by {now}, not {before}")?,
        }
        let [slow, quick] = self.times.map(|time| time.as_secs_f64() * 1e3);
        write!(f, ", {quick:.2} ms, not {slow:.2}")?;
        let [before, now] = &self.orders;
        if before != now {
            let show = |order: &[usize]| {
                let hosts: Vec<String> = order.iter().map(usize::to_string).collect();
                hosts.join(" ")
            };
            write!(
                f,
                "; hosts side by side {}, not {}",
                show(now),
                show(before)
            )?;
        }
        if let [Some(before), Some(now)] = self.slowest {
            let show = |(from, to, rate): (usize, usize, u64)| {
                format!("{from} > {to} at {:.4} GB/s", rate as f64 / 1e9)
            };
            write!(
                f,
                "; slowest neighbours {}, before {}",
                show(now),
                show(before)
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_changed() {
        let replan = Replan {
            plan: 2,
            after: Duration::from_millis(61_250),
            took: Duration::from_millis(840),
            thousandths: Some(1934),
            collective: Collective::AllReduce,
            bytes: 1 << 20,
            algorithms: [Algorithm::Ring, Algorithm::Ring],
            times: [240, 180].map(Duration::from_millis),
            orders: [vec![0, 1, 2, 3], vec![0, 2, 1, 3]],
            slowest: [Some((1, 2, 5_800_000)), Some((0, 2, 11_900_000))],
        };
        assert_eq!(
            replan.to_string(),
            "plan 2 after 61.2 s, agreed in 0.84 s: all_reduce of 1048576 bytes took 1.93 times the usual time; all_reduce of \
             1048576 bytes by ring as before, 180.00 ms, not 240.00; hosts side by side 0 2 1 3, not 0 1 2 3; slowest neighbours 0 > 2 at 0.0119 GB/s, \
             before 1 > 2 at 0.0058 GB/s"
        );
        let again = Replan {
            thousandths: None,
            algorithms: [Algorithm::Ring, Algorithm::Hierarchical],
            orders: [vec![0, 1], vec![0, 1]],
            slowest: [None, None],
            ..replan
        };
        assert_eq!(
            again.to_string(),
            "plan 2 after 61.2 s, agreed in 0.84 s: links were looked at again; all_reduce of 1048576 bytes by hierarchical, not ring, \
             180.00 ms, not 240.00"
        );
    }
}
