//! Plans of faults, from the environment.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringway_link::FaultPlan;

fuzz_target!(|text: &str| {
    if let Err(error) = text.parse::<FaultPlan>() {
        assert!(error.to_string().contains("expected"), "{error}");
    }
});
