//! Latency: one request under way.

use std::time::Instant;

use anyhow::Result;

use super::{
    control::Control,
    end::End,
    test::{Operation, Run},
};

/// Measures WRITE or SEND: the client's message is answered by the server's of the same length. Returns the client's
/// times in microseconds: half of each round trip, as perftest has it. For a WRITE both look at the last byte of memory,
/// for a SEND at completions.
pub(super) fn ping_pong(
    end: &mut End,
    control: &mut Control,
    run: Run,
    client: bool,
) -> Result<Vec<f64>> {
    let mut times = Vec::with_capacity(if client { run.iterations as usize } else { 0 });
    for round in 1..=run.iterations {
        let began = Instant::now();
        if client {
            end.ask_marked(round as u8)?;
            wait_for(end, control, round)?;
            times.push(began.elapsed().as_secs_f64() * 1e6 / 2.0);
        } else {
            wait_for(end, control, round)?;
            end.ask_marked(round as u8)?;
        }
        // Its bytes may be changed once it is done; the answer to it comes later than that, or hardly sooner.
        wait_until_done(end, control, round)?;
    }
    Ok(times)
}

/// Measures READ or atomic operations: from the request to its completion, in microseconds.
pub(super) fn fetch(end: &mut End, control: &mut Control, run: Run) -> Result<Vec<f64>> {
    let mut times = Vec::with_capacity(run.iterations as usize);
    for round in 1..=run.iterations {
        let began = Instant::now();
        end.ask(0, true)?;
        wait_until_done(end, control, round)?;
        times.push(began.elapsed().as_secs_f64() * 1e6);
    }
    Ok(times)
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
    let last = memory.slice(memory.len() - 1..memory.len());
    let mut mark = [0];
    loop {
        last.read(&mut mark);
        if mark == [round as u8] {
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
