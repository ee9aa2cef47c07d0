//! Values of settings: what is shown of one reads back as the same. The first byte chooses the setting.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringway::settings::{DEFINITIONS, Settings, Source};

fn shown(settings: &Settings, at: usize) -> String {
    settings
        .rows()
        .nth(at)
        .map(|(_, value, _)| value)
        .unwrap_or_default()
}

fuzz_target!(|text: &str| {
    let Some(first) = text.chars().next() else {
        return;
    };
    let at = first as usize % DEFINITIONS.len();
    let (name, value) = (DEFINITIONS[at].name, &text[first.len_utf8()..]);
    ringway_fuzz::within(1 << 20, || {
        let (mut one, mut other) = (Settings::default(), Settings::default());
        if one.set(name, value, Source::Default).is_ok() {
            let written = shown(&one, at);
            let read = other.set(name, &written, Source::Default);
            assert!(read.is_ok(), "{name} shows {written:?}: {read:?}");
            assert_eq!(shown(&other, at), written);
        }
    });
});
