//! Bytes of others: whatever they are, they are decoded or refused.

use proptest::prelude::*;
use ringway_codec::{
    Chosen, Codec, Compressor, Encoded, Kind, Load, Options, Quantiser, Sparse, Wire as _,
};

use crate::{gradients, tensors, world::world};

fn compressors() -> [Box<dyn Compressor>; 4] {
    [
        Box::new(Quantiser::of_width(8)),
        Box::new(Quantiser::within(0.2).random()),
        Box::new(Sparse::new(Chosen::Share(0.1))),
        Box::new(Sparse::new(Chosen::Above(0.5))),
    ]
}

proptest! {
    #[test]
    fn decoders_take_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..400), len in 0_usize..500, add: bool) {
        let load = if add { Load::Add } else { Load::Replace(1.0) };
        for compressor in compressors() {
            let _ = compressor.decode(&bytes, &mut vec![0.0; len], load);
        }
        for kind in crate::KINDS {
            let _ = Codec::new(kind, Options::default(), tensors(50)).restore(&bytes);
        }
    }

    /// Nearly right is what gets deepest.
    #[test]
    fn decoders_take_altered_bytes(len in 1_usize..500, at: prop::sample::Index, to: u8, cut: prop::sample::Index) {
        for mut compressor in compressors() {
            let mut encoded = Encoded::default();
            let whole = 0..len;
            compressor.encode(&mut gradients(len, 0, 0), std::slice::from_ref(&whole), 3, &mut encoded);
            let mut bytes = encoded.bytes;
            let (at, cut) = (at.index(bytes.len()), cut.index(bytes.len()));
            prop_assert!(compressor.decode(&bytes[..cut], &mut vec![0.0; len], Load::Add).is_err());
            bytes[at] = to;
            let _ = compressor.decode(&bytes, &mut vec![0.0; len], Load::Add);
        }
    }
}

#[test]
fn a_rank_that_cannot_decode_is_named_on_all() {
    let errors = world(3, |wire| {
        let len = if wire.rank() == 1 { 1000 } else { 600 };
        let mut codec = Codec::new(Kind::TopK(0.5), Options::default(), tensors(len));
        codec
            .sum(&mut gradients(len, wire.rank(), 0), wire)
            .unwrap_err()
            .to_string()
    });
    assert_eq!(errors[0], errors[2]);
    assert!(
        errors[0].contains("rank 0 could not decode what rank 1 sent"),
        "{errors:?}"
    );
}

/// Memory is taken for as many bytes as others announce.
#[test]
fn an_announcement_that_cannot_be_is_refused() {
    for (kind, gathers) in [(Kind::TopK(0.5), true), (Kind::Dynamic(0.1), false)] {
        let errors = world(2, |wire| {
            if wire.rank() == 0 {
                let mut codec = Codec::new(kind, Options::default(), tensors(600));
                return codec
                    .sum(&mut gradients(600, 0, 0), wire)
                    .unwrap_err()
                    .to_string();
            }
            let (length, mut lengths) = ((1_u64 << 50).to_le_bytes(), [0; 16]);
            if gathers {
                wire.all_gather(&length, &mut lengths).unwrap();
            } else {
                wire.all_to_all(&[length, length].concat(), &mut lengths)
                    .unwrap();
            }
            String::new()
        });
        let text = &errors[0];
        assert!(
            text.contains("rank 1 announces 1125899906842624 bytes"),
            "{text}"
        );
    }
}
