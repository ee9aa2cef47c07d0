//! Which elements are the largest.

use super::{levels, pack::Pack};

/// Elements that are looked at together.
const GROUP: usize = 16;

/// The low bits of a magnitude that histograms leave out: 2,048 bins, eight to an octave.
const FINE: u32 = 20;

const BINS: usize = 1 << (31 - FINE);

levels! {
    /// The places of the `k` elements of largest magnitude, ascending, into `places`, which is cleared; of equal magnitudes
    /// the first ones count. All places, if there are no more than `k`. Reads `src`, which must be finite and shorter
    /// than 2^32, twice.
    top_k, top_k_at = top_k_body(src: &[f32], k: usize, places: &mut Vec<u32>)
}

levels! {
    /// The places of the elements whose magnitude is at least `threshold` (not NaN), ascending, into `places`, which is
    /// cleared.
    at_least, at_least_at = at_least_body(src: &[f32], threshold: f32, places: &mut Vec<u32>)
}

#[inline(always)]
fn top_k_body<P: Pack>(src: &[f32], k: usize, places: &mut Vec<u32>) {
    places.clear();
    if k == 0 {
        return;
    }
    if k >= src.len() {
        places.extend(0..src.len() as u32);
        return;
    }
    let (edge, population) = edge(src, k);
    collect(src, edge, population, places);
    if places.len() == k {
        return;
    }
    let mut magnitudes: Vec<u32> = places.iter().map(|&i| magnitude(src[i as usize])).collect();
    let (_, &mut least, _) = magnitudes.select_nth_unstable_by(k - 1, |a, b| b.cmp(a));
    let above = magnitudes.iter().filter(|&&m| m > least).count();
    let mut equals = k - above;
    places.retain(|&i| {
        let m = magnitude(src[i as usize]);
        let equal = m == least && equals > 0;
        equals -= usize::from(equal);
        m > least || equal
    });
}

#[inline(always)]
fn at_least_body<P: Pack>(src: &[f32], threshold: f32, places: &mut Vec<u32>) {
    places.clear();
    let edge = magnitude(threshold);
    collect(src, edge, 0, places);
}

/// Magnitudes order like their bits.
#[inline(always)]
const fn magnitude(x: f32) -> u32 {
    x.to_bits() & 0x7fff_ffff
}

/// The lowest magnitude of the bin that the `k`-th largest is in, and how many are not below it.
#[inline(always)]
fn edge(src: &[f32], k: usize) -> (u32, usize) {
    // Apart, so that equal neighbours do not wait for each other's count.
    let mut bins = vec![[0_u32; 4]; BINS];
    let (groups, rest) = src.as_chunks::<4>();
    for group in groups {
        for (i, &x) in group.iter().enumerate() {
            bins[(magnitude(x) >> FINE) as usize][i] += 1;
        }
    }
    for &x in rest {
        bins[(magnitude(x) >> FINE) as usize][0] += 1;
    }
    let mut population = 0;
    for (bin, counts) in bins.iter().enumerate().rev() {
        population += counts.iter().sum::<u32>() as usize;
        if population >= k {
            return ((bin as u32) << FINE, population);
        }
    }
    (0, src.len())
}

/// Places of magnitudes that are not below `edge`; about `expected`.
#[inline(always)]
fn collect(src: &[f32], edge: u32, expected: usize, places: &mut Vec<u32>) {
    places.reserve(expected + GROUP);
    let (groups, rest) = src.as_chunks::<GROUP>();
    for (at, group) in groups.iter().enumerate() {
        let mut any = 0;
        for &x in group {
            any |= u32::from(magnitude(x) >= edge);
        }
        if any == 0 {
            continue;
        }
        // Without branches: which elements are large cannot be foreseen.
        let mut found = [0; GROUP];
        let mut count = 0;
        for (i, &x) in group.iter().enumerate() {
            found[count % GROUP] = (at * GROUP + i) as u32;
            count += usize::from(magnitude(x) >= edge);
        }
        places.extend_from_slice(&found[..count]);
    }
    let first = groups.len() * GROUP;
    let rest = rest.iter().enumerate();
    places.extend(
        rest.filter(|(_, x)| magnitude(**x) >= edge)
            .map(|(i, _)| (first + i) as u32),
    );
}
