//! Saved states of codecs: what is taken is saved as the same. The first byte chooses the codec.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringway_codec::{Codec, Feedback, Kind, Options, Tensor, Tensors};

fuzz_target!(|bytes: &[u8]| {
    let [choice, state @ ..] = bytes else {
        return;
    };
    let kinds = [Kind::Bf16, Kind::Int(8), Kind::TopK(0.1), Kind::PowerSgd(1)];
    let feedbacks = [Feedback::Nothing, Feedback::Residual, Feedback::Momentum(0.9)];
    let choice = usize::from(*choice);
    let options = Options {
        feedback: feedbacks[choice / 4 % 3],
        seed: 1,
    };
    let tensors = Tensors::new(vec![Tensor::new("a", [8, 8]), Tensor::new("b", [3])]);
    let mut codec = Codec::new(kinds[choice % 4], options, tensors);
    ringway_fuzz::within(64 << 10, || {
        if codec.restore(state).is_ok() {
            let saved = codec.state();
            assert!(codec.restore(&saved).is_ok());
            assert_eq!(codec.state(), saved);
        }
    });
});
