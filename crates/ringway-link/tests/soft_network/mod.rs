//! The endpoint's network in the virtual machine of `cargo xtask test vm`: a namespace of its own, `endpoint`, where UDP port
//! 4791 is free, at 10.0.0.9 and fd00::9 on the same bridge as rxe's devices.
#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "of tests, not all of which use all"
)]

use std::{
    io::{BufRead as _, BufReader, Lines},
    process::{Child, ChildStdout, Command, Stdio},
    sync::Once,
};

use ringway_sys::end_with_parent;

/// Lets packets get lost, late or doubled in both directions, until it is dropped.
pub(crate) struct Faults;

impl Faults {
    pub(crate) fn new(netem: &str) -> Self {
        println!("netem {netem}");
        shell(&format!(
            "tc qdisc add dev rank0 root netem {netem}
            tc -n endpoint qdisc add dev rank9 root netem {netem}"
        ));
        Self
    }

    /// How many packets have got lost.
    pub(crate) fn dropped(&self) -> u64 {
        let script = "tc -s qdisc show dev rank0; tc -n endpoint -s qdisc show dev rank9";
        let output = Command::new("sh").args(["-ec", script]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let counts = text.split("(dropped ").skip(1);
        counts
            .map(|rest| rest.split(',').next().unwrap().parse::<u64>().unwrap())
            .sum()
    }
}

impl Drop for Faults {
    fn drop(&mut self) {
        shell("tc qdisc del dev rank0 root; tc -n endpoint qdisc del dev rank9 root");
    }
}

/// Makes the network. Neighbors are told, not asked for: asking again takes a second if a question or an answer gets lost,
/// and all retries of a queue pair half of one.
pub(crate) fn namespace() {
    static MADE: Once = Once::new();
    MADE.call_once(|| {
        shell(
            "ip netns list | grep -q endpoint && exit
            # What rxe has under way to one queue pair, 128 packets, has to fit.
            sysctl -q -w net.core.rmem_max=2359296
            ip netns add endpoint
            mac=02:00:00:00:00:0a
            ip link add rank9 netns endpoint mtu 4200 address $mac type veth peer name port9 mtu 4200
            ip link set port9 master fabric up
            ip -n endpoint link set rank9 up
            ip -n endpoint addr add fd00::9/64 dev rank9 nodad
            ip -n endpoint addr add 10.0.0.9/24 dev rank9
            for here in 10.0.0 fd00:; do
                dot=.; [ $here = fd00: ] && dot=:
                ip neigh replace $here${dot}9 lladdr $mac dev rank0 nud permanent
                ip -n endpoint neigh replace $here${dot}1 lladdr 02:00:00:00:00:01 dev rank9 nud permanent
            done",
        );
    });
}

pub(crate) fn shell(script: &str) {
    let status = Command::new("sh").args(["-ec", script]).status().unwrap();
    assert!(status.success(), "{script}");
}

/// This test binary again, in the endpoint's namespace, running one test with something in its environment.
pub(crate) fn in_namespace(test: &str, variable: &str, value: &str) -> Command {
    namespace();
    let mut command = Command::new("ip");
    command
        .args(["netns", "exec", "endpoint"])
        .arg(std::env::current_exe().unwrap())
        .args(["--ignored", "--nocapture", "--exact", test])
        .env(variable, value)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    end_with_parent(&mut command);
    command
}

/// The lines that a child prints.
pub(crate) fn lines(child: &mut Child) -> Lines<BufReader<ChildStdout>> {
    BufReader::new(child.stdout.take().unwrap()).lines()
}

/// The next line that begins so.
pub(crate) fn line_with(start: &str, lines: &mut Lines<BufReader<ChildStdout>>) -> String {
    let line = lines.find_map(|line| line.ok().filter(|line| line.starts_with(start)));
    assert!(
        line.is_some(),
        "the endpoint ended before it said `{start}`"
    );
    line.unwrap()
}
