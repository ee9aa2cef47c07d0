//! The program of a recording, at the pace of other operations.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use anyhow::Result;
use ringway::{Recorded, Recording};
use ringway_plan::Algorithm;
use ringway_sim::{Act, Elapsed};

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

#[derive(Clone, Copy)]
enum Event {
    Call {
        call: usize,
        at: Duration,
    },
    Wait {
        call: usize,
        from: Duration,
        to: Duration,
    },
}

impl Event {
    const fn begin(&self) -> Duration {
        match *self {
            Self::Call { at, .. } => at,
            Self::Wait { from, .. } => from,
        }
    }
}

impl Program {
    /// What was recorded.
    pub(super) fn recorded(recording: &Recording) -> Self {
        let exposed = recording.exposed();
        let calls = recording.calls.iter();
        let busy = calls.filter_map(|call| Some((call.begin, call.end?)));
        Self {
            whole: recording.end,
            own: recording.end.saturating_sub(exposed),
            exposed,
            communication: covered(busy.collect()),
        }
    }

    /// The same calls and waits, and the same time between. Of operations in flight together, see [`together`], `simulate` says how
    /// long all takes, with the calls of an [`Episode`] and what the program does; their times are filled in. All others take as
    /// long as `played` says, one after the other.
    ///
    /// # Errors
    /// Those of `simulate`.
    pub(super) fn run(
        recording: &Recording,
        together: &[bool],
        played: &mut [Played],
        mut simulate: impl FnMut(&[&Recorded], &[Played], &[Act]) -> Result<Elapsed>,
    ) -> Result<Self> {
        let mut track = Track::default();
        let mut ends = vec![Duration::ZERO; played.len()];
        for episode in episodes(recording) {
            if episode.calls.iter().any(|&call| together[call]) {
                let calls: Vec<&Recorded> = episode
                    .calls
                    .iter()
                    .map(|&call| &recording.calls[call])
                    .collect();
                let before: Vec<Played> = episode.calls.iter().map(|&call| played[call]).collect();
                let (acts, own) = episode.acts(track.then);
                let elapsed = simulate(&calls, &before, &acts)?;
                let whole = Duration::from(elapsed.end);
                let mut busy = Vec::with_capacity(calls.len());
                for (&call, &(begin, end)) in episode.calls.iter().zip(&elapsed.operations) {
                    let (begin, end) = (begin.into(), end.map_or(whole, Duration::from));
                    played[call].time = end.saturating_sub(begin);
                    busy.push((begin, end));
                }
                let program = &mut track.program;
                program.own += own;
                program.exposed += whole.saturating_sub(own);
                program.communication += covered(busy);
                track.now += whole;
                track.free = track.now;
                track.then = episode.end().max(track.then);
                continue;
            }
            for event in episode.events {
                match event {
                    Event::Call { call, at } => {
                        track.work(at);
                        ends[call] = track.now.max(track.free) + played[call].time;
                        track.program.communication += played[call].time;
                        track.free = ends[call];
                    }
                    Event::Wait { call, from, to } => {
                        track.work(from);
                        track.then = track.then.max(to);
                        track.program.exposed += ends[call].saturating_sub(track.now);
                        track.now = track.now.max(ends[call]);
                    }
                }
            }
        }
        track.work(recording.end);
        Ok(Self {
            whole: track.now,
            ..track.program
        })
    }
}

/// By call, whether [`Program::run`] simulates it with others that are in flight together: unless one of these keeps its time.
pub(super) fn together(recording: &Recording, keeps: impl Fn(&Recorded) -> bool) -> Vec<bool> {
    let mut together = vec![false; recording.calls.len()];
    for episode in episodes(recording) {
        let mut calls = episode.calls.iter().map(|&call| &recording.calls[call]);
        let is_together = episode.most_open > 1 && !calls.any(&keeps);
        for call in episode.calls {
            together[call] = is_together;
        }
    }
    together
}

/// Where a replay stands.
#[derive(Default)]
struct Track {
    program: Program,
    /// In the recording.
    then: Duration,
    /// In the replay.
    now: Duration,
    /// When the operations before are over.
    free: Duration,
}

impl Track {
    /// The program's own time up to a point of the recording.
    fn work(&mut self, at: Duration) {
        let own = at.saturating_sub(self.then);
        self.then = at.max(self.then);
        self.now += own;
        self.program.own += own;
    }
}

/// What happens from a call on until all that was called has been waited for.
#[derive(Default)]
struct Episode {
    events: Vec<Event>,
    calls: Vec<usize>,
    /// The most operations at a time that were called and not yet waited for.
    most_open: usize,
}

impl Episode {
    /// What the program does, from a point of the recording on, and how much of that is its own time.
    fn acts(&self, mut then: Duration) -> (Vec<Act>, Duration) {
        let mut acts = Vec::with_capacity(2 * self.events.len());
        let mut own = Duration::ZERO;
        let calls = self.calls.iter().enumerate();
        let numbers: HashMap<usize, usize> = calls.map(|(number, &call)| (call, number)).collect();
        for event in &self.events {
            let (at, until) = match *event {
                Event::Call { at, .. } => (at, at),
                Event::Wait { from, to, .. } => (from, to),
            };
            let work = at.saturating_sub(then);
            then = until.max(then);
            own += work;
            acts.push(Act::Compute(work.into()));
            acts.extend(match *event {
                Event::Call { call, .. } => numbers.get(&call).copied().map(Act::Start),
                // What an episode before has called is over.
                Event::Wait { call, .. } => numbers.get(&call).copied().map(Act::Wait),
            });
        }
        (acts, own)
    }

    /// When it was over in the recording.
    fn end(&self) -> Duration {
        let ends = self.events.iter().map(|event| match *event {
            Event::Call { at, .. } => at,
            Event::Wait { to, .. } => to,
        });
        ends.max().unwrap_or_default()
    }
}

/// Who never waits for an operation, as one that only asks whether it is done, has it in flight until its recorded end.
fn episodes(recording: &Recording) -> Vec<Episode> {
    let waited: HashSet<usize> = recording.waits.iter().map(|wait| wait.call).collect();
    let is_over = |call: usize, now: Duration| {
        !waited.contains(&call) && recording.calls[call].end.is_some_and(|end| end <= now)
    };
    let calls = recording.calls.iter().enumerate();
    let calls = calls.map(|(call, at)| Event::Call { call, at: at.begin });
    let waits = recording.waits.iter().map(|wait| {
        let (call, from, to) = (wait.call, wait.from, wait.to);
        Event::Wait { call, from, to }
    });
    // Calls first, of what is at the same time: the order is stable.
    let mut events: Vec<_> = calls.chain(waits).collect();
    events.sort_by_key(Event::begin);
    let mut episodes = Vec::new();
    let mut episode = Episode::default();
    let mut open = HashSet::new();
    for event in events {
        let now = event.begin();
        open.retain(|&call| !is_over(call, now));
        if open.is_empty() && !episode.events.is_empty() {
            episodes.push(std::mem::take(&mut episode));
        }
        match event {
            Event::Call { call, .. } => {
                open.insert(call);
                episode.calls.push(call);
            }
            Event::Wait { call, .. } => drop(open.remove(&call)),
        }
        episode.events.push(event);
        episode.most_open = episode.most_open.max(open.len());
        if open.is_empty() {
            episodes.push(std::mem::take(&mut episode));
        }
    }
    episodes.push(episode);
    episodes
}

/// How long any of the spans lasts.
fn covered(mut spans: Vec<(Duration, Duration)>) -> Duration {
    spans.sort_unstable();
    let (mut until, mut covered) = (Duration::ZERO, Duration::ZERO);
    for (begin, end) in spans {
        covered += end.saturating_sub(begin.max(until));
        until = until.max(end);
    }
    covered
}

#[cfg(test)]
mod tests {
    use ringway_sim::Time;

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

    /// Where the first operation's time is kept, all go one after the other.
    fn run(nanos: [u64; 3]) -> Program {
        let recording = Recording::parse(JOB).unwrap();
        let together = together(&recording, |call| call.begin.as_nanos() == 100);
        assert_eq!(together, [false; 3]);
        let nothing = |_: &[&Recorded], _: &[Played], _: &[Act]| panic!("none are together");
        Program::run(&recording, &together, &mut played(nanos), nothing).unwrap()
    }

    #[test]
    fn at_the_pace_that_was_recorded_it_takes_as_long() {
        let recording = Recording::parse(JOB).unwrap();
        assert_eq!(nanos(Program::recorded(&recording)), [700, 550, 150, 450]);
        // One after the other, 200 ns each, they end at 300 and at 500.
        assert_eq!(nanos(run([200, 200, 50])), [700, 550, 150, 450]);
    }

    #[test]
    fn slower_operations_are_waited_for_where_they_were_not_and_quicker_ones_hide() {
        // The first ends at 1,000, the second at 1,100: 700 more than at 400.
        assert_eq!(nanos(run([900, 100, 50])), [1300, 550, 750, 1050]);
        assert_eq!(nanos(run([10, 10, 1])), [551, 550, 1, 21]);
    }

    /// The first operation is over when the second is called.
    #[test]
    fn what_nobody_waits_for_is_in_flight_until_its_end() {
        let job = "ringway record 1 ranks 2 hosts 2
group 0 2 world
call 0 100 all_reduce 0 f32 sum 4096 ring even 0
end 0 300
call 1 350 all_reduce 0 f32 sum 4096 ring even 0
wait 1 350 400
end 1 400
done 500
";
        let recording = Recording::parse(job).unwrap();
        assert_eq!(together(&recording, |_| false), [false; 2]);
        let meanwhile = job.replace("call 1 350", "call 1 250");
        let recording = Recording::parse(&meanwhile).unwrap();
        assert_eq!(together(&recording, |_| false), [true; 2]);
    }

    #[test]
    fn operations_in_flight_together_go_together() {
        let recording = Recording::parse(JOB).unwrap();
        let together = together(&recording, |_| false);
        assert_eq!(together, [true, true, false]);
        let mut times = played([0, 0, 50]);
        let nanos_of = |nanos: u64| Time(1000 * nanos);
        let program = Program::run(&recording, &together, &mut times, |calls, before, acts| {
            assert_eq!((calls.len(), before.len()), (2, 2));
            let compute = |nanos| Act::Compute(nanos_of(nanos));
            let expected = [
                compute(100),
                Act::Start(0),
                compute(0),
                Act::Start(1),
                compute(300),
                Act::Wait(0),
                compute(0),
                Act::Wait(1),
            ];
            assert_eq!(acts, expected);
            // From 100 on, they end at 350 and at 450: 50 after the program begins to wait.
            Ok(Elapsed {
                end: nanos_of(450),
                messages: 0,
                hops: Vec::new(),
                operations: vec![
                    (nanos_of(100), Some(nanos_of(350))),
                    (nanos_of(100), Some(nanos_of(450))),
                ],
            })
        });
        // 50 less than recorded.
        assert_eq!(nanos(program.unwrap()), [650, 550, 100, 400]);
        let times: Vec<u128> = times.iter().map(|played| played.time.as_nanos()).collect();
        assert_eq!(times, [250, 350, 50]);
    }
}
