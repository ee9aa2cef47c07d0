//! Greetings, as a listener reads strangers' bytes: refused at the first wrong byte, short, and read back as written.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringway_link::{Greeting, MAX_BODY};

fuzz_target!(|bytes: &[u8]| {
    ringway_fuzz::within(4 << 10, || {
        let len = Greeting::expected_len(bytes);
        assert!(len.as_ref().is_ok_and(|len| *len <= 16 + MAX_BODY) || len.is_err());
        for cut in 0..bytes.len().min(32) {
            // What a longer beginning could still become, a shorter one can.
            assert!(Greeting::expected_len(&bytes[..cut]).is_ok() || len.is_err());
        }
        if let Ok(greeting) = Greeting::decode(bytes) {
            assert_eq!(len, Ok(bytes.len()));
            let again = greeting.encode();
            match Greeting::decode(&again) {
                // Foreign text is made fit to be logged, and may be cut for that.
                Ok(Greeting::Refusal { .. }) => {
                    assert!(matches!(greeting, Greeting::Refusal { .. }))
                }
                other => assert_eq!(other, Ok(greeting)),
            }
        }
    });
});
