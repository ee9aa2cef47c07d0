//! What the doctor reads of hosts: files of /sys and /proc, outputs of tools.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringway_doctor::host::parse::{
    Acs, CpuSet, Gid, PciExpress, Qos, Topology, Version, capabilities, drops_roce, environment, field,
    interrupts, locked_memory, mlxconfig, pause, routes, serial_number, statistics,
};

fuzz_target!(|bytes: &[u8]| {
    ringway_fuzz::within(64 << 20, || {
        let express = PciExpress::parse(bytes);
        assert!(express.is_none_or(|it| it.read_request() >= 128 && it.payload() >= 128));
        Acs::parse(bytes);
        assert!(serial_number(bytes).is_none_or(|at| at > 0x100));
        environment(bytes);
        let Ok(text) = std::str::from_utf8(bytes) else {
            return;
        };
        // What is printed is read back as the same.
        let cpus = CpuSet::parse(text);
        assert_eq!(CpuSet::parse(&cpus.to_string()), cpus);
        for qos in [Qos::parse_mlnx(text), Qos::parse_dcb([text])] {
            assert!(qos.dscp.iter().all(|(dscp, priority)| *dscp < 64 && *priority < 8));
            assert!(qos.lossless().iter().all(|priority| *priority < 8));
            assert!((0..=u8::MAX).all(|dscp| qos.priority(dscp) < 8));
        }
        Topology::parse(text);
        Version::parse(text);
        Gid::parse(0, text, Some(text), None);
        capabilities(text);
        locked_memory(text);
        interrupts(text);
        mlxconfig(text);
        pause(text);
        statistics(text);
        drops_roce(text);
        assert!(field(text, "Model").is_none_or(|value| text.contains(value)));
        assert!(routes(text).len() <= text.lines().count());
    });
});
