//! Ranks as threads of the test, and their collectives in memory.

use std::{
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

use half::{bf16, f16};
use ringway_codec::{Values, Wire, WireError};
use ringway_plan::Collective;

/// Where ranks meet.
struct Table {
    ranks: usize,
    round: Mutex<Round>,
    turned: Condvar,
}

#[derive(Default)]
struct Round {
    number: u64,
    posted: Vec<Option<Vec<u8>>>,
    complete: Arc<Vec<Vec<u8>>>,
}

/// A rank's place at the table.
pub(crate) struct Seat {
    rank: usize,
    table: Arc<Table>,
    /// What a collective costs in [`Wire::time`], for each byte of its vector.
    pub(crate) picoseconds_per_byte: u64,
    /// Bytes that this rank has sent.
    pub(crate) sent: usize,
}

/// Runs `body` as every rank.
pub(crate) fn world<R: Send>(ranks: usize, body: impl Fn(&mut Seat) -> R + Sync) -> Vec<R> {
    let table = Arc::new(Table {
        ranks,
        round: Mutex::default(),
        turned: Condvar::new(),
    });
    std::thread::scope(|scope| {
        let run = |rank| {
            let (table, body) = (table.clone(), &body);
            let mut seat = Seat {
                rank,
                table,
                picoseconds_per_byte: 1000,
                sent: 0,
            };
            scope.spawn(move || body(&mut seat))
        };
        let threads: Vec<_> = (0..ranks).map(run).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    })
}

impl Seat {
    /// Posts bytes, and returns all ranks'.
    fn meet(&self, bytes: Vec<u8>) -> Arc<Vec<Vec<u8>>> {
        let table = &self.table;
        let mut round = table.round.lock().unwrap();
        let number = round.number;
        round.posted.resize(table.ranks, None);
        round.posted[self.rank] = Some(bytes);
        if round.posted.iter().all(Option::is_some) {
            let posted = std::mem::take(&mut round.posted);
            round.complete = Arc::new(posted.into_iter().flatten().collect());
            round.number += 1;
            table.turned.notify_all();
            return round.complete.clone();
        }
        let patience = Duration::from_secs(60);
        let waiting = |round: &mut Round| round.number == number;
        let (round, waited) = table
            .turned
            .wait_timeout_while(round, patience, waiting)
            .unwrap();
        assert!(
            !waited.timed_out(),
            "rank {} waits for a collective of the others",
            self.rank
        );
        round.complete.clone()
    }

    fn sum(&self, mine: &[f32]) -> Vec<f32> {
        let bytes = mine.iter().flat_map(|x| x.to_le_bytes()).collect();
        let all = self.meet(bytes);
        let mut sum = vec![0.0; mine.len()];
        for theirs in all.iter() {
            assert_eq!(theirs.len(), 4 * mine.len());
            for (sum, x) in sum.iter_mut().zip(theirs.chunks_exact(4)) {
                *sum += f32::from_le_bytes(x.try_into().unwrap());
            }
        }
        sum
    }
}

impl Wire for Seat {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.table.ranks
    }

    fn all_reduce(&mut self, values: Values<'_>) -> Result<(), WireError> {
        match values {
            Values::F32(values) => {
                self.sent += 8 * values.len();
                let sum = self.sum(values);
                values.copy_from_slice(&sum);
            }
            Values::F16(values) => {
                self.sent += 4 * values.len();
                let wide: Vec<f32> = values.iter().map(|x| x.to_f32()).collect();
                let sum = self.sum(&wide);
                values
                    .iter_mut()
                    .zip(sum)
                    .for_each(|(x, sum)| *x = f16::from_f32(sum));
            }
            Values::Bf16(values) => {
                self.sent += 4 * values.len();
                let wide: Vec<f32> = values.iter().map(|x| x.to_f32()).collect();
                let sum = self.sum(&wide);
                values
                    .iter_mut()
                    .zip(sum)
                    .for_each(|(x, sum)| *x = bf16::from_f32(sum));
            }
        }
        Ok(())
    }

    fn all_to_all(&mut self, send: &[u8], receive: &mut [u8]) -> Result<(), WireError> {
        let each = vec![send.len() / self.ranks(); self.ranks()];
        self.all_to_all_v(send, &each, receive, &each)
    }

    fn all_to_all_v(
        &mut self,
        send: &[u8],
        counts: &[usize],
        receive: &mut [u8],
        expected: &[usize],
    ) -> Result<(), WireError> {
        assert_eq!(counts.iter().sum::<usize>(), send.len());
        assert_eq!(expected.iter().sum::<usize>(), receive.len());
        self.sent += send.len();
        let mut message: Vec<u8> = counts
            .iter()
            .flat_map(|&n| (n as u64).to_le_bytes())
            .collect();
        message.extend_from_slice(send);
        let all = self.meet(message);
        let mut end = 0;
        for (theirs, &expected) in all.iter().zip(expected) {
            let (counts, data) = theirs.split_at(8 * self.table.ranks);
            let counts = counts
                .chunks_exact(8)
                .map(|n| u64::from_le_bytes(n.try_into().unwrap()) as usize);
            let counts: Vec<usize> = counts.collect();
            let start: usize = counts[..self.rank].iter().sum();
            assert_eq!(counts[self.rank], expected);
            receive[end..end + expected].copy_from_slice(&data[start..start + expected]);
            end += expected;
        }
        Ok(())
    }

    fn all_gather(&mut self, send: &[u8], receive: &mut [u8]) -> Result<(), WireError> {
        let each = vec![send.len(); self.ranks()];
        self.all_gather_v(send, receive, &each)
    }

    fn all_gather_v(
        &mut self,
        send: &[u8],
        receive: &mut [u8],
        counts: &[usize],
    ) -> Result<(), WireError> {
        self.sent += send.len() * (self.ranks() - 1);
        let all = self.meet(send.to_vec());
        let mut end = 0;
        for (theirs, &count) in all.iter().zip(counts) {
            assert_eq!(theirs.len(), count);
            receive[end..end + count].copy_from_slice(theirs);
            end += count;
        }
        assert_eq!(end, receive.len());
        Ok(())
    }

    fn time(&self, _collective: Collective, bytes: usize) -> Duration {
        Duration::from_nanos(bytes as u64 * self.picoseconds_per_byte / 1000)
    }
}
