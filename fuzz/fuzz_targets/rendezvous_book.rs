//! The rendezvous under any order of requests, hang-ups and time: every guest is answered once.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|script: &[u8]| {
    ringway_fuzz::within(8 << 20, || ringway::bootstrap::fuzz_book(script));
});
