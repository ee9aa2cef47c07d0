//! Groups that are arranged through a store of their own, without a call of the ranks outside: PyTorch's `new_group`.

use std::{
    collections::hash_map::RandomState,
    hash::{BuildHasher, Hasher},
    time::Instant,
};

use ringway_link::shm::mapped::GroupBlock;
use ringway_plan::Rank;

use crate::{
    Communicator, Error,
    bootstrap::{
        BootstrapError, Malformed, Reader, Store, StoreError, Writer, get_reminding, missing,
    },
    communicator::Seat,
};

/// What member 0 leaves for the others: the group's id, and all seats in order.
const GROUP_KEY: &str = "ringway/group";

/// In place of a block's offset where there is none.
const NO_BLOCK: u64 = u64::MAX;

fn seat_key(member: Rank) -> String {
    format!("ringway/seat/{member}")
}

impl Communicator {
    /// Makes a communicator of `size` ranks of this one's job, of which the caller becomes `rank`. The members meet
    /// at `store`, which no other group has used; other ranks of the job need not know.
    ///
    /// # Errors
    /// The store fails, or members have not come within the setting `connect_timeout`: they are named.
    pub fn group_from(&self, store: &dyn Store, rank: Rank, size: usize) -> Result<Self, Error> {
        if rank >= size {
            return Err(Error::Argument(format!(
                "member {rank} of a group of {size}: expected a rank below {size}"
            )));
        }
        let engine = self.engine();
        let began = Instant::now();
        let deadline = began + engine.settings.values().connect_timeout;
        let block = engine.group_block()?;
        let seat = Seat {
            rank: engine.world.rank,
            block: block.as_ref().map(GroupBlock::offset),
        };
        store.set(&seat_key(rank), &write_seat(seat), deadline)?;

        let is_there = |&member: &Rank| store.get(&seat_key(member), began).is_ok();
        let absentees = || (0..size).filter(|member| !is_there(member)).collect();
        let get = |key: &str| get_reminding(store, key, deadline, &absentees);
        let absent = |error| match error {
            StoreError::Absent { .. } => {
                let absent: Vec<Rank> = absentees();
                let note = "ranks of the group that is being made".to_owned();
                Error::from(missing(size, &absent, began.elapsed(), note))
            }
            error => Error::from(error),
        };
        if rank == 0 {
            let mut all = Writer::default();
            // Groups of the same members must differ. Streams of messages have the other half of the numbers.
            all.u64(RandomState::new().build_hasher().finish() >> 1);
            for member in 0..size {
                let seat = get(&seat_key(member)).map_err(absent)?;
                all.bytes.extend_from_slice(&seat);
            }
            store.set(GROUP_KEY, &all.bytes, deadline)?;
        }
        let all = get(GROUP_KEY).map_err(absent)?;
        let found = read_group(&all, size).map_err(|error| error.to_string());
        let ranks = engine.world.size();
        let checked =
            found.and_then(
                |(id, seats)| match seats.iter().find(|seat| seat.rank >= ranks) {
                    Some(seat) => Err(format!(
                        "rank {} is beyond the job's {ranks} ranks",
                        seat.rank
                    )),
                    None if seats[rank].rank != engine.world.rank => Err(format!(
                        "member {rank} is rank {} of the job as well",
                        seats[rank].rank
                    )),
                    None => Ok((id, seats)),
                },
            );
        let place = || store.describe();
        let (id, seats) = checked.map_err(|reason| BootstrapError::Refused {
            rank,
            place: place(),
            reason,
        })?;
        let group = engine.group(id, &seats, block)?;
        Ok(Self {
            membership: self.membership.clone(),
            group,
        })
    }
}

fn write_seat(seat: Seat) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.number(seat.rank);
    writer.u64(seat.block.unwrap_or(NO_BLOCK));
    writer.bytes
}

fn read_group(bytes: &[u8], size: usize) -> Result<(u64, Vec<Seat>), Malformed> {
    let mut reader = Reader::new(bytes);
    let id = reader.u64()?;
    let mut seats = Vec::new();
    for _ in 0..size {
        let rank = reader.number()?;
        let block = Some(reader.u64()?).filter(|&offset| offset != NO_BLOCK);
        seats.push(Seat { rank, block });
    }
    reader.end()?;
    Ok((id, seats))
}
