//! Intents: a wrong one says where it is wrong, and what a right one configures does not contradict it.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use ringway_doctor::{
    config::{Purpose, Target, render},
    intent::Intent,
    lint::{Input, lint},
};

fuzz_target!(|text: &str| {
    ringway_fuzz::within(1 << 30, || {
        let intent = match Intent::parse(text, Path::new("some.yaml")) {
            Ok(intent) => intent,
            Err(error) => {
                assert!(error.to_string().contains("some.yaml"), "{error}");
                return;
            }
        };
        for target in Target::ALL {
            let Ok(rendered) = render(&intent, target, Purpose::Apply, None) else {
                continue;
            };
            if target.is_switch() {
                let report = lint(&[Input::new("some.yaml", text), Input::new("switch", rendered.text)]);
                assert!(report.findings.is_empty(), "{target}: {:#?}", report.findings);
            }
        }
    });
});
