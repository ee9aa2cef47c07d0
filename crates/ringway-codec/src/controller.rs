//! How much to compress, from what compression does to steps.

use std::{fmt, time::Duration};

use crate::{Kind, StateError};

/// Steps between two decisions.
pub const WINDOW: u64 = 100;

/// Steps between two looks at whether they wait at all, see [`Controller::look`].
pub const LOOK: u64 = 25;

/// The bytes of what [`Controller::save`] writes.
pub const CHOICE: usize = 9;

/// The share of bytes to begin with, and its bounds.
const FIRST: f64 = 0.5;
const LEAST: f64 = 0.1;
const MOST: f64 = 0.9;

/// Of a step: waiting for less is as good as none.
const NOTHING: f64 = 0.01;

/// Of a step: waiting for more is worth sending less.
const MUCH: f64 = 0.05;

/// Windows without compression after which what it did counts no more: it is tried again if that may pay.
const MEMORY: u32 = 20;

/// A wire that takes less than this part of the time for a byte is another wire: what steps waited without compression counts no more.
const FASTER: f64 = 0.5;

/// What is sent is to point where it should: a lower cosine is worth sending more.
const COSINE: f64 = 0.7;

/// The residual may be so many times as long as the gradient.
const RESIDUAL: f64 = 5.0;

/// Medians over the steps of a window, the worst of all ranks: the same on all of them. Of means a few steps in which other programs
/// have taken the processor would decide.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measured {
    /// Seconds from step to step.
    pub step: f64,
    /// Seconds that a step waited for the bucket's sum.
    pub exposed: f64,
    /// Seconds in collectives.
    pub wire: f64,
    /// Seconds in encoding, decoding and adding.
    pub coding: f64,
    /// The cosine between what was sent and the gradient, the least of all ranks.
    pub cosine: f64,
    /// The residual's length over the gradient's.
    pub residual: f64,
}

/// Decides for a bucket, once in a window, the same on all ranks that see the same measurements.
///
/// It begins with half of the bytes. Where steps wait for the sum all the same, it sends less; where what is sent differs too much from the
/// gradient, more. Where steps do not wait, or wait no less than without compression, it turns itself off, and looks
/// again after some windows only if steps then wait. That steps do not wait is seen within a window already, see [`Self::look`].
#[derive(Clone, Debug)]
pub struct Controller {
    ratio: f64,
    on: bool,
    /// What was measured last with the codec, and how many windows ago.
    with: Option<(Measured, u32)>,
    /// What was measured last without.
    without: Option<Measured>,
}

/// What was decided, and why.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    /// The codec from now on.
    pub kind: Kind,
    /// The share of bytes that may be sent; 1 if nothing is encoded.
    pub ratio: f64,
    /// Seconds by which compression shortens the wait of a step; unknown until both were measured.
    pub saved: Option<f64>,
    /// What it went by.
    pub measured: Measured,
    /// Why.
    pub reason: &'static str,
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |seconds: f64| seconds * 1e3;
        let m = &self.measured;
        write!(f, "{} from here on ({}): ", self.kind, self.reason)?;
        match self.saved {
            Some(saved) => write!(f, "saved {:.2} ms", ms(saved))?,
            None => f.write_str("saved unknown")?,
        }
        write!(
            f,
            ", cost {:.2} ms, residual {:.2}, cosine {:.3}; waited {:.2} of {:.2} ms, wire {:.2} ms",
            ms(m.coding),
            m.residual,
            m.cosine,
            ms(m.exposed),
            ms(m.step),
            ms(m.wire)
        )
    }
}

impl Default for Controller {
    fn default() -> Self {
        Self {
            ratio: FIRST,
            on: true,
            with: None,
            without: None,
        }
    }
}

impl Controller {
    /// The codec to begin with.
    pub fn kind(&self) -> Kind {
        if self.on {
            Kind::within(self.ratio)
        } else {
            Kind::None
        }
    }

    /// What it has chosen; what it has measured is of this run.
    pub fn save(&self) -> [u8; CHOICE] {
        let mut bytes = [0; CHOICE];
        bytes[0] = self.on.into();
        bytes[1..].copy_from_slice(&self.ratio.to_le_bytes());
        bytes
    }

    /// With what another one has chosen.
    ///
    /// # Errors
    /// [`Self::save`] has not written the bytes.
    pub fn restored(bytes: &[u8; CHOICE]) -> Result<Self, StateError> {
        let [on, ratio @ ..] = *bytes;
        let ratio = f64::from_le_bytes(ratio);
        if on > 1 || !(LEAST..=MOST).contains(&ratio) {
            return Err(StateError::Other {
                expected: "adaptive".to_owned(),
                found: "another one".to_owned(),
            });
        }
        Ok(Self {
            ratio,
            on: on == 1,
            ..Self::default()
        })
    }

    /// Whether it wants a [look](Self::look) after [`LOOK`] steps: while it encodes, and has not seen how long steps wait without.
    pub const fn looks(&self) -> bool {
        self.on && self.without.is_none()
    }

    /// Within a window, takes what was measured since the last decision. Turns itself off if steps do not wait; else leaves the decision
    /// to the end of the window. Should they wait without, it is turned on again after the next window.
    pub fn look(&mut self, measured: Measured) -> Option<Decision> {
        let is_clear = self.looks() && measured.exposed < NOTHING * measured.step;
        is_clear.then(|| self.decide(measured))
    }

    /// Takes what was measured since the last decision.
    pub fn decide(&mut self, measured: Measured) -> Decision {
        let reason = if self.on {
            self.with = Some((measured, 0));
            let wire = measured.wire / self.kind().ratio().unwrap_or(1.0);
            self.without = self.without.filter(|without| wire > FASTER * without.wire);
            self.while_on(&measured)
        } else {
            self.with = self
                .with
                .map(|(m, age)| (m, age + 1))
                .filter(|(_, age)| *age <= MEMORY);
            self.without = Some(measured);
            self.while_off(&measured)
        };
        Decision {
            kind: self.kind(),
            ratio: if self.on { self.ratio } else { 1.0 },
            saved: self.saved(),
            measured,
            reason,
        }
    }

    fn saved(&self) -> Option<f64> {
        let ((with, _), without) = (self.with?, self.without?);
        Some(without.exposed - with.exposed)
    }

    fn while_on(&mut self, m: &Measured) -> &'static str {
        match self.saved() {
            Some(saved) if saved < NOTHING * m.step => {
                self.on = false;
                return "compression does not shorten the wait";
            }
            None if m.exposed < NOTHING * m.step => {
                self.on = false;
                return "steps do not wait for the wire";
            }
            // What is sent took this long; all of it would take so much longer.
            None if m.wire * (1.0 / self.ratio - 1.0) < m.coding => {
                self.on = false;
                return "encoding takes longer than it can save";
            }
            _ => {}
        }
        let before = self.ratio;
        let reason = if m.cosine < COSINE || m.residual > RESIDUAL {
            self.ratio = (self.ratio * 1.5).min(MOST);
            "what is sent differs much from the gradient"
        } else if m.exposed > MUCH * m.step {
            self.ratio = (self.ratio * 0.7).max(LEAST);
            "steps wait for the wire"
        } else {
            "it pays"
        };
        if Kind::within(self.ratio) != Kind::within(before) {
            // Of another codec nothing is known yet, but for what it is to be better than.
            self.with = None;
        }
        reason
    }

    fn while_off(&mut self, m: &Measured) -> &'static str {
        if m.exposed < MUCH * m.step {
            return "steps hardly wait for the wire";
        }
        match self.saved() {
            Some(saved) if saved < 2.0 * NOTHING * m.step => "compression was measured not to pay",
            _ => {
                self.on = true;
                "steps wait for the wire"
            }
        }
    }
}

/// Collects what happens between two decisions.
#[derive(Clone, Debug, Default)]
pub struct Meter {
    /// Since the last step's end.
    waited: Duration,
    /// Of each step: total, exposed, wire, coding.
    steps: [Vec<Duration>; 4],
}

impl Meter {
    /// A step: the time since the one before, and what its sum has taken.
    pub fn step(&mut self, since: Duration, wire: Duration, coding: Duration) {
        let exposed = std::mem::take(&mut self.waited);
        for (all, time) in self.steps.iter_mut().zip([since, exposed, wire, coding]) {
            all.push(time);
        }
    }

    /// Somebody waited for the sum of the step that has ended last.
    pub fn waited(&mut self, time: Duration) {
        self.waited += time;
    }

    /// Medians over the steps, in seconds: total, exposed, wire, coding. Zeros without steps.
    pub fn medians(&self) -> [f64; 4] {
        self.steps.each_ref().map(|times| {
            let mut times = times.clone();
            let middle = times.len() / 2;
            match times.is_empty() {
                true => 0.0,
                false => times.select_nth_unstable(middle).1.as_secs_f64(),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A training step: compute that hides some of the wire, and the rest.
    struct Step {
        compute: f64,
        hides: f64,
        wire: f64,
        coding: f64,
    }

    /// Decisions of a number of windows.
    fn run(step: &Step, windows: usize, cosine: f64) -> Vec<Decision> {
        let mut controller = Controller::default();
        (0..windows)
            .map(|_| {
                let kind = controller.kind();
                let wire = step.wire * kind.ratio().unwrap();
                let coding = if kind == Kind::None { 0.0 } else { step.coding };
                let exposed = (wire + coding - step.hides).max(0.0);
                controller.decide(Measured {
                    step: step.compute + exposed,
                    exposed,
                    wire,
                    coding,
                    cosine,
                    residual: 0.1,
                })
            })
            .collect()
    }

    fn changes(decisions: &[Decision]) -> usize {
        decisions
            .windows(2)
            .filter(|pair| pair[0].kind != pair[1].kind)
            .count()
    }

    #[test]
    fn turns_itself_off_where_steps_do_not_wait() {
        let fast = Step {
            compute: 0.1,
            hides: 0.05,
            wire: 0.02,
            coding: 0.01,
        };
        let decisions = run(&fast, 200, 1.0);
        assert!(
            decisions.iter().all(|d| d.kind == Kind::None),
            "{}",
            decisions[0]
        );
    }

    #[test]
    fn a_few_steps_that_other_programs_disturb_do_not_count() {
        let ms = Duration::from_millis;
        let mut meter = Meter::default();
        assert_eq!(meter.medians(), [0.0; 4]);
        for step in 0..LOOK {
            let is_disturbed = step % 5 < 2;
            let lost = if is_disturbed { ms(100) } else { ms(0) };
            meter.waited(lost);
            meter.step(ms(10) + lost, ms(2) + lost, ms(1));
        }
        assert_eq!(meter.medians(), [0.01, 0.0, 0.002, 0.001]);
    }

    #[test]
    fn a_look_turns_it_off_where_steps_do_not_wait_and_does_nothing_else() {
        let measured = |exposed| Measured {
            step: 0.01,
            exposed,
            wire: 0.005,
            coding: 0.001,
            cosine: 1.0,
            residual: 0.1,
        };
        let mut controller = Controller::default();
        assert_eq!(controller.look(measured(0.005)), None);
        assert!(controller.kind() != Kind::None && controller.looks());
        let decision = controller.look(measured(0.0)).unwrap();
        assert_eq!(decision.kind, Kind::None, "{decision}");
        // Without it they do wait: on again, and by what was measured from now on.
        assert!(!controller.looks());
        let decision = controller.decide(measured(0.005));
        assert_ne!(decision.kind, Kind::None, "{decision}");
        assert_eq!(controller.look(measured(0.0)), None);
    }

    #[test]
    fn turns_itself_off_where_encoding_takes_longer_than_it_saves() {
        let dear = Step {
            compute: 0.1,
            hides: 0.0,
            wire: 0.02,
            coding: 0.03,
        };
        let decisions = run(&dear, 200, 1.0);
        let on = decisions.iter().filter(|d| d.kind != Kind::None).count();
        assert!(on <= 20, "{on} of 200 windows");
        assert!(decisions[..2].iter().any(|d| d.kind == Kind::None));
    }

    #[test]
    fn sends_less_until_steps_wait_no_more_and_stays_there() {
        let slow = Step {
            compute: 0.1,
            hides: 0.05,
            wire: 1.0,
            coding: 0.005,
        };
        let decisions = run(&slow, 100, 1.0);
        assert_eq!(decisions[20].kind, Kind::within(0.1), "{}", decisions[20]);
        assert_eq!(changes(&decisions[20..]), 0);
        let ratios = decisions.iter().map(|d| d.ratio);
        assert!(ratios.clone().all(|r| (0.1..=0.9).contains(&r)));

        let middling = Step {
            compute: 0.1,
            hides: 0.05,
            wire: 0.15,
            coding: 0.005,
        };
        let decisions = run(&middling, 100, 1.0);
        // From 8 bits off, to see what that would be like, and back.
        assert_eq!(changes(&decisions), 2);
        let last = &decisions[99];
        assert!(
            last.kind != Kind::None && last.measured.exposed < 0.05 * last.measured.step,
            "{last}"
        );
    }

    #[test]
    fn sends_more_where_what_is_sent_differs_much() {
        let slow = Step {
            compute: 0.1,
            hides: 0.0,
            wire: 1.0,
            coding: 0.005,
        };
        let decisions = run(&slow, 10, 0.5);
        assert!((decisions[9].ratio - 0.9).abs() < 1e-9, "{}", decisions[9]);
        assert_eq!(decisions[9].kind, Kind::Bf16);
        let text = decisions[9].to_string();
        assert!(
            text.contains("cost 5.00 ms") && text.contains("cosine 0.500"),
            "{text}"
        );
    }
}
