//! Max-min fair shares against linear programs: what they are by definition, with no idea of how they are computed.

use proptest::prelude::*;
use ringway_sim::max_min;

/// The most that `gain * x` can be where `rows * x <= bounds` and no x is negative; bounds are not negative. The simplex method on
/// a tableau (Dantzig), with Bland's rule, by which it ends.
fn most(gain: &[f64], rows: &[Vec<f64>], bounds: &[f64]) -> f64 {
    const ZERO: f64 = 1e-9;
    let (n, m) = (gain.len(), rows.len());
    // Columns: variables, slacks, the bound. The last row: what a variable would still gain, and what was gained.
    let mut table: Vec<Vec<f64>> = (0..m)
        .map(|r| {
            let slack = (0..m).map(|s| if s == r { 1.0 } else { 0.0 });
            let row = rows[r].iter().copied().chain(slack);
            row.chain([bounds[r]]).collect()
        })
        .collect();
    table.push(gain.iter().copied().chain(vec![0.0; m + 1]).collect());
    let mut basis: Vec<usize> = (n..n + m).collect();
    while let Some(enters) = (0..n + m).find(|&c| table[m][c] > ZERO) {
        let ratio = |r: usize| table[r][n + m] / table[r][enters];
        let leaves = (0..m)
            .filter(|&r| table[r][enters] > ZERO)
            .min_by(|&a, &b| ratio(a).total_cmp(&ratio(b)).then(basis[a].cmp(&basis[b])));
        let Some(leaves) = leaves else {
            return f64::INFINITY;
        };
        let pivot = table[leaves][enters];
        table[leaves].iter_mut().for_each(|x| *x /= pivot);
        let row = table[leaves].clone();
        for (r, other) in table.iter_mut().enumerate() {
            let times = other[enters];
            if r != leaves && times != 0.0 {
                other
                    .iter_mut()
                    .zip(&row)
                    .for_each(|(x, y)| *x -= times * y);
            }
        }
        basis[leaves] = enters;
    }
    -table[m][n + m]
}

/// The smallest rate is as large as it can be; flows that cannot have more keep it; of the others again.
fn by_programs(capacity: &[f64], paths: &[Vec<u32>]) -> Vec<f64> {
    let over = |flow: usize, link: usize| f64::from(u8::from(paths[flow].contains(&(link as u32))));
    let mut fixed: Vec<Option<f64>> = vec![None; paths.len()];
    while fixed.contains(&None) {
        let open: Vec<usize> = (0..paths.len()).filter(|&f| fixed[f].is_none()).collect();
        let left = |link: usize| {
            let used = (0..paths.len()).filter_map(|f| Some(over(f, link) * fixed[f]?));
            (capacity[link] - used.sum::<f64>()).max(0.0)
        };
        let links = 0..capacity.len();
        // All rates that are open are at least t.
        let count = |link| open.iter().map(|&f| over(f, link)).sum::<f64>();
        let rows: Vec<Vec<f64>> = links.clone().map(|link| vec![count(link)]).collect();
        let bounds: Vec<f64> = links.clone().map(left).collect();
        let least = most(&[1.0], &rows, &bounds);
        // And each has y more than t: whose y can only be zero is fixed.
        let rows: Vec<Vec<f64>> = links
            .clone()
            .map(|link| open.iter().map(|&f| over(f, link)).collect())
            .collect();
        let bounds: Vec<f64> = links
            .map(|link| (left(link) - least * count(link)).max(0.0))
            .collect();
        for (i, &flow) in open.iter().enumerate() {
            let gain: Vec<f64> = (0..open.len())
                .map(|j| f64::from(u8::from(i == j)))
                .collect();
            if most(&gain, &rows, &bounds) < 1e-6 {
                fixed[flow] = Some(least);
            }
        }
    }
    fixed.into_iter().flatten().collect()
}

#[test]
fn the_simplex_solves_the_textbook() {
    // Most of 3x + 5y with x <= 4, 2y <= 12, 3x + 2y <= 18: 36 at (2, 6) (Hillier, Lieberman, section 3.1).
    let rows = [vec![1.0, 0.0], vec![0.0, 2.0], vec![3.0, 2.0]];
    let found = most(&[3.0, 5.0], &rows, &[4.0, 12.0, 18.0]);
    assert!((found - 36.0).abs() < 1e-9, "{found}");
    assert_eq!(most(&[1.0], &[vec![0.0]], &[1.0]), f64::INFINITY);
}

proptest! {
    #[test]
    fn shares_are_what_programs_say(
        capacity in proptest::collection::vec(1.0..100.0_f64, 1..7),
        paths in proptest::collection::vec(proptest::collection::btree_set(0..7_u32, 1..5), 1..9),
    ) {
        let links = capacity.len() as u32;
        let within = |path: std::collections::BTreeSet<u32>| {
            let path: std::collections::BTreeSet<u32> = path.into_iter().map(|r| r % links).collect();
            path.into_iter().collect::<Vec<u32>>()
        };
        let paths: Vec<Vec<u32>> = paths.into_iter().map(within).collect();
        let rates = max_min(&capacity, &paths);
        for (rate, expected) in rates.iter().zip(by_programs(&capacity, &paths)) {
            prop_assert!((rate - expected).abs() < 1e-5, "{rate} for {expected}");
        }
    }
}
