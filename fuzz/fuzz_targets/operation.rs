//! Other ranks' descriptors of operations: what is read is written as the same words, and can be shown.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringway::Descriptor;

fuzz_target!(|words: [u64; 2]| {
    if let Some(descriptor) = ringway_fuzz::within(0, || Descriptor::decode(words)) {
        assert_eq!(descriptor.encode(), words);
        assert!(!descriptor.to_string().is_empty());
    }
});
