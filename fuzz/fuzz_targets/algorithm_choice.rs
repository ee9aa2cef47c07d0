//! Choices of algorithms by size, from settings: what is read is written so that it reads the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringway_plan::Overrides;

fuzz_target!(|text: &str| {
    if let Ok(overrides) = text.parse::<Overrides>() {
        assert_eq!(overrides.to_string().parse(), Ok(overrides));
    }
});
