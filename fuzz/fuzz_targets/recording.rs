//! Recordings of jobs.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringway::Recording;

fuzz_target!(|text: &str| match Recording::parse(text) {
    Ok(recording) => {
        let waits = &recording.waits;
        assert!(waits.iter().all(|wait| wait.call < recording.calls.len()));
        assert!(recording.calls.iter().all(|call| call.end.is_none_or(|end| end >= call.begin)));
        assert!(recording.calls.iter().all(|call| call.begin <= recording.end));
        let _ = recording.exposed();
    }
    Err(error) => assert!(error.offset <= text.len() && error.line > 0, "{error}"),
});
