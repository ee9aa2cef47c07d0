//! Settings files: a wrong one changes nothing and says where it is wrong.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use ringway::settings::Settings;

fuzz_target!(|text: &str| {
    ringway_fuzz::within(64 << 20, || {
        let mut settings = Settings::default();
        if let Err(error) = settings.apply_yaml(text, Path::new("some.yaml")) {
            assert!(error.to_string().contains("some.yaml"), "{error}");
            assert_eq!(settings.values(), Settings::default().values());
        }
    });
});
