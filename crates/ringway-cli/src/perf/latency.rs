//! Latency: one request under way.

use std::time::Instant;

use anyhow::Result;
use ringway_sys::Shared8;

use super::{
    control::Control,
    end::End,
    test::{Operation, Run},
};

/// How often memory is looked at before the device is, which takes longer: a device that moves data only while it is polled,
/// and one that is looked at for failures alone.
const LOOKS: u32 = 16;
const LOOKS_ALONE: u32 = 4096;

/// Measures WRITE or SEND: the client's message is answered by the server's of the same length. Returns the client's
/// times in microseconds: half of each round trip, as perftest has it. For a WRITE both look at the last byte of memory,
/// for a SEND at completions.
pub(super) fn ping_pong(
    end: &mut End,
    control: &mut Control,
    run: Run,
    client: bool,
) -> Result<Vec<f64>> {
    if !client {
        for round in 1..=run.iterations {
            wait_for(end, control, round)?;
            end.ask_marked(round as u8)?;
            wait_until_done(end, control, round)?;
        }
        return Ok(Vec::new());
    }
    let mut rounds = Rounds::begin(run);
    for round in 1..=run.iterations {
        end.ask_marked(round as u8)?;
        // Its bytes may be changed once it is done. The answer comes later than that, or hardly sooner, and nothing is left to do
        // when it comes.
        wait_until_done(end, control, round)?;
        wait_for(end, control, round)?;
        rounds.ended();
    }
    Ok(rounds.times(0.5))
}

/// Measures READ or atomic operations: from the request to its completion, in microseconds.
pub(super) fn fetch(end: &mut End, control: &mut Control, run: Run) -> Result<Vec<f64>> {
    let mut rounds = Rounds::begin(run);
    for round in 1..=run.iterations {
        end.ask(0, true)?;
        wait_until_done(end, control, round)?;
        rounds.ended();
    }
    Ok(rounds.times(1.0))
}

/// When rounds ended, each of which begins where the one before has ended: the clock is read once a round, as by perftest,
/// for what reading it takes is a part of the time.
struct Rounds(Vec<Instant>);

impl Rounds {
    fn begin(run: Run) -> Self {
        let mut marks = Vec::with_capacity(run.iterations as usize + 1);
        marks.push(Instant::now());
        Self(marks)
    }

    fn ended(&mut self) {
        self.0.push(Instant::now());
    }

    /// Of each round this share, in microseconds.
    fn times(&self, share: f64) -> Vec<f64> {
        let each = self.0.windows(2);
        each.map(|two| (two[1] - two[0]).as_secs_f64() * 1e6 * share)
            .collect()
    }
}

/// Before a run, so that what an earlier one has left isn't taken for the first message: that ends with a 1.
pub(super) fn clear_mark(end: &End, run: Run) {
    let last = run.bytes as usize - 1;
    end.incoming(0).slice(last..last + 1).write(&[0]);
}

fn wait_for(end: &mut End, control: &mut Control, round: u64) -> Result<()> {
    if end.test().operation == Operation::Send {
        while end.arrived(0) < round {
            end.turn(control)?;
        }
        return Ok(());
    }
    let memory = end.incoming(0);
    let last = Shared8::at(memory, memory.len() - 1);
    let looks = match end.device.limits().answers_alone {
        true => LOOKS_ALONE,
        false => LOOKS,
    };
    loop {
        if (0..looks).any(|_| last.load() == round as u8) {
            end.has_moved();
            return Ok(());
        }
        end.turn(control)?;
    }
}

fn wait_until_done(end: &mut End, control: &mut Control, round: u64) -> Result<()> {
    while end.requests(0).1 < round {
        end.turn(control)?;
    }
    Ok(())
}
