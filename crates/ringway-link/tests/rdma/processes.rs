//! Two processes, one of which is killed. The other one is this test binary again, told so by the environment.

use std::{
    env,
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use ringway_link::rdma::{
    AckTimeout, Address, Device, Key, QueuePairOptions, Remote, Source, Status, Work,
};

use crate::end::{End, LIMIT, pattern};

const CHILD: &str = "RINGWAY_TEST_RDMA_CHILD";
const BYTES: usize = 300_001;

fn options() -> QueuePairOptions {
    QueuePairOptions {
        // 0.27 s, four times: longer than a loaded machine keeps the other process waiting.
        ack_timeout: AckTimeout::new(16).unwrap(),
        retries: 3,
        ..QueuePairOptions::default()
    }
}

/// What each side tells the other.
const TOLD: usize = Address::LEN + 4 + 8;

fn tell(end: &End) -> Vec<u8> {
    let mut bytes = end.address().encode().to_vec();
    bytes.extend(end.region.remote.0.to_le_bytes());
    bytes.extend(end.region.address.to_le_bytes());
    bytes
}

fn hear(end: &mut End, bytes: &[u8; TOLD]) -> Remote {
    let (address, rest) = bytes.split_at(Address::LEN);
    end.connect(&Address::parse(address).unwrap());
    let (key, address) = rest.split_at(4);
    Remote {
        key: Key(u32::from_le_bytes(key.try_into().unwrap())),
        address: u64::from_le_bytes(address.try_into().unwrap()),
    }
}

/// The other process: writes what it gets by SEND back, until it is killed. Does nothing in an ordinary run.
#[test]
fn child() {
    let Ok(ip) = env::var(CHILD) else { return };
    let mut end = End::new(ip.parse().unwrap(), &options());
    end.post_receive(0, 0, BYTES);
    // On the standard error, as the test harness writes to the output.
    std::io::stderr().write_all(&tell(&end)).unwrap();
    let mut told = [0; TOLD];
    std::io::stdin().read_exact(&mut told).unwrap();
    let mut remote = hear(&mut end, &told);
    remote.address += BYTES as u64;
    let deadline = Instant::now() + LIMIT;
    while Instant::now() < deadline {
        end.poll();
        for completion in std::mem::take(&mut end.completions) {
            if let Ok(ringway_link::rdma::Done::Receive { length, .. }) = completion.result {
                let source = Source::Memory(end.local(0, length as usize));
                let immediate = Some(length);
                let work = Work::Write {
                    source,
                    remote,
                    immediate,
                };
                end.post(0, work);
            }
        }
    }
}

fn start(ip: IpAddr) -> (Child, End) {
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "processes::child", "--nocapture"])
        .env(CHILD, ip.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut end = End::new(ip, &options());
    let mut told = [0; TOLD];
    let mut from = child.stderr.take().unwrap();
    from.read_exact(&mut told).unwrap();
    child.stdin.take().unwrap().write_all(&tell(&end)).unwrap();
    hear(&mut end, &told);
    (child, end)
}

#[test]
fn another_process_answers_and_its_death_is_noticed() {
    for ip in [
        IpAddr::from(Ipv4Addr::LOCALHOST),
        Ipv6Addr::LOCALHOST.into(),
    ] {
        let (mut child, mut end) = start(ip);
        end.fill(0, &pattern(8, BYTES));
        end.post_receive(1, 0, 0);
        let source = Source::Memory(end.local(0, BYTES));
        let immediate = None;
        end.post(2, Work::Send { source, immediate });
        let deadline = Instant::now() + LIMIT;
        while end.completions.len() < 2 {
            assert!(Instant::now() < deadline, "no answer");
            end.poll();
        }
        assert!(end.bytes(BYTES, BYTES) == pattern(8, BYTES));
        assert!(end.completions.iter().all(|it| it.result.is_ok()));

        child.kill().unwrap();
        child.wait().unwrap();
        end.completions.clear();
        end.post(3, Work::Send { source, immediate });
        end.post_receive(4, 0, 0);
        let killed = Instant::now();
        while end.completions.len() < 2 {
            assert!(killed.elapsed() < LIMIT, "its death isn't noticed");
            end.device.arm();
            std::thread::sleep(Duration::from_millis(1));
            end.device.disarm();
            end.poll();
        }
        let statuses: Vec<_> = end
            .completions
            .iter()
            .map(|it| (it.id, it.result.unwrap_err().status))
            .collect();
        let expected = [(3, Status::RetriesExceeded), (4, Status::Flushed)];
        assert_eq!(statuses, expected);
        // The first transmission and the repetitions have waited for their time.
        assert!(killed.elapsed() > Duration::from_millis(100));
    }
}
