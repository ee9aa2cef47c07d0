//! Where a schedule's chunks lie in a rank's memory, in bytes.

use std::ops::Range;

use crate::schedule::{Collective, Program, Rank, Space, Span};

/// The byte range of every chunk of one rank's three spaces.
///
/// Invariant: chunks of a span that a step names are adjacent in memory, so that each span is one range.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    input: Vec<Range<usize>>,
    output: Vec<Range<usize>>,
    scratch: Vec<Range<usize>>,
}

/// Cuts `count` elements in `chunks` parts: the first `count % chunks` have one element more.
pub fn cut(count: usize, chunks: usize) -> impl Fn(usize) -> usize {
    let (each, more) = (count / chunks.max(1), count % chunks.max(1));
    move |chunk| each * chunk + more.min(chunk)
}

impl Layout {
    /// The layout of a vector of `count` elements of `size` bytes, cut evenly in `chunks`. Collectives whose
    /// ranks have parts need `count` to be a multiple of `ranks`: each part is then cut for itself, so that
    /// all ranks' parts have the same length.
    pub fn even(
        collective: Collective,
        program: &Program,
        ranks: usize,
        chunks: usize,
        rank: Rank,
        count: usize,
        size: usize,
    ) -> Self {
        let (parts, per_part) = if collective.has_parts() {
            (ranks, chunks / ranks)
        } else {
            (1, chunks)
        };
        let part = count / parts;
        let within = cut(part, per_part);
        let boundary = |c: usize| {
            let c = c.min(chunks);
            let p = c.checked_div(per_part).unwrap_or(0);
            (part * p + within(c - p * per_part)) * size
        };
        let space = |range: Range<usize>| {
            let base = boundary(range.start);
            range
                .map(|c| boundary(c) - base..boundary(c + 1) - base)
                .collect()
        };
        let mut end = 0;
        let scratch = program
            .scratch
            .iter()
            .map(|&c| {
                let start = end;
                end += boundary(c + 1) - boundary(c);
                start..end
            })
            .collect();
        Self {
            input: space(collective.input_chunks(ranks, chunks, rank)),
            output: space(collective.output_chunks(ranks, chunks, rank)),
            scratch,
        }
    }

    /// The layout of a `v` collective, whose chunks have sizes and places of their own, in bytes. For
    /// schedules with one chunk for each rank and spans of one chunk, and without scratch.
    pub fn uneven(input: Vec<Range<usize>>, output: Vec<Range<usize>>) -> Self {
        Self {
            input,
            output,
            scratch: Vec::new(),
        }
    }

    /// The bytes of `span`, from the start of its space.
    pub fn range(&self, span: Span) -> Range<usize> {
        let space = match span.space {
            Space::Input => &self.input,
            Space::Output => &self.output,
            Space::Scratch => &self.scratch,
        };
        match space.get(span.chunk..span.chunk + span.count) {
            Some([first, .., last]) => first.start..last.end,
            Some([only]) => only.clone(),
            _ => 0..0,
        }
    }

    /// Whether all chunks have the same length.
    pub(crate) fn is_even(&self) -> bool {
        let spaces = [&self.input, &self.output, &self.scratch];
        let mut lengths = spaces.into_iter().flatten().map(Range::len);
        let first = lengths.next();
        lengths.all(|length| Some(length) == first)
    }

    /// Bytes of scratch that the program needs.
    pub fn scratch_bytes(&self) -> usize {
        self.scratch.last().map_or(0, |r| r.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_equal_length_and_chunks_tile_them() {
        let program = Program {
            scratch: vec![0, 5],
            ..Program::default()
        };
        // 3 ranks, 6 chunks, 21 elements of 4 bytes: parts of 7 elements, cut 4 + 3.
        let layout = Layout::even(Collective::ReduceScatter, &program, 3, 6, 1, 21, 4);
        assert_eq!(layout.range(Span::input(2, 2)), 28..56);
        assert_eq!(layout.range(Span::output(0, 1)), 0..16);
        assert_eq!(layout.range(Span::output(1, 1)), 16..28);
        assert_eq!(layout.range(Span::scratch(1, 1)), 16..28);
        assert_eq!(layout.scratch_bytes(), 28);
    }

    #[test]
    fn fewer_elements_than_chunks() {
        let layout = Layout::even(Collective::AllReduce, &Program::default(), 4, 4, 0, 2, 8);
        assert_eq!(layout.range(Span::input(0, 4)), 0..16);
        assert_eq!(layout.range(Span::output(3, 1)), 16..16);
    }
}
