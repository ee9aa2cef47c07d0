//! A schedule as a picture: who sends what to whom, round by round.

use std::collections::HashMap;

use ringway_plan::{Op, Rank, Schedule, Span};

use crate::svg::{Anchor, COLOURS, Svg};

const LEFT: f64 = 70.0;
const TOP: f64 = 60.0;
const ROUND: f64 = 110.0;
const ROW: f64 = 46.0;

/// A message of a schedule.
struct Message {
    from: Rank,
    to: Rank,
    /// The round that it is sent in; it has arrived in the next.
    round: usize,
    label: String,
    colour: usize,
}

/// Ranks are rows, rounds are columns; an arrow is a message, its colour the first chunk's.
pub(crate) fn draw(schedule: &Schedule) -> String {
    let messages = messages(schedule);
    let rounds = messages.iter().map(|m| m.round + 1).max().unwrap_or(0);
    let (ranks, right) = (schedule.ranks(), LEFT + ROUND * rounds as f64);
    let mut svg = Svg::new(right + 40.0, TOP + ROW * ranks as f64);
    let title = format!(
        "{} by {}: {ranks} ranks, {} messages in {rounds} rounds",
        schedule.collective,
        schedule.algorithm,
        messages.len()
    );
    svg.text((12.0, 22.0), Anchor::Start, "title", &title);
    let y = |rank: Rank| TOP + ROW * rank as f64;
    for rank in 0..ranks {
        svg.text(
            (LEFT - 12.0, y(rank) + 4.0),
            Anchor::End,
            "",
            &format!("rank {rank}"),
        );
        svg.axis((LEFT, y(rank)), (right, y(rank)));
    }
    for m in &messages {
        let x = LEFT + ROUND * m.round as f64;
        let meaning = format!("rank {} to rank {}: {}", m.from, m.to, m.label);
        let colour = COLOURS[m.colour % COLOURS.len()];
        svg.arrow(
            (x + 6.0, y(m.from)),
            (x + ROUND - 6.0, y(m.to)),
            colour,
            &meaning,
        );
        // A third of the way, where arrows that cross are apart.
        let (dx, dy) = ((ROUND - 12.0) / 3.0, (y(m.to) - y(m.from)) / 3.0);
        svg.text(
            (x + 6.0 + dx, y(m.from) + dy - 4.0),
            Anchor::Middle,
            "",
            &m.label,
        );
    }
    svg.finish()
}

/// All messages with the rounds that they go in: as early as what they depend on allows.
fn messages(schedule: &Schedule) -> Vec<Message> {
    // When each step has taken effect: a message takes one round, all else none. A step waits for earlier ones of its
    // lane that touch the same chunks; a verified schedule has no cycles, so the times settle.
    let mut times: Vec<Vec<Vec<usize>>> = schedule
        .programs
        .iter()
        .map(|p| {
            p.lanes
                .iter()
                .map(|lane| vec![0; lane.steps.len()])
                .collect()
        })
        .collect();
    loop {
        let mut changed = false;
        let mut sent: HashMap<(Rank, Rank, usize), Vec<usize>> = HashMap::new();
        for (rank, lane, step, op) in steps(schedule) {
            if let Op::Send { peer, .. } = op {
                sent.entry((rank, peer, lane))
                    .or_default()
                    .push(times[rank][lane][step]);
            }
        }
        let mut taken: HashMap<(Rank, Rank, usize), usize> = HashMap::new();
        for (rank, lane, step, op) in steps(schedule) {
            let earlier = &schedule.programs[rank].lanes[lane].steps[..step];
            let before = earlier
                .iter()
                .zip(&times[rank][lane])
                .filter(|(earlier, _)| conflict(&earlier.op, &op))
                .map(|(_, &time)| time)
                .max()
                .unwrap_or(0);
            let after = schedule.programs[rank].lanes[lane].steps[step]
                .after
                .iter()
                .map(|at| times[rank][at.lane][at.step])
                .max()
                .unwrap_or(0);
            let arrival = match op {
                Op::Recv { peer, .. } | Op::RecvReduce { peer, .. } => {
                    let next = taken.entry((peer, rank, lane)).or_default();
                    *next += 1;
                    sent.get(&(peer, rank, lane))
                        .and_then(|s| s.get(*next - 1))
                        .map_or(0, |t| t + 1)
                }
                _ => 0,
            };
            let time = before.max(after).max(arrival);
            changed |= time != times[rank][lane][step];
            times[rank][lane][step] = time;
        }
        if !changed {
            break;
        }
    }
    steps(schedule)
        .filter_map(|(from, lane, step, op)| match op {
            Op::Send { peer, src } => Some(Message {
                from,
                to: peer,
                round: times[from][lane][step],
                label: src.to_string(),
                colour: src.chunk,
            }),
            _ => None,
        })
        .collect()
}

/// Whether the order of two steps matters: one writes what the other touches.
fn conflict(a: &Op, b: &Op) -> bool {
    let touch = |x: Span, y: Span| {
        x.space == y.space && x.chunk < y.chunk + y.count && y.chunk < x.chunk + x.count
    };
    let hits = |written: Option<Span>, op: &Op| {
        written.is_some_and(|w| op.reads().chain(op.writes()).any(|span| touch(w, span)))
    };
    hits(a.writes(), b) || hits(b.writes(), a)
}

fn steps(schedule: &Schedule) -> impl Iterator<Item = (Rank, usize, usize, Op)> {
    schedule
        .programs
        .iter()
        .enumerate()
        .flat_map(|(rank, program)| {
            program
                .lanes
                .iter()
                .enumerate()
                .flat_map(move |(lane, steps)| {
                    steps
                        .steps
                        .iter()
                        .enumerate()
                        .map(move |(step, s)| (rank, lane, step, s.op))
                })
        })
}

#[cfg(test)]
mod tests {
    use ringway_plan::{Algorithm, Collective, Topology, generate};

    use super::*;

    #[test]
    fn rounds_are_those_of_the_textbook() {
        let rounds = |algorithm, ranks| {
            let schedule = generate(
                Collective::AllReduce,
                algorithm,
                &Topology::single_host(ranks),
            )
            .unwrap();
            messages(&schedule)
                .iter()
                .map(|m| m.round + 1)
                .max()
                .unwrap()
        };
        assert_eq!(rounds(Algorithm::Ring, 4), 6);
        assert_eq!(rounds(Algorithm::RecursiveDoubling, 8), 3);
        assert_eq!(rounds(Algorithm::Direct, 5), 2);
        let schedule = generate(
            Collective::AllReduce,
            Algorithm::Ring,
            &Topology::single_host(4),
        )
        .unwrap();
        assert!(draw(&schedule).contains("24 messages in 6 rounds"));
    }
}
