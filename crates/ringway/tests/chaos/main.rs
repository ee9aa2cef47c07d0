//! Kills, stops, cuts and stalls at any step of any operation, between real processes: every survivor gets an error
//! that names the right rank within two seconds, nobody waits past a deadline, and nothing is left behind.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that panics has failed, as it should"
)]

mod killer;
#[path = "../common/port.rs"]
mod port;
mod rank;
mod world;

use std::time::Duration;

use rustix::process::{Signal, kill_process};

use world::{Mishap, Outcome, World, chance, undisturbed};

/// How soon everybody must know.
const SOON: Duration = Duration::from_secs(2);

/// Ranks of a host that share memory map it for most calls, and use messages in it for the others.
const TRANSPORTS: [&str; 3] = ["auto", "tcp", "rdma"];

/// Checks that each survivor names `victim`, soon after it was struck.
fn victim_is_named(outcomes: &[Outcome], victim: usize, pid: i32, struck: Duration, what: &str) {
    for outcome in outcomes.iter().filter(|outcome| outcome.rank != victim) {
        let Outcome {
            rank, error, at, ..
        } = outcome;
        let error = error.as_ref().unwrap();
        assert!(
            error.starts_with(&format!("rank {victim} (host ")),
            "{what}: rank {rank}: {error}"
        );
        assert!(error.contains(&format!("pid {pid})")), "{what}: {error}");
        let took = at.saturating_sub(struck);
        assert!(took < SOON, "{what}: rank {rank} knew after {took:?}");
    }
}

/// Whether the text speaks of the rank.
fn names(text: &str, rank: usize) -> bool {
    let name = format!("rank {rank}");
    let follows = |(at, _): (usize, &str)| text[at + name.len()..].chars().next();
    text.match_indices(&name)
        .any(|found| follows(found).is_none_or(|c| !c.is_ascii_digit()))
}

/// The victim kills itself at its n-th step: a message that it starts to send or to receive, or a poll that moved.
fn killed_at_every_step(transports: &str) {
    let _turn = undisturbed();
    for n in 0..48_usize {
        let size = 3 + n % 3;
        let victim = n % size;
        // All of the first steps, then further and further apart.
        let step = n + n * n / 24;
        let mishap = Mishap::KillAt { victim, step };
        let mut world = World::start(size, transports, "20s", &mishap);
        let struck = world.ranks[victim].time_of("AT ");
        let outcomes = world.outcomes(Some(victim));
        let what = format!("{size} ranks over {transports}, killed at step {step}");
        let pid = world.ranks[victim].pid().as_raw_nonzero().get();
        victim_is_named(&outcomes, victim, pid, struck, &what);
    }
}

#[test]
fn a_rank_killed_at_any_step_of_shared_memory_is_named() {
    killed_at_every_step("auto");
}

#[test]
fn a_rank_killed_at_any_step_of_tcp_is_named() {
    killed_at_every_step("tcp");
}

#[test]
fn a_rank_killed_at_any_step_of_rdma_is_named() {
    killed_at_every_step("rdma");
}

/// From outside, at any instant: also where no message goes, in mapped memory and between calls.
#[test]
fn a_rank_killed_at_any_instant_is_named() {
    let _turn = undisturbed();
    for n in 0..32_usize {
        let transports = TRANSPORTS[(n % 5).saturating_sub(2)];
        let size = 3 + n % 3;
        let victim = (n / 3) % size;
        let mut world = World::start(size, transports, "20s", &Mishap::None);
        let delay = Duration::from_micros(chance(n) % 9_000);
        std::thread::sleep(delay);
        let struck = world::now();
        let pid = world.ranks[victim].pid();
        kill_process(pid, Signal::KILL).unwrap();
        let outcomes = world.outcomes(Some(victim));
        let what = format!("{size} ranks over {transports}, killed after {delay:?}");
        victim_is_named(&outcomes, victim, pid.as_raw_nonzero().get(), struck, &what);
    }
}

#[test]
fn a_rank_that_is_stopped_at_any_instant_is_named() {
    let _turn = undisturbed();
    // A stopped world uses no processor, so that they can wait side by side.
    let mut worlds = Vec::new();
    for n in 0..6_usize {
        let transports = TRANSPORTS[n / 2];
        let victim = n % 3;
        let world = World::start(3, transports, "20s", &Mishap::None);
        std::thread::sleep(Duration::from_micros(chance(n) % 9_000));
        let struck = world::now();
        kill_process(world.ranks[victim].pid(), Signal::STOP).unwrap();
        worlds.push((world, transports, victim, struck));
    }
    for (mut world, transports, victim, struck) in worlds {
        let outcomes = world.outcomes(Some(victim));
        let pid = world.ranks[victim].pid().as_raw_nonzero().get();
        let what = format!("stopped over {transports}");
        victim_is_named(&outcomes, victim, pid, struck, &what);
        assert!(outcomes.iter().all(|o| {
            o.error
                .as_ref()
                .is_none_or(|e| e.contains("no sign of life"))
        }));
    }
}

/// The link between two living ranks breaks: all name both.
#[test]
fn a_cut_link_is_named_by_both_its_ends() {
    let _turn = undisturbed();
    for n in 0..18_usize {
        let transports = TRANSPORTS[n / 6];
        let (size, step) = (3 + n % 3, 3 + 5 * n);
        let (a, b) = (n % size, (n + 1) % size);
        let plan = format!("cut=peer{b}@step{step},rank={a}");
        let mut world = World::start(size, transports, "20s", &Mishap::Fault(plan.clone()));
        let outcomes = world.outcomes(None);
        let first = outcomes.iter().map(|outcome| outcome.at).min().unwrap();
        for Outcome {
            rank, error, at, ..
        } in &outcomes
        {
            let error = error.as_ref().unwrap();
            let named = names(error, a) && names(error, b);
            assert!(
                named && error.contains("lost its connection"),
                "{plan} over {transports}: rank {rank}: {error}"
            );
            assert!(
                *at - first < SOON,
                "{plan}: rank {rank} knew {:?} later",
                *at - first
            );
        }
    }
}

/// Nothing moves any more between two ranks, and nobody says so: the deadline ends it for all.
#[test]
fn nobody_waits_past_the_deadline_when_a_link_stalls() {
    let _turn = undisturbed();
    let mut worlds = Vec::new();
    for n in 0..6_usize {
        let transports = TRANSPORTS[n / 2];
        let (size, step) = (3 + n % 3, 2 + 7 * n);
        let (a, b) = (n % size, (n + 1) % size);
        let plan = format!("stall=peer{b}@step{step},rank={a}");
        let world = World::start(size, transports, "1s", &Mishap::Fault(plan.clone()));
        worlds.push((world, transports, plan));
    }
    for (mut world, transports, plan) in worlds {
        for Outcome {
            rank, error, took, ..
        } in world.outcomes(None)
        {
            let error = error.unwrap();
            assert!(
                error.contains("did not end ") && error.contains(" within 1.0s"),
                "{plan} over {transports}: rank {rank}: {error}"
            );
            assert!(
                took < Duration::from_secs(2),
                "{plan}: rank {rank} waited {took:?}"
            );
        }
    }
}

/// Whoever sends, or if nobody does: ranks that make different calls are told so, with both calls.
#[test]
fn different_calls_are_named() {
    let _turn = undisturbed();
    for (n, how) in ["wait", "wait_v", "v_form", "length", "collective"]
        .into_iter()
        .enumerate()
    {
        for transports in TRANSPORTS {
            let mut world = World::start(2 + n % 4, transports, "20s", &Mishap::Disagree(how));
            for Outcome {
                rank, error, took, ..
            } in world.outcomes(None)
            {
                let error = error.unwrap();
                assert!(
                    error.contains(" calls ") && error.contains(" where rank "),
                    "{how} over {transports}: rank {rank}: {error}"
                );
                assert!(
                    took < SOON,
                    "{how} over {transports}: rank {rank} knew after {took:?}"
                );
            }
        }
    }
}

/// Half a message: its receiver refuses it, and all name the two.
#[test]
fn a_truncated_message_is_refused_by_name() {
    let _turn = undisturbed();
    for n in 0..6_usize {
        let transports = TRANSPORTS[n / 2];
        let (a, b) = (n % 3, (n + 1) % 3);
        let plan = format!("truncate=peer{b}@step{},rank={a}", 2 + 6 * n);
        let mut world = World::start(3, transports, "20s", &Mishap::Fault(plan.clone()));
        for Outcome { rank, error, .. } in world.outcomes(None) {
            let error = &error.unwrap();
            let named = names(error, a) && names(error, b);
            assert!(named, "{plan} over {transports}: rank {rank}: {error}");
            assert!(
                error.contains("what does not fit"),
                "{plan}: rank {rank}: {error}"
            );
        }
    }
}

/// Late, out of order and a few at a time: the results are exact all the same. Each rank checks its own.
#[test]
fn no_order_of_messages_changes_a_result() {
    let _turn = undisturbed();
    for n in 0..6_usize {
        let transports = TRANSPORTS[n / 2];
        let plan = format!("reorder=8;delay=300us,p=0.2;split=1;seed={n}");
        let mut world = World::start(3 + n % 3, transports, "20s", &Mishap::Perturb(plan));
        for Outcome { rank, error, .. } in world.outcomes(None) {
            assert_eq!(error, None, "rank {rank}");
        }
    }
}
