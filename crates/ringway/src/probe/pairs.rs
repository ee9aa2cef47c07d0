//! What hosts get across to each other, each pair.

use std::time::{Duration, Instant};

use ringway_fabric::{opponent, turns};
use ringway_plan::{DataType, Rank};

use crate::{
    Communicator, Error,
    buffer::{exclusive, shared},
};

/// An exchange takes about so long.
const EXCHANGE: Duration = Duration::from_millis(30);

/// Bytes of an exchange, in each direction.
const BYTES: std::ops::RangeInclusive<usize> = 32 << 10..=16 << 20;

/// More hosts would take seconds.
const MOST_HOSTS: usize = 32;

/// Bytes per second from each host to each other, `[from][to]`, the same on all ranks. All hosts exchange at once, each with one
/// other: links that pairs share are full then. None of fewer than three hosts, which have but one order, and of many.
pub(super) fn rates(comm: &Communicator) -> Result<Option<Vec<Vec<u64>>>, Error> {
    let engine = comm.engine();
    let leaders: Vec<Rank> = engine.world.hosts().iter().map(|host| host[0]).collect();
    let hosts = leaders.len();
    if !(3..=MOST_HOSTS).contains(&hosts) {
        return Ok(None);
    }
    let me = leaders.iter().position(|&rank| rank == comm.rank());
    let rate = comm.machine().inter().rate();
    let bytes = (rate * EXCHANGE.as_secs_f64()) as usize;
    let bytes = bytes.clamp(*BYTES.start(), *BYTES.end());
    let out = vec![0_u8; bytes];
    let mut into = vec![0_u8; bytes];
    let mut mine = vec![0_u64; hosts];
    for turn in 0..turns(hosts) {
        comm.barrier()?;
        if let Some(peer) = me.and_then(|me| opponent(hosts, turn, me)) {
            // What is in buckets and windows yet is used up by a part that does not count.
            for part in [bytes / 4, bytes] {
                mine[peer] = exchange(comm, leaders[peer], &out[..part], &mut into[..part])?;
            }
        }
    }
    let mut all = vec![0; comm.size() * hosts];
    comm.all_gather(&mine, &mut all)?;
    let rate = |from: usize, to: usize| all[leaders[to] * hosts + from].max(1);
    let row = |from| (0..hosts).map(|to| rate(from, to)).collect();
    Ok(Some((0..hosts).map(row).collect()))
}

/// Sends and receives at once; bytes per second that came in.
fn exchange(comm: &Communicator, peer: Rank, out: &[u8], into: &mut [u8]) -> Result<u64, Error> {
    let began = Instant::now();
    let send = comm.start_send(shared(out), DataType::U8, peer, 0, None)?;
    let receive = comm.start_recv(exclusive(into), DataType::U8, peer, 0, None);
    // Both have ended before the memory goes, whatever became of them.
    let received = receive.and_then(|work| work.wait().map(|()| work));
    send.wait()?;
    let ended = received?.span().map_or_else(Instant::now, |span| span.1);
    let nanos = (ended - began).as_nanos().max(1);
    Ok(u64::try_from(out.len() as u128 * 1_000_000_000 / nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{Over, world_on};

    #[test]
    fn all_ranks_have_the_same_rates() {
        let hosts = ["a", "b", "b", "c"];
        let found = world_on(&hosts, Over::Messages, &[], |comm| rates(&comm).unwrap());
        assert!(found.iter().all(|rates| *rates == found[0]));
        let three = found[0].as_ref().unwrap();
        assert_eq!(three.len(), 3);
        for (from, row) in three.iter().enumerate() {
            for (to, &rate) in row.iter().enumerate() {
                assert_eq!(rate > 1, from != to, "{three:?}");
            }
        }
        let two = world_on(&["a", "b"], Over::Messages, &[], |comm| rates(&comm));
        assert!(two.into_iter().all(|rates| rates.unwrap().is_none()));
    }
}
