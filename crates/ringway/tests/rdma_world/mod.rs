//! Ranks as threads, whose collectives over RDMA are compared with those over TCP.

use std::{net::TcpListener, thread};

use ringway::{
    Builder, Communicator, Element, ReduceOp,
    bootstrap::{Launch, Launcher, Rendezvous},
    settings::{Settings, Source},
};

/// Runs `body` as every rank of a world over these transports and each rank's interfaces, with some settings, and returns
/// what each gives.
pub(crate) fn world_with<R: Send>(
    ranks: usize,
    transports: &str,
    interfaces: fn(usize) -> String,
    chosen: &[(&str, &str)],
    body: impl Fn(Communicator) -> R + Sync,
) -> Vec<R> {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    drop(socket);
    thread::scope(|scope| {
        let run = |rank| {
            let body = &body;
            scope.spawn(move || {
                let mut settings = Settings::default();
                let interfaces = interfaces(rank);
                let own = [("transports", transports), ("interfaces", &*interfaces)];
                for (key, value) in chosen.iter().chain(&own) {
                    let name = "test".into();
                    settings.set(key, value, Source::Flag { name }).unwrap();
                }
                let rendezvous = Rendezvous::Master {
                    host: "127.0.0.1".into(),
                    port,
                };
                let launch = Launch {
                    launcher: Launcher::Caller,
                    rank,
                    size: ranks,
                    local_rank: None,
                    job: "rdma".into(),
                    rendezvous,
                };
                let builder = Builder::default().settings(settings).launch(launch);
                let comm = builder.connect().unwrap();
                assert_eq!(comm.path(), transports);
                body(comm)
            })
        };
        let threads: Vec<_> = (0..ranks).map(run).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

/// Calls of several kinds with elements made by `make`, and all their results.
pub(crate) fn calls<T: Element + PartialEq + std::fmt::Debug>(
    comm: &Communicator,
    lengths: &[usize],
    make: fn(usize) -> T,
) -> Vec<Vec<T>> {
    let (me, n) = (comm.rank(), comm.size());
    let mine = |len: usize| (0..len).map(|i| make(me * 31 + i)).collect::<Vec<T>>();
    let mut results = Vec::new();
    for &len in lengths {
        let mut x = mine(len);
        comm.all_reduce(&mut x, ReduceOp::Sum).unwrap();
        results.push(x);

        let mut all = vec![make(0); len * n];
        comm.all_gather(&mine(len), &mut all).unwrap();
        for (rank, part) in all.chunks(len.max(1)).enumerate() {
            let expected = (0..len).map(|i| make(rank * 31 + i));
            assert!(part.iter().copied().eq(expected), "all_gather of {len}");
        }

        let mut x = mine(len);
        comm.broadcast(&mut x, len % n).unwrap();
        results.push(x);
    }
    results
}

/// The same calls over RDMA and over TCP: the same bits on all ranks, and over both.
pub(crate) fn same_bits<T: Element + PartialEq + std::fmt::Debug>(
    ranks: usize,
    interfaces: fn(usize) -> String,
    lengths: &[usize],
    make: fn(usize) -> T,
) {
    // Eight ranks on the emulated processors of a busy machine are silent for longer than a real job's.
    let patient = [("failure_after", "20s")];
    let over = |transports| {
        world_with(ranks, transports, interfaces, &patient, |comm| {
            calls(&comm, lengths, make)
        })
    };
    let (rdma, tcp) = (over("rdma"), over("tcp"));
    assert!(rdma.iter().all(|results| *results == tcp[0]));
}
