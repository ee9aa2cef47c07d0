//! One run of a test, from either side: the client says that it begins, both carry it out, both say that they are done.

use anyhow::{Result, bail};

use super::{
    check::{self, Side},
    control::Control,
    end::End,
    latency,
    message::{Finished, Message},
    stream::stream,
    test::{Measure, Run, Test},
};

/// What a run came to.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) own: Finished,
    pub(super) peer: Finished,
    /// Of a test of latency, the client's times in microseconds.
    pub(super) times: Vec<f64>,
}

/// The client's part.
pub(super) fn lead(end: &mut End, control: &mut Control, run: Run) -> Result<Outcome> {
    prepare(end, Side::Client, run)?;
    control.send(&Message::Run(run))?;
    match end.hear(control)? {
        Message::Ready => carry_out(end, control, Side::Client, run),
        other => Err(control.unexpected(&other, "that it is ready")),
    }
}

/// The server's part, once the client has asked for it.
pub(super) fn follow(end: &mut End, control: &mut Control, run: Run) -> Result<Outcome> {
    run.fits(end.test())?;
    prepare(end, Side::Server, run)?;
    control.send(&Message::Ready)?;
    carry_out(end, control, Side::Server, run)
}

/// Whether messages go back and forth, one at a time.
fn ping_pong(test: &Test, run: Run) -> bool {
    test.measure == Measure::Lat && test.operation.pushes() && !run.check
}

/// Whether this side posts requests of its own, in a window. Data that is pushed back in a ping-pong is checked as well.
fn asks(test: &Test, run: Run, side: Side) -> bool {
    let both = test.measure == Measure::Lat && test.operation.pushes();
    side == Side::Client || test.bidirectional || both && run.check
}

fn prepare(end: &mut End, side: Side, run: Run) -> Result<()> {
    let receive = ping_pong(end.test(), run) || asks(end.test(), run, side.other());
    end.prepare(run, receive)?;
    if run.check {
        check::fill(end, side, run);
    } else if ping_pong(end.test(), run) {
        latency::clear_mark(end, run);
    }
    Ok(())
}

fn carry_out(end: &mut End, control: &mut Control, side: Side, run: Run) -> Result<Outcome> {
    let (mut own, mut times) = (Finished::default(), Vec::new());
    if ping_pong(end.test(), run) {
        times = latency::ping_pong(end, control, run, side == Side::Client)?;
    } else if end.test().measure == Measure::Bw || run.check {
        own = stream(end, control, run, asks(end.test(), run, side))?;
    } else if side == Side::Client {
        times = latency::fetch(end, control, run)?;
    }
    control.send(&Message::Finished(own))?;
    let peer = match end.hear(control)? {
        Message::Finished(peer) => peer,
        other => return Err(control.unexpected(&other, "that it has finished")),
    };
    if run.check {
        compare(end, control, side, run)?;
    }
    Ok(Outcome { own, peer, times })
}

fn compare(end: &mut End, control: &mut Control, side: Side, run: Run) -> Result<()> {
    let (test, other) = (end.test(), side.other());
    let fault = check::fault(
        end,
        side,
        run,
        asks(test, run, side),
        asks(test, run, other),
    );
    control.send(&Message::Checked {
        fault: fault.clone(),
    })?;
    let found = match end.hear(control)? {
        Message::Checked { fault } => fault,
        other => return Err(control.unexpected(&other, "whether its data is right")),
    };
    match (fault, found) {
        (Some(fault), _) => bail!("{fault}; it came from {}", control.peer()),
        (None, Some(fault)) => bail!("{} has {fault}; it came from here", control.peer()),
        (None, None) => Ok(()),
    }
}
