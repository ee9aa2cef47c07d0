//! What comes before what in a lane: steps that touch the same chunk, one of them writing.

use std::collections::HashMap;

use super::{
    error::VerifyError,
    graph::{Graph, NONE},
    shape::main_span,
};
use crate::schedule::{Op, Span, StepRef};

impl Graph<'_> {
    /// Finds what comes before each touch in its lane.
    pub(super) fn find_hazards(&mut self) -> Result<(), VerifyError> {
        let mut hazards = Vec::new();
        let mut hazard_start = Vec::with_capacity(self.touch_count() + 1);
        for rank in 0..self.schedule.ranks() {
            let mut uses = Uses::new(self.places(rank));
            for lane in 0..self.first[rank].len() {
                uses.forget();
                for step in 0..self.schedule.programs[rank].lanes[lane].steps.len() {
                    let number = self.number(rank, StepRef { lane, step });
                    let op = self.step(number).op;
                    self.no_overlap(number, &op)?;
                    for (i, touch) in self.touches(number).enumerate() {
                        hazard_start.push(hazards.len());
                        if main_span(&op).count == 0 {
                            continue;
                        }
                        for span in op.reads() {
                            let place = self.place(rank, span.space, span.chunk + i);
                            uses.read(place, touch as u32, &mut hazards);
                        }
                        if let Some(span) = op.writes() {
                            let place = self.place(rank, span.space, span.chunk + i);
                            uses.write(place, touch as u32, &mut hazards);
                        }
                    }
                }
            }
        }
        hazard_start.push(hazards.len());
        self.hazards = hazards;
        self.hazard_start = hazard_start;
        Ok(())
    }

    /// A step may write what it reads, but chunk for chunk.
    fn no_overlap(&self, number: usize, op: &Op) -> Result<(), VerifyError> {
        let Some(dst) = op.writes().filter(|s| s.count > 1) else {
            return Ok(());
        };
        let rank = self.rank(number);
        let place = |span: Span, i| self.place(rank, span.space, span.chunk + i);
        for src in op.reads() {
            if place(src, 0) == place(dst, 0)
                && place(src, src.count - 1) == place(dst, dst.count - 1)
            {
                continue;
            }
            // Most spans lie apart, and need no look at each chunk's place.
            let (reads, writes) = (extent(src, place), extent(dst, place));
            if reads.1 < writes.0 || writes.1 < reads.0 {
                continue;
            }
            let read = (0..src.count).map(|i| (place(src, i), i));
            let read: HashMap<_, _> = read.collect();
            let clash = (0..dst.count).find(|&i| read.get(&place(dst, i)).is_some_and(|&j| j != i));
            if let Some(i) = clash {
                return Err(VerifyError::Overlap {
                    at: self.site(number, i),
                    memory: self.memory,
                });
            }
        }
        Ok(())
    }
}

/// The first and the last place of a span.
fn extent(span: Span, place: impl Fn(Span, usize) -> usize) -> (usize, usize) {
    let places = (0..span.count).map(|i| place(span, i));
    places.fold((usize::MAX, 0), |(first, last), place| {
        (first.min(place), last.max(place))
    })
}

/// Who reads and writes each place, in one lane.
struct Uses {
    writer: Vec<u32>,
    /// The latest reader since then, as an index in `readers`.
    latest: Vec<u32>,
    /// Readers, each with the index of the one before.
    readers: Vec<(u32, u32)>,
    used: Vec<usize>,
}

impl Uses {
    fn new(places: usize) -> Self {
        Self {
            writer: vec![NONE; places],
            latest: vec![NONE; places],
            readers: Vec::new(),
            used: Vec::new(),
        }
    }

    fn forget(&mut self) {
        for place in self.used.drain(..) {
            (self.writer[place], self.latest[place]) = (NONE, NONE);
        }
        self.readers.clear();
    }

    fn read(&mut self, place: usize, touch: u32, hazards: &mut Vec<u32>) {
        if self.writer[place] != NONE {
            hazards.push(self.writer[place]);
        }
        self.readers.push((touch, self.latest[place]));
        self.latest[place] = self.readers.len() as u32 - 1;
        self.used.push(place);
    }

    fn write(&mut self, place: usize, touch: u32, hazards: &mut Vec<u32>) {
        if self.writer[place] != NONE {
            hazards.push(self.writer[place]);
        }
        let mut reader = self.latest[place];
        while reader != NONE {
            let (by, before) = self.readers[reader as usize];
            if by != touch {
                hazards.push(by);
            }
            reader = before;
        }
        (self.writer[place], self.latest[place]) = (touch, NONE);
        self.used.push(place);
    }
}
