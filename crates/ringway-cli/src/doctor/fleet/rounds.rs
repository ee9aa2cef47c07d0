//! Who is measured with whom, and when.

/// The most rounds: more pairs tell no more about a host than these.
const MOST: usize = 16;

/// Pairs of `hosts` by rounds: in a round no host is in two pairs, and no pair comes twice. All pairs if there are few hosts,
/// else each host with 16 others.
///
/// The circle method of tournaments: one host stays, the others go round.
pub(super) fn rounds(hosts: usize) -> Vec<Vec<(usize, usize)>> {
    // With an odd number one sits out in each round: who would meet this one.
    let seats = hosts.next_multiple_of(2);
    let turns = seats.saturating_sub(1);
    (0..turns.min(MOST))
        .map(|turn| {
            let at = |seat: usize| {
                if seat == 0 {
                    0
                } else {
                    1 + (seat - 1 + turn) % turns
                }
            };
            let pairs = (0..seats / 2).map(|seat| {
                let (a, b) = (at(seat), at(seats - 1 - seat));
                (a.min(b), a.max(b))
            });
            pairs.filter(|(_, b)| *b < hosts).collect()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_pair_once_and_no_host_twice_in_a_round() {
        for hosts in 0..=MOST {
            let rounds = rounds(hosts);
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
        let rounds = rounds(1000);
        assert_eq!(rounds.len(), MOST);
        assert!(rounds.iter().all(|round| round.len() == 500));
    }
}
