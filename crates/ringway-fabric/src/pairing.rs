//! Turns in which hosts meet in pairs, to measure what is between each two.

/// In so many turns each host meets each other.
pub const fn turns(hosts: usize) -> usize {
    match hosts % 2 {
        0 => hosts.saturating_sub(1),
        _ => hosts,
    }
}

/// Whom host `me` of `hosts` meets in a turn: the last of an even number stays, the others go round. Of an odd number one rests.
pub fn opponent(hosts: usize, turn: usize, me: usize) -> Option<usize> {
    let turns = turns(hosts);
    if turns == 0 {
        return None;
    }
    let partner = if me == turns {
        // Who is opposite of the one that stays: 2 x = turn.
        (turn * turns.div_ceil(2)) % turns
    } else {
        let other = (turns + turn % turns - me % turns) % turns;
        if other == me { turns } else { other }
    };
    (partner < hosts && partner != me).then_some(partner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_host_meets_each_other_once() {
        for hosts in 0..=9 {
            let mut met = vec![vec![0; hosts]; hosts];
            for turn in 0..turns(hosts) {
                for (me, row) in met.iter_mut().enumerate() {
                    if let Some(peer) = opponent(hosts, turn, me) {
                        assert_eq!(opponent(hosts, turn, peer), Some(me), "{hosts} {turn}");
                        row[peer] += 1;
                    }
                }
            }
            for (me, row) in met.iter().enumerate() {
                for (peer, &times) in row.iter().enumerate() {
                    assert_eq!(times, usize::from(me != peer), "{hosts}: {me} and {peer}");
                }
            }
        }
    }
}
