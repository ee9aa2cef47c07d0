//! Datagrams of a fleet: read back as written, answered to who has the token alone, counted without overflow, and in no more
//! memory than the last trains take.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringway_doctor::fleet::datagram::{HEAD, Message, Trains};

/// The token of the host that is asked: an answer without one would be everybody's to get.
const TOKEN: u64 = u64::from_be_bytes(*b"RINGWAY!");

fuzz_target!(|datagrams: Vec<(bool, u8, Vec<u8>)>| {
    ringway_fuzz::within(1 << 20, || {
        let mut trains = Trains::new(TOKEN);
        for (known, tos, mut bytes) in datagrams {
            if known && bytes.len() >= 16 {
                bytes[..4].copy_from_slice(&Message::default().encode(0)[..4]);
                bytes[8..16].copy_from_slice(&TOKEN.to_be_bytes());
            }
            let message = Message::decode(&bytes);
            if let Some(message) = message {
                // Of the flags two bits are known.
                bytes[4] &= 3;
                assert_eq!(message.encode(0), bytes[..HEAD]);
            }
            let answered = trains.answer(&bytes, tos, 1);
            assert_eq!(
                answered.is_some(),
                message.is_some_and(|it| it.token == TOKEN && !it.answer)
            );
            if let Some((asked, answer)) = answered {
                assert_eq!(Some(asked), message);
                assert!(answer.answer && answer.tos == tos && answer.train == asked.train);
                assert!(answer.reordered <= answer.arrived);
                // An answer is never answered.
                assert!(trains.answer(&answer.encode(0), tos, 2).is_none());
            }
        }
    });
});
