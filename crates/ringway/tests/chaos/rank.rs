//! What each process of a world does: calls of all kinds, each checked, until one fails.

use std::{
    env,
    io::{BufRead, Write},
    time::{Duration, Instant},
};

use ringway::{
    AllReduce, Builder, Communicator, Error, ReduceOp,
    bootstrap::{Launch, Launcher, Rendezvous},
    settings::{Settings, Source},
};
use ringway_link::Fault;

use super::{
    killer::{self, Killer},
    world::now,
};

/// Rounds that a rank makes where nothing is to go wrong.
const ROUNDS: usize = 6;

fn connect(rank: usize, size: usize, port: u16) -> Communicator {
    let mut settings = Settings::default();
    let chosen = |name: &str| env::var(format!("RINGWAY_TEST_{name}")).unwrap();
    for (name, value) in [
        ("transports", chosen("TRANSPORTS")),
        ("timeout", chosen("TIMEOUT")),
        ("arena_size", "64MiB".to_owned()),
    ] {
        let source = Source::Flag {
            name: "test".into(),
        };
        settings.set(name, &value, source).unwrap();
    }
    let rendezvous = Rendezvous::Master {
        host: "127.0.0.1".into(),
        port,
    };
    let launch = Launch {
        launcher: Launcher::Caller,
        rank,
        size,
        local_rank: None,
        job: "chaos".into(),
        rendezvous,
    };
    let plan = env::var("RINGWAY_TEST_FAULT").unwrap_or_default();
    let plan = plan.parse().unwrap();
    Builder::default()
        .settings(settings)
        .launch(launch)
        .middleware(move |inner| {
            Box::new(Killer(Box::new(Fault::new(inner, &plan, rank).unwrap())))
        })
        .connect()
        .unwrap()
}

/// One call of each kind. `seed` tells rounds apart, so that nothing of an earlier one passes for a result.
fn round(comm: &Communicator, seed: u32) -> Result<(), Error> {
    let (me, n) = (comm.rank(), comm.size());
    let sum: u32 = (0..n as u32).map(|r| r + seed).sum();
    let mine = me as u32 + seed;

    for len in [1, 500, 40_000] {
        // Where it is registered, or shared, it is sent from and received into without a copy.
        let mut x = comm.allocate::<u32>(len)?;
        x.fill(mine);
        comm.all_reduce(&mut x, ReduceOp::Sum)?;
        assert!(x.iter().all(|&v| v == sum), "all_reduce of {len}");
    }

    let pending = comm.start(AllReduce::new(vec![mine; 20_000]))?;
    let counts: Vec<usize> = (0..n).map(|r| 1 + 900 * r).collect();
    let mut all = vec![0; counts.iter().sum()];
    comm.all_gather_v(&vec![mine; counts[me]], &mut all, &counts)?;
    let expected = counts
        .iter()
        .enumerate()
        .flat_map(|(r, &count)| std::iter::repeat_n(r as u32 + seed, count));
    assert!(all.iter().copied().eq(expected), "all_gather_v");
    assert!(
        pending.wait()?.iter().all(|&v| v == sum),
        "asynchronous all_reduce"
    );

    let (next, previous) = ((me + 1) % n, (me + n - 1) % n);
    let mut got = vec![0; 3_000];
    let sent = vec![mine; 3_000];
    if me % 2 == 0 {
        comm.send(&sent, next, 1)?;
        comm.recv(&mut got, previous, 1)?;
    } else {
        comm.recv(&mut got, previous, 1)?;
        comm.send(&sent, next, 1)?;
    }
    assert!(got.iter().all(|&v| v == previous as u32 + seed), "recv");

    let root = seed as usize % n;
    let mut x = vec![mine; 10_000];
    comm.broadcast(&mut x, root)?;
    assert!(x.iter().all(|&v| v == root as u32 + seed), "broadcast");
    comm.barrier()
}

/// Calls that differ from rank to rank.
fn disagree(comm: &Communicator, how: &str) -> Result<(), Error> {
    let (me, n) = (comm.rank(), comm.size());
    let next = (me + 1) % n;
    let (mine, mut all) = ([1_u32; 10], vec![0_u32; 10 * n]);
    match how {
        // Everybody waits for another root: nobody sends.
        "wait" => comm.broadcast(&mut all, next),
        // The same over messages where memory is mapped.
        "wait_v" => comm.scatter_v(&[], &mut all[..10], &[10; 5][..n], next),
        "v_form" if me == 0 => comm.all_gather_v(&mine, &mut all, &[10; 5][..n]),
        "v_form" => comm.all_gather(&mine, &mut all),
        "length" => comm.all_reduce(&mut all[me..], ReduceOp::Sum),
        "collective" if me == n - 1 => comm.barrier(),
        "collective" => comm.all_reduce(&mut all, ReduceOp::Sum),
        other => panic!("no way of disagreeing: {other}"),
    }
}

/// Not a test of its own: what the processes of other tests run.
#[test]
fn rank_of_a_world() {
    let Ok(text) = env::var("RINGWAY_TEST_RANK") else {
        return;
    };
    // Ends with the parent, which holds the other end.
    std::thread::spawn(|| {
        let _ = std::io::stdin().lock().lines().count();
        std::process::exit(0);
    });
    let numbers: Vec<usize> = text.split(' ').map(|n| n.parse().unwrap()).collect();
    let comm = connect(numbers[0], numbers[1], numbers[2] as u16);
    let endless = env::var("RINGWAY_TEST_ENDLESS").is_ok();
    let mut longest = Duration::ZERO;
    let mut failed = None;
    for seed in 0.. {
        let began = Instant::now();
        let result = match env::var("RINGWAY_TEST_DISAGREE") {
            Ok(how) if seed == 1 => disagree(&comm, &how),
            _ => round(&comm, seed),
        };
        longest = longest.max(began.elapsed());
        if let Err(error) = result {
            failed = Some((now(), error.to_string()));
            break;
        }
        if seed == 0 {
            println!("READY");
            if let Ok(steps) = env::var("RINGWAY_TEST_KILL_AT") {
                killer::arm(steps.parse().unwrap());
            }
        }
        if !endless && seed as usize == ROUNDS {
            break;
        }
    }
    if let Some((at, error)) = failed {
        // Nothing can be called any more, and that is said at once.
        let began = Instant::now();
        assert!(comm.barrier().is_err());
        assert!(began.elapsed() < Duration::from_millis(500));
        println!("ERROR {} {} {error}", at.as_micros(), longest.as_micros());
    }
    let began = Instant::now();
    drop(comm);
    println!("END {}", began.elapsed().as_micros());
    std::io::stdout().flush().unwrap();
    std::process::exit(0);
}
