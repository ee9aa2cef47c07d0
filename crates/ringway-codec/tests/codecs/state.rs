//! Saved states, and names.

use proptest::prelude::*;
use ringway_codec::{Codec, Feedback, Kind, Options, StateError, Wire as _};

use crate::{KINDS, gradients, tensors, world::world};

#[test]
fn a_resumed_run_gives_the_same_bits() {
    let (ranks, len) = (3, 1500);
    for kind in KINDS {
        for feedback in [
            Feedback::Nothing,
            Feedback::Residual,
            Feedback::Momentum(0.9),
        ] {
            let options = Options { feedback, seed: 5 };
            world(ranks, |wire| {
                let step = |codec: &mut Codec, wire: &mut crate::world::Seat, step| {
                    let mut x = gradients(len, wire.rank(), step);
                    codec.sum(&mut x, wire).unwrap();
                    x
                };
                let mut codec = Codec::new(kind, options, tensors(len));
                step(&mut codec, wire, 0);
                step(&mut codec, wire, 1);
                let state = codec.state();
                let mut resumed = Codec::new(kind, options, tensors(len));
                resumed.restore(&state).unwrap();
                for k in 2..4 {
                    assert_eq!(
                        step(&mut codec, wire, k),
                        step(&mut resumed, wire, k),
                        "{kind}"
                    );
                }
                assert_eq!(codec.state(), resumed.state());
            });
        }
    }
}

#[test]
fn states_of_others_are_refused() {
    let of = |kind, len| Codec::new(kind, Options::default(), tensors(len));
    let state = of(Kind::Int(8), 100).state();
    let error = of(Kind::Int(4), 100).restore(&state).unwrap_err();
    assert!(
        error.to_string().contains("`int8`; expected one of `int4`"),
        "{error}"
    );
    let error = of(Kind::Int(8), 101).restore(&state).unwrap_err();
    assert_eq!(
        error,
        StateError::Length {
            expected: 101,
            found: 100
        }
    );
    for cut in 0..state.len() {
        assert!(of(Kind::Int(8), 100).restore(&state[..cut]).is_err());
    }
}

#[test]
fn names_read_back() {
    for kind in KINDS
        .into_iter()
        .chain([Kind::None, Kind::Int(5), Kind::Dynamic(0.25)])
    {
        assert_eq!(kind.to_string().parse(), Ok(kind));
    }
    for name in [
        "",
        "int9",
        "int:1",
        "topk:0.6",
        "topk:nan",
        "dynamic:1",
        "threshold:inf",
        "powersgd:0",
        "fp8",
    ] {
        let error = name.parse::<Kind>().unwrap_err().to_string();
        assert!(
            error.contains(&format!("`{name}`")) && error.contains("topk:SHARE"),
            "{error}"
        );
    }
}

proptest! {
    #[test]
    fn a_ratio_is_kept(ratio in 0.1..0.9_f64) {
        let kept = Kind::within(ratio).ratio().unwrap();
        prop_assert!(kept <= ratio + 1e-9);
        prop_assert!(ratio >= 0.5 || ratio - kept < 0.26);
    }
}
