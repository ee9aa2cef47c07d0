//! Headers of TCP frames: reading takes no memory, and what is read is written as the same bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringway_link::tcp::{Frame, HEADER};

fuzz_target!(|header: [u8; HEADER]| {
    if let Ok(frame) = ringway_fuzz::within(0, || Frame::decode(&header)) {
        assert_eq!(frame.encode(), header);
    }
});
