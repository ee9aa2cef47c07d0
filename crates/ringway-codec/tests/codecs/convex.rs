//! Gradient descent on a convex problem, with every codec.

use ringway_codec::{Codec, Kind, Options, Wire as _};

use crate::{KINDS, gradients, tensors, world::world};

/// Each rank pulls towards a point of its own, along each axis with another strength: the minimum lies between, where no rank's gradient is
/// zero. That is what biased codecs without feedback do not find.
fn descend(kind: Kind, steps: usize) -> f64 {
    const LEN: usize = 400;
    let ranks = 2;
    let strength = |i: usize| 0.5 + 0.5 * (i % 10) as f32 / 10.0;
    let points: Vec<Vec<f32>> = (0..ranks).map(|rank| gradients(LEN, rank, 0)).collect();
    let finals = world(ranks, |wire| {
        let mut codec = Codec::new(kind, Options::default(), tensors(LEN));
        let mut x = vec![0.0_f32; LEN];
        for step in 0..steps {
            let point = &points[wire.rank()];
            let mut gradient: Vec<f32> =
                (0..LEN).map(|i| strength(i) * (x[i] - point[i])).collect();
            codec.average(&mut gradient, wire).unwrap();
            // One element of a hundred is sent: it waits for a hundred steps, which together may not overshoot.
            let rate = 0.02 / (1.0 + step as f32 / 1000.0);
            x.iter_mut().zip(gradient).for_each(|(x, g)| *x -= rate * g);
        }
        x
    });
    let best = |i: usize| points.iter().map(|p| f64::from(p[i])).sum::<f64>() / ranks as f64;
    let distance: f64 = (0..LEN)
        .map(|i| (f64::from(finals[0][i]) - best(i)).powi(2))
        .sum();
    let start: f64 = (0..LEN).map(|i| best(i).powi(2)).sum();
    (distance / start).sqrt()
}

#[test]
fn every_codec_finds_the_minimum() {
    let steps = 2000;
    assert!(descend(Kind::None, steps) < 0.01);
    for kind in KINDS {
        // One of a hundred elements in each step: twenty numbers for each, in all.
        let most = if kind == Kind::TopK(0.01) { 0.25 } else { 0.05 };
        let left = descend(kind, steps);
        assert!(left < most, "{kind}: {left} of the distance is left");
    }
}
