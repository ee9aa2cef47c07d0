//! What a barrier promises.

use super::{error::VerifyError, graph::Graph, order::Order};
use crate::schedule::{Op, Rank};

/// Checks that every rank's last step comes after every rank's first: the promise of a barrier.
pub(super) fn entered(graph: &Graph<'_>, order: &Order) -> Result<(), VerifyError> {
    let ranks = graph.schedule.ranks();
    let words = ranks.div_ceil(64);
    let mut known = vec![0u64; graph.len() * words];
    let mut leaving = vec![0u64; ranks * words];
    for &step in &order.steps {
        let step = step as usize;
        let rank = graph.rank(step);
        let mut mine = vec![0u64; words];
        mine[rank / 64] |= 1 << (rank % 64);
        let after = graph
            .step(step)
            .after
            .iter()
            .map(|&at| graph.number(rank, at));
        let sender = match graph.step(step).op {
            Op::Send { .. } => None,
            _ => graph.partner(step),
        };
        for before in after.chain(sender) {
            for (word, mine) in mine.iter_mut().enumerate() {
                *mine |= known[before * words + word];
            }
        }
        for (word, mine) in mine.into_iter().enumerate() {
            known[step * words + word] = mine;
            leaving[rank * words + word] |= mine;
        }
    }
    for rank in 0..ranks {
        let has = |other: Rank| leaving[rank * words + other / 64] >> (other % 64) & 1 == 1;
        if let Some(missing) = (0..ranks).find(|&other| other != rank && !has(other)) {
            let of_rank = |&&step: &&u32| graph.rank(step as usize) == rank;
            let last = match order.steps.iter().rev().find(of_rank) {
                Some(&step) => graph.site(step as usize, 0).to_string(),
                None => "not there, since it has no steps".to_owned(),
            };
            return Err(VerifyError::Barrier {
                rank,
                missing,
                last,
            });
        }
    }
    Ok(())
}
