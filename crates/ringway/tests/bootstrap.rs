//! Ranks meet, or say why not.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that panics has failed, as it should"
)]

#[path = "common/port.rs"]
mod port;

use std::{
    collections::HashMap,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    sync::{Arc, Condvar, Mutex},
    thread,
    time::{Duration, Instant},
};

use port::free_port;
use ringway::{
    bootstrap::{self, BootstrapError, Launch, Launcher, Rendezvous, Store, StoreError, World},
    settings::{Settings, Source},
};

const PATIENCE: Duration = Duration::from_secs(5);

fn settings(timeout: &str) -> Settings {
    let mut settings = Settings::default();
    settings
        .set(
            "connect_timeout",
            timeout,
            Source::Flag {
                name: "test".into(),
            },
        )
        .unwrap();
    settings
}

fn at(host: &str, port: u16) -> Rendezvous {
    Rendezvous::Master {
        host: host.to_owned(),
        port,
    }
}

fn launch(rank: usize, size: usize, rendezvous: Rendezvous) -> Launch {
    let launcher = Launcher::Caller;
    Launch {
        launcher,
        rank,
        size,
        local_rank: None,
        job: "test".into(),
        rendezvous,
    }
}

/// The given launches, each on a thread of its own, side by side.
fn join_all(timeout: &str, launches: Vec<Launch>) -> Vec<Result<World, BootstrapError>> {
    let settings = settings(timeout);
    thread::scope(|scope| {
        let ranks: Vec<_> = launches
            .iter()
            .map(|launch| scope.spawn(|| bootstrap::join(&settings, launch)))
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn check_worlds(worlds: Vec<Result<World, BootstrapError>>) {
    let worlds: Vec<_> = worlds.into_iter().map(Result::unwrap).collect();
    for (rank, world) in worlds.iter().enumerate() {
        assert_eq!((world.rank, world.size()), (rank, worlds.len()));
        assert_eq!(world.members, worlds[0].members);
        assert_eq!(world.me().address.port, world.listener.port());
        assert_eq!(world.local_ranks(), (0..worlds.len()).collect::<Vec<_>>());
        assert_eq!(world.hosts().len(), 1);
        world
            .store
            .set(
                &format!("from {rank}"),
                format!("value {rank}").as_bytes(),
                Instant::now() + PATIENCE,
            )
            .unwrap();
    }
    let soon = Instant::now() + Duration::from_secs(5);
    for world in &worlds {
        for rank in 0..worlds.len() {
            let value = world.store.get(&format!("from {rank}"), soon).unwrap();
            assert_eq!(value, format!("value {rank}").as_bytes());
        }
        let absent = world
            .store
            .get("nobody", Instant::now() + Duration::from_millis(20));
        assert!(
            matches!(absent, Err(StoreError::Absent { .. })),
            "{absent:?}"
        );
    }
}

#[test]
fn worlds_meet_at_rank_0() {
    for size in [1, 2, 5] {
        let port = if size == 1 { 0 } else { free_port() };
        check_worlds(join_all(
            "10s",
            (0..size)
                .map(|r| launch(r, size, at("localhost", port)))
                .collect(),
        ));
    }
}

#[test]
fn a_value_wakes_those_who_wait_for_it() {
    let port = free_port();
    let worlds = join_all(
        "10s",
        (0..3).map(|r| launch(r, 3, at("::1", port))).collect(),
    );
    let worlds: Vec<_> = worlds.into_iter().map(Result::unwrap).collect();
    thread::scope(|scope| {
        for world in &worlds[..2] {
            scope.spawn(|| {
                let began = Instant::now();
                let value = world
                    .store
                    .get("late", began + Duration::from_secs(10))
                    .unwrap();
                assert_eq!(value, b"here");
                assert!(began.elapsed() < Duration::from_secs(5));
            });
        }
        thread::sleep(Duration::from_millis(100));
        worlds[2]
            .store
            .set("late", b"here", Instant::now() + PATIENCE)
            .unwrap();
    });
    let long = vec![0; (1 << 20) + 1];
    assert!(matches!(
        worlds[1]
            .store
            .set("long", &long, Instant::now() + PATIENCE),
        Err(StoreError::TooLong { .. })
    ));
}

#[test]
fn a_missing_rank_is_named_on_every_rank_at_the_deadline() {
    let port = free_port();
    let began = Instant::now();
    let ends = join_all(
        "700ms",
        [0, 1, 2, 4, 5]
            .map(|r| launch(r, 7, at("127.0.0.1", port)))
            .into(),
    );
    assert!(
        began.elapsed() < Duration::from_secs(3),
        "{:?}",
        began.elapsed()
    );
    for end in ends {
        let error = end.unwrap_err().to_string();
        assert!(
            error.starts_with("ranks 3, 6 of 7 have not joined within"),
            "{error}"
        );
        assert!(error.contains("ranks 0-2, 4, 5 have"), "{error}");
        assert!(error.contains("RINGWAY_CONNECT_TIMEOUT"), "{error}");
    }
}

#[test]
fn a_missing_rank_0_is_named() {
    let end = join_all("300ms", vec![launch(1, 2, at("127.0.0.1", free_port()))]).remove(0);
    let error = end.unwrap_err().to_string();
    for part in [
        "rank 1 did not reach rank 0 at 127.0.0.1:",
        "refused",
        "check that rank 0",
    ] {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn two_processes_with_one_rank_are_named() {
    let port = free_port();
    let ranks = [0, 1, 1].map(|r| launch(r, 3, at("127.0.0.1", port)));
    let ends = join_all("800ms", ranks.into());
    let errors: Vec<_> = ends.into_iter().map(|end| end.unwrap_err()).collect();
    let duplicate = |e: &&BootstrapError| matches!(e, BootstrapError::Duplicate { rank: 1, .. });
    let text = errors
        .iter()
        .find(duplicate)
        .expect("one is refused")
        .to_string();
    let process = format!("pid {})", std::process::id());
    assert_eq!(text.matches(&process).count(), 2, "{text}");
    assert!(
        errors[0]
            .to_string()
            .starts_with("rank 2 of 3 has not joined"),
        "{}",
        errors[0]
    );
}

#[test]
fn a_second_rank_0_is_named() {
    let port = free_port();
    thread::scope(|scope| {
        let first =
            scope.spawn(|| join_all("1500ms", vec![launch(0, 2, at("127.0.0.1", port))]).remove(0));
        thread::sleep(Duration::from_millis(300));
        let second = join_all("1500ms", vec![launch(0, 2, at("127.0.0.1", port))]).remove(0);
        let second = second.unwrap_err();
        assert!(
            matches!(second, BootstrapError::Duplicate { rank: 0, .. }),
            "{second}"
        );
        assert!(
            first
                .join()
                .unwrap()
                .unwrap_err()
                .to_string()
                .starts_with("rank 1 of 2 has not joined")
        );
    });
}

#[test]
fn other_sizes_and_jobs_are_refused_and_rank_0_says_so_too() {
    let port = free_port();
    let mut other_job = launch(1, 2, at("127.0.0.1", port));
    other_job.job = "another".into();
    let ranks = vec![
        launch(0, 2, at("127.0.0.1", port)),
        launch(1, 3, at("127.0.0.1", port)),
        other_job,
    ];
    let errors: Vec<_> = join_all("900ms", ranks)
        .into_iter()
        .map(|end| end.unwrap_err().to_string())
        .collect();
    assert!(
        errors[1].contains("in a world of 3 ranks") && errors[1].contains("in one of 2"),
        "{errors:?}"
    );
    assert!(
        errors[2].contains("job `another`") && errors[2].contains("job `test`"),
        "{errors:?}"
    );
    assert!(
        errors[0].contains("rank 1 of 2 has not joined"),
        "{errors:?}"
    );
    assert!(
        errors[0].contains("world of 3") && errors[0].contains("`another`"),
        "{errors:?}"
    );
}

#[test]
fn strangers_at_the_master_port_do_no_harm() {
    let port = free_port();
    thread::scope(|scope| {
        let rank_0 =
            scope.spawn(|| join_all("10s", vec![launch(0, 2, at("127.0.0.1", port))]).remove(0));
        let connect = || loop {
            match TcpStream::connect(("127.0.0.1", port)) {
                Ok(stream) => return stream,
                Err(_) => thread::sleep(Duration::from_millis(5)),
            }
        };
        let silent: Vec<_> = (0..20).map(|_| connect()).collect();
        for garbage in [
            &b"GET / HTTP/1.1\r\n\r\n"[..],
            b"\x16\x03\x01",
            &[0; 4096],
            b"\x92RWY\xff\xff\0\0",
        ] {
            let mut stranger = connect();
            stranger.write_all(garbage).unwrap();
            if garbage.len() >= 16 {
                // It is hung up on, at once.
                stranger
                    .set_read_timeout(Some(Duration::from_secs(2)))
                    .unwrap();
                assert!(matches!(stranger.read(&mut [0; 64]), Ok(0) | Err(_)));
            }
        }
        let rank_1 = join_all("10s", vec![launch(1, 2, at("127.0.0.1", port))]).remove(0);
        drop(silent);
        check_worlds(vec![rank_0.join().unwrap(), rank_1]);
    });
}

#[test]
fn a_port_that_another_program_has_is_named() {
    let taken = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let ends = join_all(
        "600ms",
        (0..2)
            .map(|r| launch(r, 2, at("127.0.0.1", port)))
            .collect(),
    );
    let errors: Vec<_> = ends
        .into_iter()
        .map(|end| end.unwrap_err().to_string())
        .collect();
    for part in [
        &format!("rank 0 cannot listen on 127.0.0.1:{port}"),
        "in use",
        "RINGWAY_MASTER_PORT",
    ] {
        assert!(errors[0].contains(part), "{}", errors[0]);
    }
    assert!(
        errors[1].contains("rank 1 did not reach rank 0"),
        "{}",
        errors[1]
    );

    let mut settings = settings("600ms");
    settings
        .set(
            "port",
            &port.to_string(),
            Source::Flag {
                name: "test".into(),
            },
        )
        .unwrap();
    let error = bootstrap::join(&settings, &launch(0, 1, at("127.0.0.1", 0)))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("RINGWAY_PORT") && error.contains(&port.to_string()),
        "{error}"
    );
}

#[test]
fn another_program_that_answers_is_named_at_once() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = other.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in other.incoming() {
            let _ = stream
                .unwrap()
                .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let began = Instant::now();
    let error = join_all("20s", vec![launch(1, 2, at("127.0.0.1", port))])
        .remove(0)
        .unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(5));
    let error = error.to_string();
    assert!(
        error.contains("another protocol") && error.contains("RINGWAY_MASTER_PORT"),
        "{error}"
    );
}

#[test]
fn masters_that_cannot_be_reached_are_named_by_the_deadline() {
    // The first is an address for documents, which nobody has; the second a name that nobody may have.
    for (host, part) in [
        ("192.0.2.1", "192.0.2.1:29500"),
        ("no-such-host.invalid", "no-such-host.invalid"),
    ] {
        let began = Instant::now();
        let error = join_all("500ms", vec![launch(1, 2, at(host, 29500))])
            .remove(0)
            .unwrap_err();
        assert!(
            began.elapsed() < Duration::from_secs(3),
            "{:?}",
            began.elapsed()
        );
        assert!(error.to_string().contains(part), "{error}");
        assert!(error.to_string().contains("firewall"), "{error}");
    }
}

#[test]
fn rank_0_on_the_wrong_host_says_so() {
    let end = join_all("1300ms", vec![launch(0, 2, at("192.0.2.1", free_port()))]).remove(0);
    let error = end.unwrap_err().to_string();
    assert!(
        error.contains("192.0.2.1 is no address of this host"),
        "{error}"
    );
}

/// A store as Python would bring one.
#[derive(Default)]
struct Shelf {
    values: Mutex<HashMap<String, Vec<u8>>>,
    set: Condvar,
}

impl Store for Shelf {
    fn set(&self, key: &str, value: &[u8], _: Instant) -> Result<(), StoreError> {
        self.values
            .lock()
            .unwrap()
            .insert(key.to_owned(), value.to_vec());
        self.set.notify_all();
        Ok(())
    }

    fn get(&self, key: &str, deadline: Instant) -> Result<Vec<u8>, StoreError> {
        let began = Instant::now();
        let left = deadline.saturating_duration_since(began);
        let values = self.values.lock().unwrap();
        let absent = |values: &mut HashMap<_, _>| !values.contains_key(key);
        let (values, _) = self.set.wait_timeout_while(values, left, absent).unwrap();
        let absent = || StoreError::Absent {
            key: key.to_owned(),
            waited: began.elapsed(),
        };
        values.get(key).cloned().ok_or_else(absent)
    }

    fn describe(&self) -> String {
        "the shelf".to_owned()
    }
}

fn on_shelf(ranks: &[usize], size: usize, timeout: &str) -> Vec<Result<World, BootstrapError>> {
    let shelf: Arc<dyn Store> = Arc::new(Shelf::default());
    let launches = ranks
        .iter()
        .map(|&r| launch(r, size, Rendezvous::Store(Arc::clone(&shelf))));
    join_all(timeout, launches.collect())
}

#[test]
fn worlds_meet_at_an_external_store() {
    for size in [1, 2, 6] {
        check_worlds(on_shelf(&(0..size).collect::<Vec<_>>(), size, "10s"));
    }
}

#[test]
fn an_external_store_shows_who_is_missing() {
    for (ranks, missing) in [
        (&[0, 1, 3][..], "rank 2 of 4"),
        (&[1, 2], "ranks 0, 3 of 4"),
    ] {
        let began = Instant::now();
        for end in on_shelf(ranks, 4, "500ms") {
            let error = end.unwrap_err().to_string();
            assert!(error.starts_with(missing), "{error}");
        }
        assert!(began.elapsed() < Duration::from_secs(3));
    }
}

#[test]
fn an_external_store_shows_duplicates_and_misfits() {
    let ends = on_shelf(&[0, 1, 1], 2, "5s");
    let refused = ends
        .iter()
        .filter(|end| matches!(end, Err(BootstrapError::Duplicate { rank: 1, .. })));
    assert_eq!(refused.count(), 1, "{ends:?}");

    let shelf: Arc<dyn Store> = Arc::new(Shelf::default());
    let sizes = [(0, 2), (1, 3)];
    let launches = sizes.map(|(r, size)| launch(r, size, Rendezvous::Store(Arc::clone(&shelf))));
    for end in join_all("5s", launches.into()) {
        let error = end.unwrap_err().to_string();
        assert!(error.contains("in a world of 3 ranks"), "{error}");
    }
}

/// Not a test of its own: what the processes of the next test run.
#[test]
fn process_of_many() {
    let Ok(rank) = std::env::var("RINGWAY_TEST_RANK") else {
        return;
    };
    let port = std::env::var("RINGWAY_TEST_PORT").unwrap().parse().unwrap();
    let launch = launch(rank.parse().unwrap(), 64, at("127.0.0.1", port));
    let world = bootstrap::join(&settings("60s"), &launch).unwrap();
    assert_eq!(world.local_ranks().len(), 64);
    println!("joined");
}

#[test]
fn sixty_four_processes_meet_within_five_seconds() {
    let port = free_port();
    let began = Instant::now();
    // Rank 0 last: all others have to wait for it.
    let start = |rank: usize| -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args(["process_of_many", "--exact", "--nocapture"])
            .env("RINGWAY_TEST_RANK", rank.to_string())
            .env("RINGWAY_TEST_PORT", port.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let ranks: Vec<Child> = (0..64).rev().map(start).collect();
    for rank in ranks {
        let out = rank.wait_with_output().unwrap();
        assert!(out.status.success() && String::from_utf8_lossy(&out.stdout).contains("joined"));
    }
    let took = began.elapsed();
    println!("64 processes started and met in {took:.2?}");
    assert!(took < Duration::from_secs(5), "{took:?}");
}
