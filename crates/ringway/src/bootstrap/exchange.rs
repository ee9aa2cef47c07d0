//! Meeting through an external store: each rank leaves its description, rank 0 collects them and leaves the world.
//!
//! So n ranks make 2n writes and reads, not n^2. When a rank is missing, every rank that waits looks at what is
//! there and names it.

use std::time::Instant;

use ringway_plan::Rank;

use super::{
    BootstrapError, Member, Store, StoreError,
    book::{Book, Guest},
    join::name_ranks,
    reminder::Reminder,
    wire::{Join, Reply, Request},
};

fn member_key(rank: Rank) -> String {
    format!("ringway/member/{rank}")
}

const WORLD_KEY: &str = "ringway/world";

/// Joins the world that meets at `store`, and returns its members.
pub(super) fn meet(
    store: &dyn Store,
    me: &Join,
    deadline: Instant,
) -> Result<Vec<Member>, BootstrapError> {
    let began = Instant::now();
    let rank = me.member.rank;
    let failed = |source| BootstrapError::Store { rank, source };
    store
        .set(&member_key(rank), &me.to_value(), deadline)
        .map_err(failed)?;
    let reply = if rank == 0 {
        let reply = collect(store, me, deadline).map_err(failed)?;
        store
            .set(WORLD_KEY, &reply.encode(), deadline)
            .map_err(failed)?;
        reply
    } else {
        match get_reminding(store, WORLD_KEY, deadline, &|| absent(store, me)) {
            Ok(value) => {
                Reply::decode(&value, me.size).map_err(|error| BootstrapError::Refused {
                    rank,
                    place: store.describe(),
                    reason: format!("rank 0 left something else than a world: {error}"),
                })?
            }
            Err(StoreError::Absent { .. }) => Reply::Missing {
                ranks: absent(store, me),
                note: String::new(),
            },
            Err(source) => return Err(failed(source)),
        }
    };
    let members = super::join::settle(me, &store.describe(), began.elapsed(), reply)?;
    // A store keeps the last of two ranks with one number; the other finds itself replaced.
    match &members[rank] {
        there if there.instance() == me.member.instance() => Ok(members),
        there => Err(BootstrapError::Duplicate {
            rank,
            first: there.to_string(),
            second: me.member.to_string(),
        }),
    }
}

/// What rank 0 finds: all members, or who is missing or does not fit.
fn collect(store: &dyn Store, me: &Join, deadline: Instant) -> Result<Reply, StoreError> {
    let mut book = Book::new(me.clone());
    for rank in 0..me.size {
        let value = match get_reminding(store, &member_key(rank), deadline, &|| absent(store, me)) {
            Ok(value) => value,
            Err(StoreError::Absent { .. }) => continue,
            Err(error) => return Err(error),
        };
        let join = match Join::from_value(&value) {
            Ok(join) if join.member.rank == rank => join,
            Ok(join) => {
                let reason = format!(
                    "rank {rank} left the description of rank {}",
                    join.member.rank
                );
                return Ok(Reply::Refused { reason });
            }
            Err(error) => {
                let reason =
                    format!("rank {rank} left something else than its description: {error}");
                return Ok(Reply::Refused { reason });
            }
        };
        let now = Instant::now();
        let wait = deadline.saturating_duration_since(now);
        book.handle_request(Guest::Local(rank as u64), Request::Join { join, wait }, now);
        // Once all are there every one of them has the world for an answer; before, only a misfit has any.
        if let Some((_, reply)) = book.poll_reply() {
            return Ok(reply);
        }
    }
    book.handle_close();
    Ok(book.poll_reply().map_or_else(
        || Reply::Refused {
            reason: "rank 0 did not find its own description".to_owned(),
        },
        |(_, reply)| reply,
    ))
}

/// As [`Store::get`]; from time to time the log says who is `missing`.
pub(crate) fn get_reminding(
    store: &dyn Store,
    key: &str,
    deadline: Instant,
    missing: &dyn Fn() -> Vec<Rank>,
) -> Result<Vec<u8>, StoreError> {
    let mut reminder = Reminder::new(Instant::now());
    loop {
        match store.get(key, deadline.min(reminder.next())) {
            Err(StoreError::Absent { .. }) if Instant::now() < deadline => {}
            end => return end,
        }
        let now = Instant::now();
        if let Some(lasted) = reminder.due(now)
            && let ranks = missing()
            && !ranks.is_empty()
        {
            let (ranks, left) = (name_ranks(&ranks), deadline.saturating_duration_since(now));
            tracing::warn!(
                "{ranks} not here after {lasted:.0?}: this rank waits {left:.0?} longer"
            );
        }
    }
}

/// The ranks that have not left their description; for those that wait for them.
fn absent(store: &dyn Store, me: &Join) -> Vec<Rank> {
    let is_there = |rank| store.get(&member_key(rank), Instant::now()).is_ok();
    (0..me.size)
        .filter(|&rank| rank != me.member.rank && !is_there(rank))
        .collect()
}
