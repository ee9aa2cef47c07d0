//! The programs of all ranks: one for each, or one that is *turned* around a ring or a torus.

use std::{
    collections::BTreeMap,
    fmt,
    ops::{Index, IndexMut},
    sync::OnceLock,
};

use crate::schedule::{Op, Program, Rank, Span, Step};

/// A program for each rank. Where all do the same, each from its own place, only one is kept, and a rank's is made when it is
/// asked for: of a ring of 1,024 ranks all programs together have four million steps.
#[derive(Clone)]
pub struct Programs(Kind);

#[derive(Clone)]
enum Kind {
    Each(Vec<Program>),
    Turned(Turned),
}

/// One program for ranks in a ring, or in a grid whose rows and columns are rings.
#[derive(Clone)]
pub struct Turned {
    one: Program,
    /// The rank at each place, and the place of each rank. Places count row after row.
    line: Vec<Rank>,
    places: Vec<usize>,
    width: usize,
    /// The place that each chunk belongs to, and its number among those of the place.
    owners: Vec<(usize, usize)>,
    /// By number, then place.
    chunks: Vec<Vec<usize>>,
    made: Vec<OnceLock<Program>>,
}

impl Turned {
    /// The program of the rank at place 0; peers are places, not ranks.
    pub const fn one(&self) -> &Program {
        &self.one
    }

    /// How many ranks there are.
    pub(crate) const fn ranks(&self) -> usize {
        self.line.len()
    }

    /// How many chunks each place has.
    pub(crate) const fn chunks_each(&self) -> usize {
        self.chunks.len()
    }

    /// A place seen from place 0, as it is from `turn`.
    pub(crate) const fn turn(&self, place: usize, turn: usize) -> usize {
        let (width, height) = (self.width, self.line.len() / self.width);
        let x = (place % width + turn % width) % width;
        let y = (place / width + turn / width) % height;
        y * width + x
    }

    /// What turns back what `turn` turns.
    pub(crate) const fn back(&self, turn: usize) -> usize {
        let (width, height) = (self.width, self.line.len() / self.width);
        let x = (width - turn % width) % width;
        let y = (height - turn / width) % height;
        y * width + x
    }

    /// Turns from which all others are made up: one place along the row, one along the column.
    pub(crate) fn units(&self) -> impl Iterator<Item = usize> + use<> {
        let places = self.line.len();
        [1, self.width]
            .into_iter()
            .filter(move |&unit| unit < places)
    }

    /// The chunk that is to `turn` what `chunk` is to place 0.
    pub(crate) fn chunk(&self, chunk: usize, turn: usize) -> usize {
        let (place, number) = self.owners[chunk];
        self.chunks[number][self.turn(place, turn)]
    }

    /// The first of the chunks that consecutive ones become.
    pub(crate) fn first(&self, chunks: std::ops::Range<usize>, turn: usize) -> Option<usize> {
        chunks.map(|chunk| self.chunk(chunk, turn)).min()
    }

    /// The rank that is to `rank` what `peer` is to `other`.
    pub(crate) fn peer(&self, rank: Rank, other: Rank, peer: Rank) -> Rank {
        let [rank, other, peer] = [rank, other, peer].map(|rank| self.places[rank]);
        self.line[self.turn(self.turn(peer, self.back(other)), rank)]
    }

    /// The same with another program.
    #[cfg(test)]
    pub(crate) fn with(&self, one: Program) -> Programs {
        let made = vec![OnceLock::new(); self.line.len()];
        Programs(Kind::Turned(Self {
            one,
            made,
            ..self.clone()
        }))
    }

    fn make(&self, rank: Rank) -> Program {
        let turn = self.places[rank];
        let span = |span: Span| Span {
            chunk: self
                .first(span.chunk..span.chunk + span.count, turn)
                .unwrap_or(span.chunk),
            ..span
        };
        let rank_at = |place: usize| self.line[self.turn(place, turn)];
        let mut program = self.one.clone();
        for Step { op, .. } in program.lanes.iter_mut().flat_map(|l| &mut l.steps) {
            *op = match *op {
                Op::Copy { src, dst } => Op::Copy {
                    src: span(src),
                    dst: span(dst),
                },
                Op::Recv { peer, dst } => Op::Recv {
                    peer: rank_at(peer),
                    dst: span(dst),
                },
                Op::RecvReduce {
                    peer,
                    own,
                    dst,
                    order,
                } => Op::RecvReduce {
                    peer: rank_at(peer),
                    own: span(own),
                    dst: span(dst),
                    order,
                },
                Op::Reduce { a, b, dst } => Op::Reduce {
                    a: span(a),
                    b: span(b),
                    dst: span(dst),
                },
                Op::Send { peer, src } => Op::Send {
                    peer: rank_at(peer),
                    src: span(src),
                },
            };
        }
        program
    }
}

impl Programs {
    /// `one` is the program of the rank at place 0 of `line`, with places in place of ranks as peers; all others do the same, each
    /// from its place. Places count along rows of `width`, a ring is one row. `owners` has the place that each chunk of the vector
    /// belongs to: what the rank at place 0 does with the n-th chunk of a place, another does with the n-th of the place that
    /// is so many columns and rows further. For collectives of which all ranks have the whole vector as input and output; spans
    /// of several chunks must become consecutive ones.
    ///
    /// # Panics
    /// `line` does not have each rank once, or no whole rows, or places have not as many chunks as each other.
    pub fn turned(one: Program, line: Vec<Rank>, width: usize, owners: &[usize]) -> Self {
        let n = line.len();
        assert!(width > 0 && n.is_multiple_of(width), "whole rows");
        let mut places = vec![usize::MAX; n];
        for (place, &rank) in line.iter().enumerate() {
            places[rank] = place;
        }
        assert!(!places.contains(&usize::MAX), "each rank has a place");
        let mut of_place: Vec<Vec<usize>> = vec![Vec::new(); n];
        let numbered = |(chunk, &place): (usize, &usize)| {
            of_place[place].push(chunk);
            (place, of_place[place].len() - 1)
        };
        let owners: Vec<_> = owners.iter().enumerate().map(numbered).collect();
        let each = owners.len() / n;
        assert!(of_place.iter().all(|of| of.len() == each), "equal parts");
        Self(Kind::Turned(Turned {
            one,
            places,
            width,
            owners,
            chunks: (0..each)
                .map(|number| of_place.iter().map(|of| of[number]).collect())
                .collect(),
            made: vec![OnceLock::new(); n],
            line,
        }))
    }

    /// The one program, if there is but one.
    pub const fn as_turned(&self) -> Option<&Turned> {
        match &self.0 {
            Kind::Each(_) => None,
            Kind::Turned(turned) => Some(turned),
        }
    }

    /// How many there are: one for each rank.
    pub const fn len(&self) -> usize {
        match &self.0 {
            Kind::Each(programs) => programs.len(),
            Kind::Turned(turned) => turned.line.len(),
        }
    }

    /// Whether there are no ranks.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// By rank. What is turned is made and kept, for all ranks.
    pub fn iter(&self) -> impl Iterator<Item = &Program> {
        (0..self.len()).map(|rank| &self[rank])
    }

    /// By rank, to be changed: each is one for itself from then on.
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, Program> {
        self.each().iter_mut()
    }

    /// The number of steps of all ranks.
    pub fn steps(&self) -> usize {
        let of = |program: &Program| program.lanes.iter().map(|l| l.steps.len()).sum::<usize>();
        match &self.0 {
            Kind::Each(programs) => programs.iter().map(of).sum(),
            Kind::Turned(turned) => of(&turned.one) * turned.line.len(),
        }
    }

    /// How many chunks go from which rank to which, by sender and receiver; none where there are only signals.
    pub fn traffic(&self) -> BTreeMap<(Rank, Rank), usize> {
        let mut traffic = BTreeMap::new();
        let sends = |program: &Program| {
            let mut chunks: BTreeMap<Rank, usize> = BTreeMap::new();
            for step in program.lanes.iter().flat_map(|l| &l.steps) {
                if let Op::Send { peer, src } = step.op {
                    *chunks.entry(peer).or_default() += src.count;
                }
            }
            chunks
        };
        match &self.0 {
            Kind::Each(programs) => {
                for (rank, program) in programs.iter().enumerate() {
                    let of = sends(program).into_iter();
                    traffic.extend(of.map(|(peer, chunks)| ((rank, peer), chunks)));
                }
            }
            Kind::Turned(turned) => {
                for (peer, chunks) in sends(&turned.one) {
                    let line = &turned.line;
                    let pairs = line.iter().enumerate();
                    let pairs = pairs.map(|(p, &rank)| (rank, line[turned.turn(peer, p)]));
                    traffic.extend(pairs.map(|pair| (pair, chunks)));
                }
            }
        }
        traffic
    }

    fn each(&mut self) -> &mut Vec<Program> {
        if matches!(self.0, Kind::Turned(_)) {
            self.0 = Kind::Each(self.iter().cloned().collect());
        }
        match &mut self.0 {
            Kind::Each(programs) => programs,
            Kind::Turned(_) => unreachable!("it was made one for each right above"),
        }
    }
}

impl Index<Rank> for Programs {
    type Output = Program;

    fn index(&self, rank: Rank) -> &Program {
        match &self.0 {
            Kind::Each(programs) => &programs[rank],
            Kind::Turned(turned) => turned.made[rank].get_or_init(|| turned.make(rank)),
        }
    }
}

impl IndexMut<Rank> for Programs {
    fn index_mut(&mut self, rank: Rank) -> &mut Program {
        &mut self.each()[rank]
    }
}

impl From<Vec<Program>> for Programs {
    fn from(programs: Vec<Program>) -> Self {
        Self(Kind::Each(programs))
    }
}

impl FromIterator<Program> for Programs {
    fn from_iter<I: IntoIterator<Item = Program>>(programs: I) -> Self {
        Self(Kind::Each(programs.into_iter().collect()))
    }
}

impl PartialEq for Programs {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Programs {}

impl fmt::Debug for Programs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
