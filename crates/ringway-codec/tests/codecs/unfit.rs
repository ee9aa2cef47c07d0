//! Gradients that cannot be encoded: told by name on all ranks, and without a trace.

use ringway_codec::{Codec, Error, Fault, Feedback, Kind, Options, Wire as _};

use crate::{KINDS, gradients, tensors, world::world};

#[test]
fn what_is_not_finite_is_named_everywhere_and_leaves_no_trace() {
    let len = 700;
    for kind in KINDS {
        for feedback in [Feedback::Residual, Feedback::Momentum(0.9)] {
            for (ranks, bad) in [(1, f32::NAN), (3, f32::NEG_INFINITY), (5, f32::NAN)] {
                let culprit = ranks / 2;
                let options = Options { feedback, seed: 1 };
                let step = |codec: &mut Codec, wire: &mut crate::world::Seat, step| {
                    let mut x = gradients(len, wire.rank(), step);
                    codec.average(&mut x, wire).map(|()| x)
                };
                let all = world(ranks, |wire| {
                    let mut codec = Codec::new(kind, options, tensors(len));
                    step(&mut codec, wire, 0).unwrap();
                    let before = codec.state();
                    let mut x = gradients(len, wire.rank(), 1);
                    if wire.rank() == culprit {
                        // The last of the bias, and a later one of the matrix would be later.
                        x[len - 1] = bad;
                    }
                    let kept = x.clone();
                    let error = codec.average(&mut x, wire).unwrap_err();
                    assert!(
                        x.iter()
                            .map(|x| x.to_bits())
                            .eq(kept.iter().map(|x| x.to_bits())),
                        "{kind}"
                    );
                    assert_eq!(codec.state(), before, "{kind}");
                    let Error::Unfit {
                        rank,
                        tensor,
                        element,
                        fault: Fault::NotFinite(value),
                    } = &error
                    else {
                        panic!("{kind}: {error}")
                    };
                    assert_eq!((*rank, &tensor[..]), (culprit, "layer.bias"));
                    assert_eq!(*element, tensors(len).iter().last().unwrap().len() - 1);
                    assert_eq!(value.to_bits(), bad.to_bits());
                    (error.to_string(), step(&mut codec, wire, 2).unwrap())
                });
                assert!(all.iter().all(|one| *one == all[0]), "{kind}");
                // As if the step had not been.
                let without = world(ranks, |wire| {
                    let mut codec = Codec::new(kind, options, tensors(len));
                    step(&mut codec, wire, 0).unwrap();
                    step(&mut codec, wire, 2).unwrap()
                });
                assert_eq!(all[0].1, without[0], "{kind}");
            }
        }
    }
}

#[test]
fn what_fp16_does_not_hold_is_an_error_with_a_remedy() {
    let errors = world(2, |wire| {
        let mut codec = Codec::new(Kind::Fp16, Options::default(), tensors(100));
        let mut x = vec![60000.0; 100];
        codec.sum(&mut x, wire).unwrap();
        assert!(x.iter().all(|x| *x == 120_000.0), "a sum may be larger");
        x.fill(1.0);
        x[3] = if wire.rank() == 1 { 70000.0 } else { 1.0 };
        codec.sum(&mut x, wire).unwrap_err().to_string()
    });
    assert!(
        errors[0].contains("rank 1, tensor layer.weight, element 3"),
        "{errors:?}"
    );
    assert!(
        errors[0].contains("7e4") && errors[0].contains("bf16"),
        "{errors:?}"
    );
    assert_eq!(errors[0], errors[1]);
}

#[test]
fn a_sum_that_is_not_finite_is_an_error_on_all_ranks() {
    for kind in [
        Kind::Int(8),
        Kind::TopK(0.5),
        Kind::Threshold(1.0),
        Kind::PowerSgd(1),
    ] {
        world(3, |wire| {
            let mut codec = Codec::new(kind, Options::default(), tensors(1000));
            let mut x = vec![3e38; 1000];
            let error = codec.sum(&mut x, wire).unwrap_err();
            assert!(matches!(error, Error::Overflow), "{kind}: {error}");
            assert!(codec.residual().iter().all(|x| *x == 0.0));
        });
    }
}

#[test]
fn a_vector_of_another_length_is_refused() {
    world(1, |wire| {
        let mut codec = Codec::new(Kind::Bf16, Options::default(), tensors(10));
        let error = codec.sum(&mut [0.0; 9], wire).unwrap_err();
        assert!(matches!(
            error,
            Error::Length {
                expected: 10,
                found: 9
            }
        ));
    });
}
