//! Who is measured with whom, and when.

use std::collections::BTreeSet;

use ringway_fabric::{opponent, turns};

/// The most turns of all: more pairs tell no more about a host than these.
const TURNS: usize = 16;

/// The most rounds that containers of few machines may take for them.
const ROUNDS: usize = 64;

/// Pairs of hosts that are measured at once.
type Round = Vec<(usize, usize)>;

/// Pairs of hosts by rounds, given the machine that each is on. In a round no machine is in two pairs, as its containers share
/// processors and NICs and would measure each other; and no pair comes twice. All pairs if there are 16 hosts at most, else
/// each host with 15 or 16 others, or with fewer if machines have many.
pub(super) fn rounds(machines: &[u64]) -> Vec<Round> {
    let hosts = machines.len();
    let mut rounds: Vec<Round> = Vec::new();
    for turn in 0..turns(hosts).min(TURNS) {
        let mut parts: Vec<(BTreeSet<u64>, Round)> = Vec::new();
        let pairs = (0..hosts).filter_map(|a| Some((a, opponent(hosts, turn, a)?)));
        for (a, b) in pairs.filter(|(a, b)| a < b) {
            let both = [machines[a], machines[b]];
            let free = |(busy, _): &&mut (BTreeSet<u64>, Round)| {
                both.iter().all(|machine| !busy.contains(machine))
            };
            match parts.iter_mut().find(free) {
                Some((busy, pairs)) => {
                    busy.extend(both);
                    pairs.push((a, b));
                }
                None => parts.push((both.into(), vec![(a, b)])),
            }
        }
        if !rounds.is_empty() && rounds.len() + parts.len() > ROUNDS {
            break;
        }
        rounds.extend(parts.into_iter().map(|(_, pairs)| pairs));
    }
    rounds
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each host on a machine of its own.
    fn machines(hosts: usize) -> Vec<u64> {
        (0..hosts as u64).collect()
    }

    #[test]
    fn every_pair_once_and_no_host_twice_in_a_round() {
        for hosts in 0..=TURNS {
            let rounds = rounds(&machines(hosts));
            let mut all = BTreeSet::new();
            for round in &rounds {
                let busy: BTreeSet<usize> = round.iter().flat_map(|(a, b)| [*a, *b]).collect();
                assert_eq!(busy.len(), 2 * round.len(), "{hosts}: {round:?}");
                assert!(busy.iter().all(|host| *host < hosts));
                for pair in round {
                    assert!(all.insert(*pair), "{hosts}: {pair:?} twice");
                }
            }
            let pairs = hosts * hosts.saturating_sub(1) / 2;
            assert_eq!(all.len(), pairs, "{hosts}");
        }
    }

    #[test]
    fn many_hosts_meet_some_others_each() {
        let rounds = rounds(&machines(1000));
        assert_eq!(rounds.len(), TURNS);
        assert!(rounds.iter().all(|round| round.len() == 500));
    }

    #[test]
    fn containers_of_a_machine_are_not_measured_at_once() {
        // Two on each of four machines: what is between two of one machine takes it whole.
        let machines: Vec<u64> = (0..8).map(|host| host / 2).collect();
        let rounds = rounds(&machines);
        let mut all = BTreeSet::new();
        for round in &rounds {
            let mut busy = BTreeSet::new();
            for &(a, b) in round {
                assert!(all.insert((a, b)));
                let both: BTreeSet<u64> = [machines[a], machines[b]].into();
                assert!(both.iter().all(|it| busy.insert(*it)), "{round:?}");
            }
        }
        assert_eq!(all.len(), 28);
        // All on one, as in a lab: one pair at a time, each host in some, and not for ever.
        for hosts in [2, 5, 64, 300] {
            let rounds = super::rounds(&vec![7; hosts]);
            assert!(rounds.iter().all(|round| round.len() == 1), "{hosts}");
            let met: BTreeSet<usize> = rounds
                .iter()
                .flatten()
                .flat_map(|(a, b)| [*a, *b])
                .collect();
            assert_eq!(met.len(), hosts);
            assert!(
                rounds.len() <= ROUNDS.max(hosts / 2),
                "{hosts}: {}",
                rounds.len()
            );
        }
    }
}
