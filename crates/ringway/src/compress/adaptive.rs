//! A bucket whose codec is chosen by what it does to steps.

use std::{
    sync::Mutex,
    time::{Duration, Instant},
};

use ringway_codec::{
    CHOICE, Codec, Controller, Decision, Kind, LOOK, Measured, Meter, StateError, WINDOW,
};
use ringway_kernels::Element as _;
use ringway_plan::{Collective, ReduceOp};

use super::Traffic;
use crate::{Communicator, Error, Request, buffer::exclusive, engine::lock};

/// The controller of a bucket, and what it goes by.
#[derive(Debug, Default)]
pub(super) struct Adaptive {
    meter: Mutex<Meter>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    controller: Controller,
    /// Since the last decision.
    steps: u64,
    last: Option<Instant>,
    decision: Option<Decision>,
}

impl State {
    /// Whether ranks compare what they have measured.
    const fn is_due(&self) -> bool {
        let looks = self.controller.looks() && self.steps > 0 && self.steps.is_multiple_of(LOOK);
        self.steps >= WINDOW || looks
    }
}

impl Adaptive {
    /// Somebody waited for a sum of the bucket.
    pub(super) fn waited(&self, time: Duration) {
        lock(&self.meter).waited(time);
    }

    /// The controller's state.
    pub(super) fn choice(&self) -> [u8; CHOICE] {
        lock(&self.state).controller.save()
    }

    /// Takes up the state of an adaptive bucket: a codec's, and a controller's.
    pub(super) fn restore(&self, codec: &mut Codec, state: &[u8]) -> Result<(), StateError> {
        let (of_codec, choice) = state.split_last_chunk().unwrap_or((state, &[0; CHOICE]));
        let controller = Controller::restored(choice)?;
        codec.change(controller.kind());
        codec.restore(of_codec)?;
        *lock(&self.meter) = Meter::default();
        *lock(&self.state) = State {
            controller,
            ..State::default()
        };
        Ok(())
    }

    /// The last decision.
    pub(super) fn decision(&self) -> Option<Decision> {
        lock(&self.state).decision
    }

    /// Before a step. After each window, and where the controller looks earlier, ranks tell each other what they have measured, of
    /// which the worst counts, and decide the same at the same step. Like all collectives of the sum this one may take `timeout`,
    /// if there is one.
    pub(super) fn before(
        &self,
        communicator: &Communicator,
        codec: &mut Codec,
        timeout: Option<Duration>,
    ) -> Result<(), Error> {
        let mut state = lock(&self.state);
        if state.steps + 1 == WINDOW {
            codec.measure_next();
        }
        if !state.is_due() {
            return Ok(());
        }
        let [step, exposed, wire, coding] = lock(&self.meter).medians();
        let encodes = state.controller.kind() != Kind::None;
        let (cosine, residual) = codec
            .fidelity()
            .filter(|_| encodes)
            .map_or((1.0, 0.0), |fidelity| (fidelity.cosine, fidelity.residual));
        let mut worst = [step, exposed, wire, coding, -cosine, residual];
        let memory = exclusive(&mut worst);
        let mut request = Request::new(Collective::AllReduce, f64::DTYPE, memory, memory)
            .reduce_op(ReduceOp::Max);
        if let Some(timeout) = timeout {
            request = request.timeout(timeout);
        }
        communicator.run(request)?;
        let [step, exposed, wire, coding, cosine, residual] = worst;
        let before = state.controller.kind();
        let measured = Measured {
            step,
            exposed,
            wire,
            coding,
            cosine: -cosine,
            residual,
        };
        let decision = match state.steps < WINDOW {
            true => state.controller.look(measured),
            false => Some(state.controller.decide(measured)),
        };
        let Some(decision) = decision else {
            return Ok(());
        };
        state.steps = 0;
        *lock(&self.meter) = Meter::default();
        if communicator.rank() == 0 {
            let tensors = codec.tensors();
            let first = tensors.iter().next().map_or("", |tensor| &tensor.name);
            tracing::info!(first, elements = tensors.len(), "compression: {decision}");
        }
        if decision.kind != before {
            codec.change(decision.kind);
        }
        state.decision = Some(decision);
        Ok(())
    }

    /// After a step that has given a sum.
    pub(super) fn after(&self, traffic: &Traffic) {
        let mut state = lock(&self.state);
        let now = Instant::now();
        let since = state.last.map_or(Duration::ZERO, |last| now - last);
        state.last = Some(now);
        state.steps += 1;
        lock(&self.meter).step(since, traffic.wire, traffic.coding);
    }
}
