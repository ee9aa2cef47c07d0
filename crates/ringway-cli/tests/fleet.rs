#![allow(clippy::unwrap_used, reason = "tests")]
//! `ringway doctor --fleet` over hosts that are network namespaces on a bridge, each with something wrong. Needs root, `ip` and
//! `tc` (iproute2); without, the tests say so and pass.

mod scratch;

use std::{
    io::Read as _,
    process::{Child, Command, Output, Stdio},
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

const RINGWAY: &str = env!("CARGO_BIN_EXE_ringway");

/// The machine has few CPUs: one fleet at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn shell(script: &str) -> Result<(), String> {
    let output = Command::new("sh").args(["-ec", script]).output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{script}: {}", words.trim())),
    }
}

/// How programs begin that forward frames between two interfaces.
const ENDS: &str = r#"
import select, socket, sys, time
ends = []
for name in sys.argv[1:3]:
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    end.setsockopt(263, 15, 1)  # SOL_PACKET, PACKET_VNET_HDR
    end.setsockopt(263, 23, 1)  # PACKET_IGNORE_OUTGOING
    end.bind((name, 0))
    ends.append(end)
print("!", end="", flush=True)
"#;

/// Forwards frames between two interfaces, and clears the type of service of IPv4 from the first to the second. The header in
/// front of each frame (linux/virtio_net.h) carries what the kernel has left to do: checksums and cutting.
const BLEACH: &str = r#"
while True:
    for end in select.select(ends, [], [])[0]:
        frame = bytearray(end.recv(1 << 17))
        if end is ends[0] and frame[22:24] == b"\x08\x00":
            head = frame[24:24 + 4 * (frame[24] & 15)]
            head[1] = head[10] = head[11] = 0
            total = sum(int.from_bytes(head[i:i + 2], "big") for i in range(0, len(head), 2))
            while total >> 16:
                total = (total & 0xFFFF) + (total >> 16)
            head[10:12] = (total ^ 0xFFFF).to_bytes(2, "big")
            frame[24:24 + len(head)] = head
        try:
            ends[end is ends[0]].send(frame)
        except OSError:
            pass  # as a switch, it drops what does not fit
"#;

/// Forwards frames between two interfaces, and those that tell of errors (ICMP) 220 ms late.
const HOLD: &str = r#"
late = []
while True:
    wait = max(0, late[0][0] - time.monotonic()) if late else None
    for end in select.select(ends, [], [], wait)[0]:
        frame, to = end.recv(1 << 17), ends[end is ends[0]]
        if frame[22:24] == b"\x08\x00" and frame[33] == 1:
            late.append((time.monotonic() + 0.22, to, frame))
        else:
            to.send(frame)
    while late and late[0][0] <= time.monotonic():
        _, to, frame = late.pop(0)
        to.send(frame)
"#;

/// A program that forwards packets, ended when dropped.
struct Hop(Child);

impl Hop {
    /// Starts the script between two interfaces of a namespace.
    fn start(namespace: &str, script: &str, ends: [&str; 2]) -> Result<Self, String> {
        let mut command = Command::new("ip");
        let script = format!("{ENDS}{script}");
        command.args(["netns", "exec", namespace, "python3", "-c", &script]);
        let child = command.args(ends).stdout(Stdio::piped()).spawn();
        let mut hop = Self(child.map_err(|error| error.to_string())?);
        let mut ready = [0];
        match hop.0.stdout.as_mut().unwrap().read(&mut ready) {
            Ok(1) => Ok(hop),
            _ => Err("python3 cannot forward packets here".to_owned()),
        }
    }
}

impl Drop for Hop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Hosts `10.77.0.1`, `.2` ... on a bridge, gone when dropped.
struct Network {
    prefix: String,
    hosts: usize,
}

impl Network {
    /// `None`, with the reason printed, where the machine cannot.
    fn new(hosts: usize) -> Option<Self> {
        let network = Self {
            prefix: format!("rwf{}", std::process::id()),
            hosts,
        };
        let prefix = &network.prefix;
        let mut script = format!(
            "ip netns add {prefix}s; ip -n {prefix}s link add bridge type bridge; ip -n {prefix}s link set bridge up\n"
        );
        for host in 0..hosts {
            script += &format!(
                "ip netns add {prefix}{host}; ip -n {prefix}{host} link set lo up\n\
                 ip link add eth0 netns {prefix}{host} mtu 9000 type veth peer name port{host} netns {prefix}s mtu 9000\n\
                 ip -n {prefix}s link set port{host} master bridge up\n\
                 ip -n {prefix}{host} address add 10.77.0.{}/24 dev eth0; ip -n {prefix}{host} link set eth0 up\n",
                host + 1
            );
        }
        match shell(&script) {
            Ok(()) => Some(network),
            Err(reason) => {
                println!("skipped: cannot make network namespaces: {reason}");
                None
            }
        }
    }

    /// Runs a command on a host, or on the switch (`s`).
    fn run(&self, place: &str, command: &str) -> Result<(), String> {
        shell(&format!("ip netns exec {}{place} {command}", self.prefix))
    }

    /// Gives a host a second interface on the same network, for whose address it alone answers.
    fn second(&self, host: &str) -> Result<(), String> {
        let prefix = &self.prefix;
        let address = host.parse::<u8>().unwrap() + 101;
        shell(&format!(
            "ip link add eth1 netns {prefix}{host} mtu 9000 type veth peer name second{host} netns {prefix}s mtu 9000\n\
             ip -n {prefix}s link set second{host} master bridge up\n\
             for end in all eth0 eth1; do\n\
             ip netns exec {prefix}{host} sh -c \"cd /proc/sys/net/ipv4/conf/$end; echo 1 > arp_ignore; echo 2 > arp_announce; echo 0 > rp_filter\"\n\
             done\n\
             ip -n {prefix}{host} address add 10.77.0.{address}/24 dev eth1; ip -n {prefix}{host} link set eth1 up"
        ))
    }

    /// Puts a hop between a host and the bridge that takes the type of service from what the host sends, until it is dropped.
    fn bleach(&self, host: usize) -> Result<Hop, String> {
        let prefix = &self.prefix;
        shell(&format!(
            "ip -n {prefix}s link add hop0 mtu 9000 type veth peer name hop1 mtu 9000\n\
             for end in hop0 hop1; do ip -n {prefix}s link set $end up; done"
        ))?;
        let port = format!("port{host}");
        let hop = Hop::start(&format!("{prefix}s"), BLEACH, [&port, "hop0"])?;
        shell(&format!(
            "ip -n {prefix}s link set {port} nomaster promisc on; ip -n {prefix}s link set hop0 promisc on\n\
             ip -n {prefix}s link set hop1 master bridge"
        ))?;
        Ok(hop)
    }

    /// A rank on each host; `cpu` is the CPU that it is bound to.
    fn start(&self, cpu: impl Fn(usize) -> Option<usize>) -> Vec<Child> {
        let rank = |rank: usize| {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", &format!("{}{rank}", self.prefix)]);
            if let Some(cpu) = cpu(rank) {
                command.args(["taskset", "-c", &cpu.to_string()]);
            }
            command
                .args([RINGWAY, "doctor", "--fleet", "--json"])
                .env("RINGWAY_RANK", rank.to_string())
                .env("RINGWAY_WORLD_SIZE", self.hosts.to_string())
                .env("RINGWAY_MASTER", "10.77.0.1:29477")
                .env("RINGWAY_CONNECT_TIMEOUT", "40s")
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        };
        (0..self.hosts).map(rank).collect()
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let places = (0..self.hosts).map(|host| host.to_string());
        for place in places.chain(["s".to_owned()]) {
            let _ = shell(&format!("ip netns delete {}{place}", self.prefix));
        }
    }
}

/// What rank 0 says, once all have ended.
fn result(ranks: Vec<Child>) -> (Value, Option<i32>) {
    let outputs: Vec<Output> = ranks
        .into_iter()
        .map(|it| it.wait_with_output().unwrap())
        .collect();
    let json = serde_json::from_slice(&outputs[0].stdout);
    let json = json.unwrap_or_else(|error| panic!("{error}: {outputs:?}"));
    (json, outputs[0].status.code())
}

/// Findings of a check, each with subject, problem and remedy in a line.
fn found(json: &Value, check: &str) -> Vec<String> {
    let findings = json["report"]["findings"].as_array().unwrap();
    let of_check = findings.iter().filter(|it| it["check"] == check);
    let line = |it: &Value| format!("{} | {} | {}", it["subject"], it["problem"], it["remedy"]);
    of_check.map(line).collect()
}

/// Processes that keep a CPU busy, gone when dropped.
struct Burners(Vec<Child>);

impl Burners {
    fn on(cpu: usize, count: usize) -> Self {
        let burner = || {
            let mut command = Command::new("taskset");
            command.args([
                "-c",
                &cpu.to_string(),
                "timeout",
                "120",
                "sh",
                "-c",
                "while :; do :; done",
            ]);
            command.spawn().unwrap()
        };
        Self((0..count).map(|_| burner()).collect())
    }
}

impl Drop for Burners {
    fn drop(&mut self) {
        for burner in &mut self.0 {
            // To `timeout`, which ends what it has started, too.
            let _ = shell(&format!("kill -TERM {}", burner.id()));
            let _ = burner.wait();
        }
    }
}

#[test]
fn a_slow_link_and_a_busy_host_are_told_apart() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(network) = Network::new(4) else {
        return;
    };
    let slow = "tc qdisc add dev eth0 root tbf rate 40mbit burst 64kb latency 200ms";
    if let Err(reason) = network.run("1", slow) {
        println!("skipped: cannot slow down a link: {reason}");
        return;
    }
    if thread::available_parallelism().unwrap().get() < 2 {
        println!("skipped: one CPU cannot have a busy host beside others");
        return;
    }
    let burners = Burners::on(1, 4);
    let (json, code) = result(network.start(|rank| Some(usize::from(rank == 2))));
    drop(burners);
    let wires = found(&json, "fleet.slow_wire");
    let link = wires.iter().find(|it| it.contains("(rank 1) eth0\""));
    let link = link.unwrap_or_else(|| panic!("{wires:?}: {}", json["pairs"]));
    assert!(link.contains("with all others"), "{link}");
    let busy = [
        found(&json, "fleet.slow_host"),
        found(&json, "fleet.busy_host"),
    ]
    .concat();
    let busy_ranks = |rank: usize| busy.iter().any(|it| it.contains(&format!("(rank {rank})")));
    assert!(busy_ranks(2), "{busy:?}: {}", json["hosts"]);
    assert!(matches!(code, Some(1 | 2)), "{code:?}");
    // Each pair once, and each way with its figures.
    let pairs = json["pairs"].as_array().unwrap();
    assert_eq!(pairs.len(), 6);
    for pair in pairs {
        let path = &pair["paths"][0];
        assert_eq!(path["flows"].as_array().unwrap().len(), 16, "{pair}");
        assert_eq!(path["there"]["mark"], 106, "{pair}");
        assert_eq!(path["back"]["mtu"], 9000, "{pair}");
        assert!(path["there"]["bandwidth"].as_f64().unwrap() > 1e6, "{pair}");
    }
}

#[test]
fn a_small_mtu_and_a_hop_that_bleaches_are_found_where_they_are() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(network) = Network::new(3) else {
        return;
    };
    network.run("1", "ip link set eth0 mtu 1500").unwrap();
    let bleached = network.bleach(2);
    let (json, code) = result(network.start(|_| None));
    assert_eq!(code, Some(2), "{}", json["report"]);
    // On a machine that is too busy a pair may not answer in time: the other one does not tell which end it is.
    let whole = json["report"]["unjudged"].as_array().unwrap().is_empty();
    let mtu = found(&json, "fleet.path_mtu");
    assert!(
        mtu.iter()
            .any(|it| it.contains("(rank 1) eth0") && (!whole || it.contains("mtu 9000"))),
        "{mtu:?}"
    );
    let differs = found(&json, "fleet.differs");
    assert!(
        differs
            .iter()
            .any(|it| it.contains("MTU differs") && it.contains("(rank 1)")),
        "{differs:?}"
    );
    let marks = found(&json, "fleet.mark");
    match bleached {
        Ok(_hop) => {
            let there = |it: &&String| {
                it.contains("(rank 2) eth0") && (!whole || it.contains("as a sender"))
            };
            assert!(marks.iter().any(|it| there(&it)), "{marks:?}");
        }
        Err(reason) => {
            println!("not bleached: {reason}");
            assert_eq!(marks, [""; 0]);
        }
    }
}

#[test]
fn a_rank_that_dies_is_named_and_the_others_are_measured() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(network) = Network::new(3) else {
        return;
    };
    let began = Instant::now();
    let mut ranks = network.start(|_| None);
    // In the middle of it, or before it has joined: it is named in either case.
    thread::sleep(Duration::from_millis(700));
    ranks[1].kill().unwrap();
    let outputs: Vec<Output> = ranks
        .into_iter()
        .map(|it| it.wait_with_output().unwrap())
        .collect();
    let words = format!(
        "{}{}",
        String::from_utf8_lossy(&outputs[0].stdout),
        String::from_utf8_lossy(&outputs[0].stderr)
    );
    assert!(words.contains("rank 1 "), "{words}");
    assert!(
        matches!(outputs[0].status.code(), Some(2 | 3)),
        "{outputs:?}"
    );
    assert!(
        began.elapsed() < Duration::from_secs(60),
        "{:?}",
        began.elapsed()
    );
}

#[test]
fn ranks_of_one_host_are_one_row() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut command = Command::new(RINGWAY);
    let output = command
        .args([
            "run",
            "-n",
            "3",
            "--no-prefix",
            "--",
            RINGWAY,
            "doctor",
            "--fleet",
        ])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("nothing that is known of the hosts differs\n"),
        "{text}"
    );
    assert!(
        text.contains("all ranks are on one host: there is no wire"),
        "{text}"
    );
    let rows: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("  0-2  "))
        .collect();
    assert_eq!(rows.len(), 1, "{text}");
    let alone = Command::new(RINGWAY)
        .args(["doctor", "--fleet"])
        .env_clear()
        .output()
        .unwrap();
    assert_eq!(alone.status.code(), Some(3));
    assert!(
        String::from_utf8_lossy(&alone.stderr).contains("start it on all of them"),
        "{alone:?}"
    );
}

#[test]
fn interfaces_of_one_network_are_measured_each_by_itself() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(network) = Network::new(2) else {
        return;
    };
    for host in ["0", "1"] {
        network.second(host).unwrap();
    }
    // Routes of both interfaces are alike: unless it is told, the kernel sends all by the first.
    let slow = "tc qdisc add dev eth1 root tbf rate 40mbit burst 64kb latency 200ms";
    if let Err(reason) = network.run("0", slow) {
        println!("skipped: cannot slow down a link: {reason}");
        return;
    }
    let (json, _) = result(network.start(|_| None));
    let paths = json["pairs"][0]["paths"].as_array().unwrap();
    let ends: Vec<_> = paths
        .iter()
        .map(|it| [&it["at_a"], &it["at_b"]].map(|end| end["interface"].as_str().unwrap()))
        .collect();
    assert_eq!(ends, [["eth0", "eth0"], ["eth1", "eth1"]], "{json}");
    let rate = |path: usize, way: &str| paths[path][way]["bandwidth"].as_f64().unwrap();
    // 40 Mbit/s are 5 MB/s; what the bucket holds, and a receiver that is kept waiting finds, comes at once.
    assert!(rate(1, "there") < 25e6, "{json}");
    for (path, way) in [(0, "there"), (0, "back"), (1, "back")] {
        assert!(
            rate(path, way) > 2.0 * rate(1, "there"),
            "{path} {way}: {json}"
        );
    }
}

/// Four hosts at two leaves, which two spines join.
const TWO_SPINES: &str = "
fabric: leaf-spine
hosts:
  - {name: host, count: 4}
switches:
  - {name: leaf, count: 2, tier: leaf}
  - {name: spine, count: 2, tier: spine}
links:
  - {from: host, to: leaf, join: {blocks: 2}, rate: 80Mbit/s, latency: 1us}
  - {from: leaf, to: spine, join: full, rate: 80Mbit/s, latency: 1us}
";

/// What rank 0 says in that network, by RDMA in software, too; none, with the reason printed, where the machine cannot.
fn in_a_lab(name: &str, by_addresses_only: bool) -> Option<Value> {
    if let Err(reason) = ringway_lab::can_make_namespaces() {
        println!("skipped: {reason}");
        return None;
    }
    let file = scratch::File::new(name);
    std::fs::write(file.path(), TWO_SPINES).unwrap();
    let name = format!("test-{}-{name}", std::process::id());
    let ringway = |arguments: &[&str]| Command::new(RINGWAY).args(arguments).output().unwrap();
    let up = ringway(&["lab", "up", file.path(), "--name", &name]);
    assert!(up.status.success(), "{up:?}");
    if by_addresses_only {
        for leaf in ["leaf0", "leaf1"] {
            let write = "echo 0 > /proc/sys/net/ipv4/fib_multipath_hash_policy";
            let done = ringway(&[
                "lab", "exec", "--name", &name, leaf, "--", "sh", "-c", write,
            ]);
            assert!(done.status.success(), "{done:?}");
        }
    }
    let rank = |rank: usize| {
        let variables = format!(
            "RINGWAY_RANK={rank} RINGWAY_WORLD_SIZE=4 RINGWAY_MASTER=host0:29478 RINGWAY_CONNECT_TIMEOUT=40s"
        );
        let mut command = Command::new(RINGWAY);
        command.args([
            "lab",
            "exec",
            "--name",
            &name,
            &format!("host{rank}"),
            "--",
            "env",
        ]);
        command
            .args(variables.split(' '))
            .args([RINGWAY, "doctor", "--fleet", "--json", "--rdma", "software"]);
        command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let (json, _) = result((0..4).map(rank).collect());
    assert!(ringway(&["lab", "down", "--name", &name]).status.success());
    Some(json)
}

#[test]
fn equal_ways_are_seen_and_rdma_is_measured() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(json) = in_a_lab("spines", false) else {
        return;
    };
    let pairs = json["pairs"].as_array().unwrap();
    assert_eq!(pairs.len(), 6);
    for pair in pairs {
        let path = &pair["paths"][0];
        let routers = |hop: usize| -> std::collections::BTreeSet<&str> {
            let flows = path["flows"].as_array().unwrap().iter();
            flows
                .filter_map(|flow| flow["hops"][hop].as_str())
                .collect()
        };
        let (a, b) = (pair["a"].as_u64().unwrap(), pair["b"].as_u64().unwrap());
        // Of 16 source ports all take one of two ways once in 32,768 times.
        let expected = if a / 2 == b / 2 { [1, 0, 0] } else { [1, 2, 1] };
        assert_eq!([0, 1, 2].map(|hop| routers(hop).len()), expected, "{path}");
        let rdma = &path["rdma"];
        for figure in ["there", "back"] {
            // 80 Mbit/s are 10 MB/s.
            let rate = rdma[figure].as_f64().unwrap();
            assert!((1e5..12e6).contains(&rate), "{figure}: {rdma}");
        }
        assert!(rdma["latency"].as_f64().unwrap() > 1e-6, "{rdma}");
    }
    assert_eq!(found(&json, "fleet.spread"), [""; 0]);
    assert!(
        json["report"]["unjudged"].as_array().unwrap().is_empty(),
        "{}",
        json["report"]
    );
}

#[test]
fn switches_that_hash_addresses_only_are_found() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(json) = in_a_lab("lumped", true) else {
        return;
    };
    let pairs = json["pairs"].as_array().unwrap();
    let far = pairs
        .iter()
        .filter(|it| it["a"].as_u64().unwrap() / 2 != it["b"].as_u64().unwrap() / 2);
    let spines: std::collections::BTreeSet<&str> = far
        .flat_map(|pair| pair["paths"][0]["flows"].as_array().unwrap())
        .filter_map(|flow| flow["hops"][1].as_str())
        .collect();
    let lumped = found(&json, "fleet.spread");
    // Four pairs of addresses may all have the same hash: once in eight times.
    match spines.len() {
        2 => assert!(
            !lumped.is_empty()
                && lumped
                    .iter()
                    .all(|it| it.contains("whatever the source port")),
            "{lumped:?}: {json}"
        ),
        _ => assert_eq!(lumped, [""; 0]),
    }
}

/// Two hosts with two routers between them, whose reports come late to the first host: `0 - s - a - b - 1`, where `s` forwards
/// frames. Gone when dropped.
struct Chain {
    prefix: String,
    hop: Option<Hop>,
}

impl Chain {
    const PLACES: [&str; 5] = ["0", "s", "a", "b", "1"];

    fn new() -> Result<Self, String> {
        let prefix = format!("rwc{}", std::process::id());
        let mut chain = Self { prefix, hop: None };
        let prefix = &chain.prefix;
        let mut script = String::new();
        for place in Self::PLACES {
            script +=
                &format!("ip netns add {prefix}{place}; ip -n {prefix}{place} link set lo up\n");
        }
        for link in Self::PLACES.windows(2) {
            let [left, right] = [link[0], link[1]];
            script += &format!(
                "ip link add right netns {prefix}{left} type veth peer name left netns {prefix}{right}\n\
                 ip -n {prefix}{left} link set right up promisc on; ip -n {prefix}{right} link set left up promisc on\n"
            );
        }
        for (place, end, address) in [
            ("0", "right", "10.79.0.1"),
            ("a", "left", "10.79.0.2"),
            ("a", "right", "10.79.1.1"),
            ("b", "left", "10.79.1.2"),
            ("b", "right", "10.79.2.1"),
            ("1", "left", "10.79.2.2"),
        ] {
            script += &format!("ip -n {prefix}{place} address add {address}/24 dev {end}\n");
        }
        script += &format!(
            "for router in a b; do ip netns exec {prefix}$router sysctl -qw net.ipv4.ip_forward=1 net.ipv4.icmp_ratelimit=0; done\n\
             ip -n {prefix}0 route add default via 10.79.0.2; ip -n {prefix}1 route add default via 10.79.2.1\n\
             ip -n {prefix}a route add 10.79.2.0/24 via 10.79.1.2; ip -n {prefix}b route add 10.79.0.0/24 via 10.79.1.1\n"
        );
        shell(&script)?;
        chain.hop = Some(Hop::start(&format!("{prefix}s"), HOLD, ["left", "right"])?);
        Ok(chain)
    }
}

impl Drop for Chain {
    fn drop(&mut self) {
        self.hop.take();
        for place in Self::PLACES {
            let _ = shell(&format!("ip netns delete {}{place}", self.prefix));
        }
    }
}

#[test]
fn routers_that_report_late_are_put_where_they_are() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let chain = match Chain::new() {
        Ok(chain) => chain,
        Err(reason) => {
            println!("skipped: cannot make such a network: {reason}");
            return;
        }
    };
    let rank = |rank: usize| {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &format!("{}{rank}", chain.prefix)])
            .args([RINGWAY, "doctor", "--fleet", "--json"])
            .env("RINGWAY_RANK", rank.to_string())
            .env("RINGWAY_WORLD_SIZE", "2")
            .env("RINGWAY_MASTER", "10.79.0.1:29479")
            .env("RINGWAY_CONNECT_TIMEOUT", "40s")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let (json, _) = result((0..2).map(rank).collect());
    let flows = json["pairs"][0]["paths"][0]["flows"].as_array().unwrap();
    assert_eq!(flows.len(), 16, "{json}");
    for flow in flows {
        let hops: Vec<_> = flow["hops"].as_array().unwrap().iter().collect();
        assert_eq!(hops, ["10.79.0.2", "10.79.1.2"], "{flow}");
    }
}

/// Waits until a process has a thread of that name.
fn wait_for_thread(process: &Child, name: &str) {
    let deadline = Instant::now() + Duration::from_secs(60);
    let tasks = format!("/proc/{}/task", process.id());
    loop {
        let threads = std::fs::read_dir(&tasks).unwrap().flatten();
        let mut names =
            threads.filter_map(|it| std::fs::read_to_string(it.path().join("comm")).ok());
        if names.any(|it| it.trim() == name) {
            return;
        }
        assert!(Instant::now() < deadline, "no thread {name}");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_rank_that_hangs_is_named_and_holds_the_others_up_once() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(network) = Network::new(4) else {
        return;
    };
    let mut ranks = network.start(|_| None);
    // It has looked at its host, and is to measure after rank 0, which takes three times as long as this.
    wait_for_thread(&ranks[1], "doctor-streams");
    thread::sleep(Duration::from_millis(100));
    shell(&format!("kill -STOP {}", ranks[1].id())).unwrap();
    let began = Instant::now();
    let mut hung = ranks.remove(1);
    let (json, code) = result(ranks);
    let took = began.elapsed();
    hung.kill().unwrap();
    hung.wait().unwrap();
    let missing: Vec<_> = json["missing"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["rank"])
        .collect();
    assert_eq!(missing, [1], "{json}");
    assert_eq!(code, Some(2), "{json}");
    // The others have all measured: 10 s were waited for rank 1, by rank 2, and not again by rank 3.
    for host in [0, 2, 3] {
        assert_eq!(
            json["hosts"][host]["work"].as_array().unwrap().len(),
            1,
            "{json}"
        );
    }
    assert!(took < Duration::from_secs(30), "{took:?}");
}
