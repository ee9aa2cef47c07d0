//! Racks, from how fast hosts exchange messages while all others do, too.

/// Two pairs of hosts differ if one is so many times as fast as the other.
const GAP: f64 = 1.25;

/// The part of a rack's pairs that must be fast. Some may have met others on their way.
const AGREE: f64 = 0.75;

/// For each host the number of its rack, from 0, in the order of hosts; `None` if rates do not part hosts into several
/// racks. `rates[a][b]` is what a and b reached, in any unit.
///
/// Pairs of a rack share no link with others, so that there is a gap between their rates and those of the rest: the widest gap
/// by which hosts fall into groups of which nearly all pairs are fast.
pub(super) fn racks(rates: &[Vec<f64>]) -> Option<Vec<usize>> {
    let hosts = rates.len();
    let rate = |a: usize, b: usize| rates[a][b].min(rates[b][a]);
    let pairs = (0..hosts).flat_map(|a| (0..a).map(move |b| (a, b)));
    let mut sorted: Vec<f64> = pairs.map(|(a, b)| rate(a, b)).collect();
    sorted.sort_by(|a, b| b.total_cmp(a));
    let mut gaps: Vec<(f64, f64)> = sorted
        .windows(2)
        .filter(|pair| pair[1] > 0.0 && pair[0] >= GAP * pair[1])
        .map(|pair| (pair[0] / pair[1], pair[0]))
        .collect();
    gaps.sort_by(|a, b| b.0.total_cmp(&a.0));
    gaps.into_iter().find_map(|(_, least)| {
        let racks = joined(hosts, |a, b| rate(a, b) >= least);
        let count = racks.iter().max()? + 1;
        let fast = |rack: usize| {
            let members: Vec<usize> = (0..hosts).filter(|&h| racks[h] == rack).collect();
            let pairs = members.len() * (members.len() - 1) / 2;
            let within = members
                .iter()
                .enumerate()
                .flat_map(|(at, &a)| members[..at].iter().filter(move |&&b| rate(a, b) >= least));
            within.count() as f64 >= AGREE * pairs as f64
        };
        (count > 1 && count < hosts && (0..count).all(fast)).then_some(racks)
    })
}

/// Hosts that are joined by pairs, numbered from 0.
fn joined(hosts: usize, is_joined: impl Fn(usize, usize) -> bool) -> Vec<usize> {
    let mut groups = vec![usize::MAX; hosts];
    let mut count = 0;
    for first in 0..hosts {
        if groups[first] != usize::MAX {
            continue;
        }
        groups[first] = count;
        let mut reached = vec![first];
        while let Some(at) = reached.pop() {
            for (other, group) in groups.iter_mut().enumerate() {
                if *group == usize::MAX && is_joined(at, other) {
                    *group = count;
                    reached.push(other);
                }
            }
        }
        count += 1;
    }
    groups
}

/// The middle of some values, 0 without any.
pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(racks: &[usize], within: f64, across: f64) -> Vec<Vec<f64>> {
        let rate = |a: usize, b: usize| {
            // Some per cent of noise, the same each time.
            let noise = 1.0 + ((a * 7 + b * 7) % 11) as f64 / 100.0;
            noise * if racks[a] == racks[b] { within } else { across }
        };
        let row = |a| (0..racks.len()).map(|b| rate(a, b)).collect();
        (0..racks.len()).map(row).collect()
    }

    #[test]
    fn hosts_of_a_rack_are_found_in_any_order() {
        for truth in [
            vec![0, 0, 1, 1],
            vec![0, 1, 0, 1],
            vec![0, 1, 2, 0, 1, 2, 0, 1],
            vec![0, 1, 1, 1, 1, 2],
        ] {
            assert_eq!(racks(&rates(&truth, 100.0, 55.0)), Some(truth));
        }
    }

    #[test]
    fn what_collided_on_the_way_does_not_part_a_rack() {
        let truth = [0, 0, 0, 0, 1, 1, 1, 1];
        let mut measured = rates(&truth, 100.0, 50.0);
        (measured[0][4], measured[4][0]) = (25.0, 25.0);
        (measured[1][2], measured[2][1]) = (60.0, 60.0);
        assert_eq!(racks(&measured), Some(truth.to_vec()));
    }

    #[test]
    fn without_a_gap_there_are_no_racks() {
        assert_eq!(racks(&rates(&[0; 6], 100.0, 100.0)), None);
        assert_eq!(racks(&rates(&[0, 1], 100.0, 50.0)), None);
        // One slow host is no rack of the others' kind, but it is apart.
        assert_eq!(
            racks(&rates(&[0, 0, 0, 1], 100.0, 50.0)),
            Some(vec![0, 0, 0, 1])
        );
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
    }
}
