//! Messages of control connections: read back as written, and no more memory than they are long.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    ringway_fuzz::within(64 << 10, || ringway::control::fuzz(bytes));
});
