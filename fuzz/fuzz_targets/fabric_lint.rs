//! Configurations of every system: reading and judging them never panics, whatever they say.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringway_doctor::lint::{Input, Kind, lint};

const KINDS: [&str; 12] = [
    "nxos", "sonic", "eos", "nvue", "onyx", "os10", "junos", "host", "host-unit", "k8s", "env", "intent",
];

// A seed is the number of the kind, both texts, and the length of the first in two bytes, the high one first, which is how `arbitrary`
// reads 255 to 65,535 bytes of text. `fuzz/seeds/fabric_lint` has one of each kind.
fuzz_target!(|input: (u8, &str, &str)| {
    let (which, text, other) = input;
    ringway_fuzz::within(1 << 30, || {
        let kind = KINDS.get(usize::from(which) % (KINDS.len() + 1));
        let first = Input {
            kind: kind.and_then(|name| Kind::parse(name)),
            ..Input::new("first", text)
        };
        let printed = Input {
            tree: Some(("host".to_owned(), "commands/mlnx_qos_-i_eth1".to_owned())),
            ..Input::new("printed", other)
        };
        let report = lint(&[first, Input::new("second", other), printed]);
        for finding in &report.findings {
            assert!(!finding.evidence.is_empty(), "{finding:?}");
        }
    });
});
