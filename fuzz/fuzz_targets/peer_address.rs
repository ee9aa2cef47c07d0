//! Addresses that ranks publish: what is read is written as the same bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringway_link::{MAX_ADDRESSES, PeerAddress};

fuzz_target!(|bytes: &[u8]| {
    ringway_fuzz::within(16 << 10, || {
        if let Ok(address) = PeerAddress::decode(bytes) {
            assert!(address.addresses.len() <= MAX_ADDRESSES);
            assert_eq!(address.encode(), bytes);
        }
    });
});
