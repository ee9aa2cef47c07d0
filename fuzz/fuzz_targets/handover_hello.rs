//! What visitors say to the rank that hands out a host's shared memory.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    ringway_fuzz::within(0, || ringway_link::shm::fuzz_hello(bytes));
});
