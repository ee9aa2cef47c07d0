//! Handshakes over real sockets: who gets in, who does not, and what is said about it.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::{
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream},
    time::{Duration, Instant},
};

use ringway_link::{
    Arrival, Bind, Greeting, Hello, Identity, InterfaceFilter, JobId, LinkError, Listener,
    PeerAddress, Ports, Purpose, Reason,
};

const WORLD: usize = 4;

fn identity(rank: usize) -> Identity {
    Identity::new(JobId::from_name("test"), WORLD, rank)
}

fn listener(rank: usize) -> Listener {
    Listener::start(&Bind::default(), identity(rank)).unwrap()
}

fn address(listener: &Listener) -> PeerAddress {
    listener.address(&InterfaceFilter::default()).unwrap()
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

fn knock(listener: &Listener) -> TcpStream {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, listener.port())).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    stream
}

/// What the other side says until it closes.
fn answer(mut stream: TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    bytes
}

fn hello(from: u32, to: &Listener) -> Hello {
    Hello {
        job: to.identity().job,
        world: WORLD as u32,
        from,
        to: to.rank() as u32,
        purpose: Purpose::Data,
        index: 0,
        nonce: 4711,
        wanted: to.identity().nonce,
    }
}

#[test]
fn both_sides_get_the_same_connection_by_purpose() {
    let (a, b) = (listener(0), listener(1));
    for (purpose, index) in [(Purpose::Control, 0), (Purpose::Data, 3)] {
        let mut out = b.connect(address(&a), purpose, index, soon()).unwrap();
        assert_eq!(
            (out.peer, out.index, out.nonce),
            (0, index, a.identity().nonce)
        );
        let Some(Arrival::Session(mut back)) = a.inbox(purpose).wait(soon()) else {
            panic!("nothing arrived");
        };
        assert_eq!(
            (back.peer, back.index, back.nonce),
            (1, index, b.identity().nonce)
        );
        // What is sent right after the handshake is not swallowed by it.
        out.stream.write_all(b"first").unwrap();
        back.stream.set_nonblocking(false).unwrap();
        let mut bytes = [0; 5];
        back.stream.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"first");
    }
}

#[test]
fn every_family_reaches_a_dual_stack_port() {
    let (a, b) = (listener(0), listener(1));
    for ip in [
        IpAddr::from(Ipv4Addr::LOCALHOST),
        Ipv6Addr::LOCALHOST.into(),
    ] {
        if ip.is_ipv6() && TcpListener::bind((ip, 0)).is_err() {
            println!("skipped: no IPv6 on this host");
            continue;
        }
        let to = PeerAddress::at(0, a.port(), [ip]);
        let session = b.connect(to, Purpose::Control, 0, soon()).unwrap();
        assert_eq!(session.remote, SocketAddr::from((ip, a.port())));
    }
}

#[test]
fn strangers_are_refused_and_block_nobody() {
    let (a, b) = (listener(0), listener(1));
    // Silent ones, more than are tolerated at once.
    let silent: Vec<_> = (0..100).map(|_| knock(&a)).collect();
    for bytes in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        b"\x16\x03\x01\x02\x00\x01",
        b"\x93RINGWAz",
    ] {
        let mut stranger = knock(&a);
        stranger.write_all(bytes).unwrap();
        assert_eq!(answer(stranger), b"", "a stranger is told nothing");
    }
    b.connect(address(&a), Purpose::Data, 0, soon()).unwrap();
    let began = Instant::now();
    for stream in silent {
        answer(stream);
    }
    assert!(
        began.elapsed() < Duration::from_secs(8),
        "silent strangers are dropped"
    );
    assert!(
        matches!(a.inbox(Purpose::Data).wait(soon()), Some(Arrival::Session(s)) if s.peer == 1)
    );
    assert!(a.inbox(Purpose::Data).take().is_none());
}

#[test]
fn what_does_not_fit_is_refused_with_a_reason() {
    let a = listener(0);
    let other_version = {
        let mut bytes = Greeting::Hello(hello(1, &a)).encode();
        bytes[8] = 99;
        bytes
    };
    let cases = [
        (
            Reason::Job,
            Hello {
                job: JobId::from_name("other"),
                ..hello(1, &a)
            },
        ),
        (
            Reason::World,
            Hello {
                world: 8,
                ..hello(1, &a)
            },
        ),
        (Reason::World, hello(7, &a)),
        (
            Reason::Rank,
            Hello {
                to: 2,
                ..hello(1, &a)
            },
        ),
        (
            Reason::Process,
            Hello {
                wanted: 1,
                ..hello(1, &a)
            },
        ),
        (Reason::Duplicate, hello(0, &a)),
    ];
    let cases = cases.map(|(reason, hello)| (reason, Greeting::Hello(hello).encode()));
    for (expected, bytes) in cases.into_iter().chain([(Reason::Version, other_version)]) {
        let mut stream = knock(&a);
        stream.write_all(&bytes).unwrap();
        match Greeting::decode(&answer(stream)).unwrap() {
            Greeting::Refusal { reason, text } => assert_eq!(reason, expected, "{text}"),
            other => panic!("expected a refusal for {expected:?}, got {other:?}"),
        }
    }
    assert!(a.inbox(Purpose::Data).take().is_none());
}

#[test]
fn a_second_process_of_a_rank_is_refused_at_once_on_its_side() {
    let (a, b, impostor) = (listener(0), listener(1), listener(1));
    b.connect(address(&a), Purpose::Control, 0, soon()).unwrap();
    let began = Instant::now();
    let error = impostor
        .connect(address(&a), Purpose::Control, 0, soon())
        .unwrap_err();
    assert!(
        matches!(&error, LinkError::Refused { peer: 0, .. }),
        "{error}"
    );
    assert!(
        error
            .to_string()
            .contains("two processes say that they are rank 1"),
        "{error}"
    );
    assert!(began.elapsed() < Duration::from_secs(2));
}

#[test]
fn another_world_size_is_refused_at_once_with_both_numbers() {
    let a = listener(0);
    let other = Identity::new(JobId::from_name("test"), 8, 5);
    let b = Listener::start(&Bind::default(), other).unwrap();
    let error = b
        .connect(address(&a), Purpose::Control, 0, soon())
        .unwrap_err()
        .to_string();
    assert!(error.contains('4') && error.contains("of 8"), "{error}");
}

/// A connection is handed out only when the other side has chosen it.
#[test]
fn a_welcomed_connection_that_is_not_chosen_is_not_handed_out() {
    let a = listener(0);
    let mut stream = knock(&a);
    stream
        .write_all(&Greeting::Hello(hello(1, &a)).encode())
        .unwrap();
    let mut welcome = [0; 64];
    stream.read_exact(&mut welcome).unwrap();
    assert!(matches!(
        Greeting::decode(&welcome),
        Ok(Greeting::Welcome(_))
    ));
    assert!(a.inbox(Purpose::Data).take().is_none());
    drop(stream);
    // One that is chosen while it says hello byte by byte is.
    let mut stream = knock(&a);
    let bytes = [
        Greeting::Hello(hello(1, &a)).encode(),
        Greeting::Commit.encode(),
    ]
    .concat();
    for byte in bytes {
        stream.write_all(&[byte]).unwrap();
    }
    let arrival = a.inbox(Purpose::Data).wait(soon());
    assert!(matches!(arrival, Some(Arrival::Session(s)) if s.nonce == 4711));
}

/// Decoys: an address where another rank of the job answers, one where another service does, one where
/// nobody answers, and one that swallows everything.
#[test]
fn decoys_do_not_win_and_are_listed_when_all_fail() {
    let b = listener(1);
    let service = TcpListener::bind((Ipv4Addr::new(127, 0, 0, 3), 0)).unwrap();
    let port = service.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in service.incoming().flatten() {
            let _ = (&stream).write_all(b"220 mail ready\r\n");
        }
    });
    let fixed = move |ip: [u8; 4]| Bind {
        address: Some(Ipv4Addr::from(ip).into()),
        ports: Ports::Range(port..=port),
    };
    let decoy = Listener::start(&fixed([127, 0, 0, 4]), identity(2)).unwrap();
    let ips = [[127, 0, 0, 3], [127, 0, 0, 4], [127, 0, 0, 5]].map(|ip| Ipv4Addr::from(ip).into());
    let to = PeerAddress::at(0, port, ips);
    let deadline = Instant::now() + Duration::from_millis(700);
    let error = b
        .connect(to.clone(), Purpose::Data, 0, deadline)
        .unwrap_err();
    let LinkError::Unreachable { peer: 0, tried, .. } = &error else {
        panic!("{error}")
    };
    assert!(
        tried.contains(&format!("127.0.0.3:{port} (expected a Ringway hello")),
        "{tried}"
    );
    assert!(
        tried.contains(&format!(
            "127.0.0.4:{port} (refused: this is rank 2, not rank 0"
        )),
        "{tried}"
    );
    assert!(
        tried.contains(&format!("127.0.0.5:{port} (connection refused")),
        "{tried}"
    );

    // The right one comes up late, at the last address.
    let late = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        Listener::start(&fixed([127, 0, 0, 5]), identity(0)).unwrap()
    });
    let session = b.connect(to, Purpose::Data, 0, soon()).unwrap();
    assert_eq!(session.remote.ip(), Ipv4Addr::new(127, 0, 0, 5));
    drop((late.join().unwrap(), decoy));
}

#[test]
fn a_forgotten_process_of_an_earlier_run_is_not_taken_for_the_rank() {
    let (old, b) = (listener(0), listener(1));
    let mut to = address(&old);
    to.nonce ^= 1;
    let deadline = Instant::now() + Duration::from_millis(300);
    let error = b
        .connect(to, Purpose::Data, 0, deadline)
        .unwrap_err()
        .to_string();
    assert!(error.contains("another process of rank 0"), "{error}");
}

#[test]
fn a_rank_without_usable_address_is_named() {
    let b = listener(1);
    let deadline = Instant::now() + Duration::from_millis(100);
    let error = b
        .connect(PeerAddress::at(3, 9, []), Purpose::Data, 0, deadline)
        .unwrap_err();
    assert!(error.to_string().contains("rank 3"), "{error}");
    assert!(error.to_string().contains("no address"), "{error}");
}

#[test]
fn many_ranks_connect_at_once() {
    let world = 24;
    let job = JobId::from_name("many");
    let start = |rank| Listener::start(&Bind::default(), Identity::new(job, world, rank)).unwrap();
    let listeners: Vec<_> = (0..world).map(start).collect();
    let addresses: Vec<_> = listeners.iter().map(address).collect();
    for (rank, listener) in listeners.iter().enumerate() {
        for to in &addresses[..rank] {
            listener.dial(to.clone(), Purpose::Data, 0, soon());
        }
    }
    for (rank, listener) in listeners.iter().enumerate() {
        let inbox = listener.inbox(Purpose::Data);
        let mut peers: Vec<_> = (1..world)
            .map(|_| match inbox.wait(soon()) {
                Some(Arrival::Session(session)) => session.peer,
                other => panic!("{other:?}"),
            })
            .collect();
        peers.sort_unstable();
        assert_eq!(peers, (0..world).filter(|&r| r != rank).collect::<Vec<_>>());
    }
}
