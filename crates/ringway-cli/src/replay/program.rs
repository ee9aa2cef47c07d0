//! The program of a recording, at the pace of other operations.

use std::time::Duration;

use ringway::Recording;
use ringway_plan::Algorithm;

/// An operation on the fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Played {
    pub(super) algorithm: Algorithm,
    pub(super) time: Duration,
    /// As it was recorded, and not simulated.
    pub(super) is_kept: bool,
}

/// What the program spends its time on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Program {
    pub(super) whole: Duration,
    /// It did not wait.
    pub(super) own: Duration,
    /// It waited for operations.
    pub(super) exposed: Duration,
    /// In which any operation was in flight.
    pub(super) communication: Duration,
}

enum Event {
    Call(usize),
    Wait { call: usize, to: Duration },
}

impl Program {
    /// What was recorded.
    pub(super) fn recorded(recording: &Recording) -> Self {
        let exposed = recording.exposed();
        let mut busy: Vec<_> = recording
            .calls
            .iter()
            .filter_map(|call| Some((call.begin, call.end?)))
            .collect();
        busy.sort_unstable();
        let mut until = Duration::ZERO;
        let mut communication = Duration::ZERO;
        for (begin, end) in busy {
            communication += end.saturating_sub(begin.max(until));
            until = until.max(end);
        }
        Self {
            whole: recording.end,
            own: recording.end.saturating_sub(exposed),
            exposed,
            communication,
        }
    }

    /// The same calls and waits, and the same time between, with operations that take as long as `played` says, one after
    /// the other.
    pub(super) fn run(recording: &Recording, played: &[Played]) -> Self {
        let calls = recording.calls.iter().enumerate();
        let calls = calls.map(|(at, call)| (call.begin, Event::Call(at)));
        let waits = recording.waits.iter().map(|wait| {
            let (call, to) = (wait.call, wait.to);
            (wait.from, Event::Wait { call, to })
        });
        // Calls first, of what is at the same time: the order is stable.
        let mut events: Vec<_> = calls.chain(waits).collect();
        events.sort_by_key(|event| event.0);
        let mut program = Self::default();
        let (mut then, mut now, mut free) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
        let mut ends = vec![Duration::ZERO; played.len()];
        let mut work = |at: Duration, then: &mut Duration, now: &mut Duration| {
            let own = at.saturating_sub(*then);
            *then = at.max(*then);
            *now += own;
            program.own += own;
        };
        let mut exposed = Duration::ZERO;
        let mut communication = Duration::ZERO;
        for (at, event) in events {
            work(at, &mut then, &mut now);
            match event {
                Event::Call(call) => {
                    ends[call] = now.max(free) + played[call].time;
                    communication += played[call].time;
                    free = ends[call];
                }
                Event::Wait { call, to } => {
                    then = then.max(to);
                    exposed += ends[call].saturating_sub(now);
                    now = now.max(ends[call]);
                }
            }
        }
        work(recording.end, &mut then, &mut now);
        Self {
            whole: now,
            exposed,
            communication,
            ..program
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two operations are started, the program works for 300 ns and waits for both; then one that it waits for at once.
    const JOB: &str = "ringway record 1 ranks 2 hosts 2
group 0 2 world
call 0 100 all_reduce 0 f32 sum 4096 ring even 0
call 1 100 all_reduce 0 f32 sum 4096 ring even 0
end 0 300
wait 0 400 400
wait 1 400 500
end 1 500
call 2 600 barrier 0 u8 - 0 tree even 0
wait 2 600 650
end 2 650
done 700
";

    fn played(nanos: [u64; 3]) -> Vec<Played> {
        let played = |nanos| Played {
            algorithm: Algorithm::Ring,
            time: Duration::from_nanos(nanos),
            is_kept: false,
        };
        nanos.map(played).to_vec()
    }

    fn nanos(program: Program) -> [u128; 4] {
        [
            program.whole,
            program.own,
            program.exposed,
            program.communication,
        ]
        .map(|time| time.as_nanos())
    }

    #[test]
    fn at_the_pace_that_was_recorded_it_takes_as_long() {
        let recording = Recording::parse(JOB).unwrap();
        assert_eq!(nanos(Program::recorded(&recording)), [700, 550, 150, 450]);
        // One after the other, 200 ns each, they end at 300 and at 500.
        let again = Program::run(&recording, &played([200, 200, 50]));
        assert_eq!(nanos(again), [700, 550, 150, 450]);
    }

    #[test]
    fn slower_operations_are_waited_for_where_they_were_not_and_quicker_ones_hide() {
        let recording = Recording::parse(JOB).unwrap();
        let slower = Program::run(&recording, &played([900, 100, 50]));
        // The first ends at 1,000, the second at 1,100: 700 more than at 400.
        assert_eq!(nanos(slower), [1300, 550, 750, 1050]);
        let quicker = Program::run(&recording, &played([10, 10, 1]));
        assert_eq!(nanos(quicker), [551, 550, 1, 21]);
    }
}
