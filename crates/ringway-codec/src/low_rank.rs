//! Matrices as products of two thin ones (PowerSGD, Vogels et al. 2019).

use std::ops::Range;

use ringway_kernels::codec::{Noise, dot, largest};

use crate::{
    Aggregation, Error, Outcome, StateError, Tensors, Values, Wire,
    aggregation::{Stage, key, mix},
    compressor::Reader,
    state::{put_floats, take_floats_into},
    sum::scale,
};

/// The sum of matrices `M` by one step of power iteration: `P = sum M Q`, columns of `P` made orthonormal, `Q = sum M^T P`, and the sum
/// is `P Q^T`. `Q` is where the next step starts (warm start), so that steps together converge to the largest singular vectors.
///
/// Tensors of two and more dimensions are matrices of their first dimension by the rest. Those with less than two dimensions, and those
/// of which factors would be more than half, are added up as they are.
#[derive(Clone, Debug)]
pub struct LowRank {
    rank: usize,
    pieces: Vec<Piece>,
    /// `Q` of all matrices, by columns.
    right: Vec<f32>,
}

#[derive(Clone, Copy, Debug)]
enum Piece {
    Matrix { rows: usize, columns: usize },
    Plain(usize),
}

impl Piece {
    const fn len(self) -> usize {
        match self {
            Self::Matrix { rows, columns } => rows * columns,
            Self::Plain(len) => len,
        }
    }
}

impl LowRank {
    /// With factors of `rank` columns, at least one. `seed`, the same on all ranks, is for the first `Q`.
    pub fn new(rank: usize, tensors: &Tensors, seed: u64) -> Self {
        let rank = rank.max(1);
        let piece = |shape: &[usize]| {
            let len: usize = shape.iter().product();
            match shape {
                [rows, _, ..] if *rows > 0 && 2 * rank * (rows + len / rows) < len => {
                    Piece::Matrix {
                        rows: *rows,
                        columns: len / rows,
                    }
                }
                _ => Piece::Plain(len),
            }
        };
        let pieces: Vec<Piece> = tensors.iter().map(|tensor| piece(&tensor.shape)).collect();
        let columns = pieces.iter().map(|piece| match piece {
            Piece::Matrix { columns, .. } => *columns,
            Piece::Plain(_) => 0,
        });
        let mut right = vec![0.0; rank * columns.sum::<usize>()];
        random(&mut right, seed);
        Self {
            rank,
            pieces,
            right,
        }
    }

    /// Elements that the first round sends: all `P`, and what is not factored.
    fn left_len(&self) -> usize {
        let len = |piece: &Piece| match piece {
            Piece::Matrix { rows, .. } => self.rank * rows,
            Piece::Plain(len) => *len,
        };
        self.pieces.iter().map(len).sum()
    }
}

/// Where a tensor and its factors lie.
#[derive(Clone, Debug)]
struct Place {
    /// Of a matrix.
    columns: Option<usize>,
    /// In the vector.
    vector: Range<usize>,
    /// In what the first round sends.
    left: Range<usize>,
    /// In what the second round sends.
    right: Range<usize>,
}

fn places(pieces: &[Piece], rank: usize) -> impl Iterator<Item = Place> {
    let (mut vector, mut left, mut right) = (0..0, 0..0, 0..0);
    pieces.iter().map(move |piece| {
        let (columns, lefts, rights) = match *piece {
            Piece::Matrix { rows, columns } => (Some(columns), rank * rows, rank * columns),
            Piece::Plain(len) => (None, len, 0),
        };
        let next = |range: &mut Range<usize>, len| {
            *range = range.end..range.end + len;
            range.clone()
        };
        Place {
            columns,
            vector: next(&mut vector, piece.len()),
            left: next(&mut left, lefts),
            right: next(&mut right, rights),
        }
    })
}

/// From -1 to 1.
fn random(values: &mut [f32], key: u64) {
    let noise = Noise::new(key);
    for (place, x) in values.iter_mut().enumerate() {
        *x = 2.0 * noise.at(place as u32) - 1.0;
    }
}

/// Makes columns of `rows` elements orthonormal, by modified Gram-Schmidt. One that depends on those before it becomes random first.
fn orthonormalise(columns: &mut [f32], rows: usize, key: u64) {
    if rows == 0 {
        return;
    }
    for at in 0..columns.len() / rows {
        let (before, rest) = columns.split_at_mut(at * rows);
        let column = &mut rest[..rows];
        if !project(before, column, rows) {
            random(column, mix(key, at as u64));
            // A random column is no combination of fewer columns than it has elements.
            project(before, column, rows);
        }
    }
}

/// Subtracts from a column what it has of others, and makes its length 1; false if there is almost nothing left of it.
fn project(before: &[f32], column: &mut [f32], rows: usize) -> bool {
    let scale = largest(column);
    if scale < f32::MIN_POSITIVE || !scale.is_finite() {
        return false;
    }
    // Squares of what is very small or large leave the range of f32.
    column.iter_mut().for_each(|x| *x /= scale);
    let length = dot(column, column).sqrt();
    // Twice, as rounding leaves something of the others where much is subtracted.
    for _ in 0..2 {
        for other in before.chunks_exact(rows) {
            let share = dot(other, column) as f32;
            subtract_scaled(column, other, share);
        }
    }
    let left = dot(column, column).sqrt();
    if left < 1e-5 * length {
        return false;
    }
    let inverse = (1.0 / left) as f32;
    column.iter_mut().for_each(|x| *x *= inverse);
    true
}

fn subtract_scaled(to: &mut [f32], from: &[f32], factor: f32) {
    for (to, &from) in to.iter_mut().zip(from) {
        *to -= factor * from;
    }
}

/// `M Q`, by columns.
fn times_right(matrix: &[f32], columns: usize, right: &[f32], left: &mut [f32]) {
    let rows = matrix.len() / columns;
    for (left, right) in left.chunks_exact_mut(rows).zip(right.chunks_exact(columns)) {
        for (x, row) in left.iter_mut().zip(matrix.chunks_exact(columns)) {
            *x = dot(row, right) as f32;
        }
    }
}

/// `M^T P`, by columns.
fn times_left(matrix: &[f32], columns: usize, left: &[f32], right: &mut [f32]) {
    let rows = matrix.len() / columns;
    right.fill(0.0);
    for (right, left) in right.chunks_exact_mut(columns).zip(left.chunks_exact(rows)) {
        for (&x, row) in left.iter().zip(matrix.chunks_exact(columns)) {
            subtract_scaled(right, row, -x);
        }
    }
}

/// Subtracts `P Q^T`.
fn subtract_product(matrix: &mut [f32], columns: usize, left: &[f32], right: &[f32]) {
    let rows = matrix.len() / columns;
    for (left, right) in left.chunks_exact(rows).zip(right.chunks_exact(columns)) {
        for (&x, row) in left.iter().zip(matrix.chunks_exact_mut(columns)) {
            subtract_scaled(row, right, x);
        }
    }
}

impl Aggregation for LowRank {
    fn sum(
        &mut self,
        vector: &mut [f32],
        sum: &mut [f32],
        factor: f32,
        poison: bool,
        noise: u64,
        wire: &mut dyn Wire,
    ) -> Result<Outcome, Error> {
        let common = key(noise, 0, Stage::Common);
        let mut left = vec![0.0; self.left_len()];
        let mut right = self.right.clone();
        for at in places(&self.pieces, self.rank) {
            let from = &vector[at.vector.clone()];
            match at.columns {
                Some(columns) => {
                    orthonormalise(
                        &mut right[at.right.clone()],
                        columns,
                        mix(common, at.right.start as u64),
                    );
                    times_right(from, columns, &right[at.right], &mut left[at.left]);
                }
                None => left[at.left].copy_from_slice(from),
            }
        }
        if poison && let Some(first) = left.first_mut() {
            *first = f32::NAN;
        }
        wire.all_reduce(Values::F32(&mut left))?;
        if !largest(&left).is_finite() {
            return Ok(Outcome::Poisoned { foreign: None });
        }
        for at in places(&self.pieces, self.rank) {
            if let Some(columns) = at.columns {
                let rows = at.vector.len() / columns;
                let left = &mut left[at.left];
                orthonormalise(left, rows, mix(!common, at.right.start as u64));
                times_left(&vector[at.vector], columns, left, &mut right[at.right]);
            }
        }
        let own = right.clone();
        wire.all_reduce(Values::F32(&mut right))?;
        if !largest(&right).is_finite() {
            return Ok(Outcome::Poisoned { foreign: None });
        }
        for at in places(&self.pieces, self.rank) {
            let (vector, sum) = (&mut vector[at.vector.clone()], &mut sum[at.vector]);
            match at.columns {
                Some(columns) => {
                    sum.fill(0.0);
                    subtract_product(
                        sum,
                        columns,
                        &left[at.left.clone()],
                        &right[at.right.clone()],
                    );
                    sum.iter_mut().for_each(|x| *x *= -factor);
                    subtract_product(vector, columns, &left[at.left], &own[at.right]);
                }
                None => {
                    scale(sum, &left[at.left], factor);
                    vector.fill(0.0);
                }
            }
        }
        self.right = right;
        Ok(Outcome::Summed)
    }

    fn save(&self, bytes: &mut Vec<u8>) {
        put_floats(bytes, &self.right);
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), StateError> {
        let mut reader = Reader::new(bytes);
        take_floats_into(&mut reader, &mut self.right)?;
        Ok(reader.end()?)
    }
}
