//! Encoded gradients of other ranks, as every compressor reads them. The first two bytes are the number of elements.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringway_codec::{Chosen, Compressor, Load, Quantiser, Sparse};

fuzz_target!(|bytes: &[u8]| {
    let [low, high, bytes @ ..] = bytes else {
        return;
    };
    let len = usize::from(u16::from_le_bytes([*low, *high])) % 4096;
    let mut vector = vec![0.0; len];
    ringway_fuzz::within(64 << 10, || {
        let compressors: [&dyn Compressor; 2] =
            [&Quantiser::within(0.1), &Sparse::new(Chosen::Share(0.1))];
        for compressor in compressors {
            for load in [Load::Replace(1.0), Load::Add] {
                let decoded = compressor.decode(bytes, &mut vector, load);
                assert_eq!(compressor.check(bytes, len), decoded);
            }
        }
    });
});
