//! Lines of the rings in shared memory, which a peer that has gone wrong may have written.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|words: [u64; 8]| {
    ringway_fuzz::within(4 << 10, || ringway_link::shm::fuzz_descriptor(&words));
});
