//! Slurm's lists of hosts: never more memory than the longest list of the longest names takes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringway::bootstrap::expand_hostlist;

fuzz_target!(|text: &str| {
    ringway_fuzz::within(256 << 20, || {
        if let Ok(hosts) = expand_hostlist(text) {
            assert!(!hosts.is_empty() && hosts.len() <= 1 << 16);
            assert!(hosts.iter().all(|host| host.len() <= 255));
        }
    });
});
