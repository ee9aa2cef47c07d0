//! Filters of interfaces and ranges of ports, from settings.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringway_link::{InterfaceFilter, Ports};

fuzz_target!(|text: &str| {
    ringway_fuzz::within(256 << 10, || {
        if let Err(error) = text.parse::<InterfaceFilter>() {
            assert!(error.to_string().contains("write for example"), "{error}");
        }
        if let Err(error) = text.parse::<Ports>() {
            assert!(!error.to_string().is_empty());
        }
    });
});
