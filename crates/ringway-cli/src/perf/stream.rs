//! Bandwidth: a window of requests at each queue pair.

use std::time::Instant;

use anyhow::Result;

use super::{control::Control, end::End, message::Finished, test::Run};

/// Sends a run's requests if this side is to `ask`, and takes in what the other side sends if it does. A completion is
/// asked for with every fourth part of a window, so that polling costs little and the window never runs dry.
pub(super) fn stream(
    end: &mut End,
    control: &mut Control,
    run: Run,
    ask: bool,
) -> Result<Finished> {
    let (pairs, depth) = (end.test().qps as usize, u64::from(end.test().depth));
    let every = (depth / 4).max(1);
    let total = if ask {
        run.iterations * pairs as u64
    } else {
        0
    };
    // The time and the number of requests done at each completion.
    let mut marks = Vec::with_capacity((total / every) as usize + 2);
    marks.push((0.0, 0));
    let start = Instant::now();
    while end.done() < total || !end.all_arrived() {
        for pair in (0..pairs).filter(|_| ask) {
            let (mut posted, done) = end.requests(pair);
            while posted < run.iterations && posted - done < depth {
                posted += 1;
                end.ask(pair, posted % every == 0 || posted == run.iterations)?;
            }
        }
        end.turn(control)?;
        let done = end.done();
        if marks.last().is_some_and(|&(_, before)| done > before) {
            marks.push((start.elapsed().as_secs_f64(), done));
        }
    }
    Ok(Finished {
        seconds: marks.last().map_or(0.0, |&(seconds, _)| seconds),
        peak: peak(&marks),
    })
}

/// Requests per second over the best part of a run that has at least a tenth of its requests; never less than the mean.
/// `marks` are seconds and how many were done then, from (0, 0) on.
fn peak(marks: &[(f64, u64)]) -> f64 {
    let Some(&(seconds, total)) = marks.last().filter(|(seconds, _)| *seconds > 0.0) else {
        return 0.0;
    };
    let mut best = total as f64 / seconds;
    let mut to = 0;
    for &(began, before) in marks {
        while to < marks.len() && (marks[to].1 - before) * 10 < total {
            to += 1;
        }
        let Some(&(ended, after)) = marks.get(to) else {
            break;
        };
        best = best.max((after - before) as f64 / (ended - began));
    }
    best
}

#[cfg(test)]
mod tests {
    use super::peak;

    #[test]
    fn the_best_tenth_is_found() {
        assert_eq!(peak(&[(0.0, 0)]), 0.0);
        assert_eq!(peak(&[(0.0, 0), (2.0, 10)]), 5.0);
        // One a second, then ten in a second, then one a second.
        let mut marks = vec![(0.0, 0)];
        marks.extend((1..=10).map(|at| (f64::from(at), at as u64)));
        marks.push((11.0, 20));
        marks.extend((1..=20).map(|at| (11.0 + f64::from(at), 20 + at as u64)));
        assert_eq!(peak(&marks), 10.0);
        // A burst of less than a tenth is no rate.
        assert_eq!(peak(&[(0.0, 0), (1.0, 99), (1.0001, 100)]), 100.0 / 1.0001);
    }
}
