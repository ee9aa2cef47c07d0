//! Symbolic execution: what every chunk holds, as the tree of reductions that made it.

use super::{
    barrier,
    error::VerifyError,
    graph::{Graph, NONE},
    order::Order,
    shape::{main_span, one},
    value::{Clash, Value, Values},
};
use crate::schedule::{Collective, Op, Order as Operands, Rank, Span};

/// What a symbolic run showed.
pub(super) struct Outcome {
    /// By step: whether it completes a reduction.
    pub(super) completes: Vec<bool>,
    /// Whether no step needs chunks of related sizes.
    pub(super) uneven: bool,
}

/// Runs the schedule in `order`, which any other order agrees with once races are excluded.
pub(super) fn run(graph: &Graph<'_>, order: &Order) -> Result<Outcome, VerifyError> {
    let schedule = graph.schedule;
    if schedule.collective == Collective::Barrier {
        barrier::entered(graph, order)?;
    }
    let mut run = Run::new(graph);
    for &step in &order.steps {
        run.step(step as usize)?;
    }
    run.outputs()?;
    let Run {
        completes, uneven, ..
    } = run;
    let one_each = schedule.chunks == schedule.ranks()
        && schedule.programs.iter().all(|p| p.scratch.is_empty());
    Ok(Outcome {
        completes,
        uneven: uneven && one_each,
    })
}

struct Run<'a> {
    graph: &'a Graph<'a>,
    values: Values,
    /// What each place of each rank holds.
    held: Vec<Vec<Value>>,
    /// The step that wrote it.
    writer: Vec<Vec<u32>>,
    completes: Vec<bool>,
    uneven: bool,
    /// The result of the step at hand.
    result: Vec<Value>,
}

impl<'a> Run<'a> {
    fn new(graph: &'a Graph<'a>) -> Self {
        let s = graph.schedule;
        let values = Values::new(s.ranks(), s.chunks);
        let mut held = Vec::with_capacity(s.ranks());
        for rank in 0..s.ranks() {
            let mut places = vec![NONE; graph.places(rank)];
            for (i, chunk) in s
                .collective
                .input_chunks(s.ranks(), s.chunks, rank)
                .enumerate()
            {
                places[i] = values.input(rank, chunk);
            }
            held.push(places);
        }
        let writer = held.iter().map(|h| vec![NONE; h.len()]).collect();
        let completes = vec![false; graph.len()];
        Self {
            graph,
            values,
            held,
            writer,
            completes,
            uneven: true,
            result: Vec::new(),
        }
    }

    fn step(&mut self, step: usize) -> Result<(), VerifyError> {
        let op = self.graph.step(step).op;
        self.uneven &= main_span(&op).count <= 1;
        self.result.clear();
        for i in 0..main_span(&op).count {
            let value = match op {
                // Its receive, right behind it in the order, reads what is sent.
                Op::Send { src, .. } => {
                    self.read(step, src, i)?;
                    continue;
                }
                Op::Copy { src, .. } => self.read(step, src, i)?,
                Op::Recv { .. } => self.received(step, i)?,
                Op::RecvReduce { own, order, .. } => {
                    let (own, received) = (self.read(step, own, i)?, self.received(step, i)?);
                    match order {
                        Operands::LocalFirst => self.reduce(step, i, own, received)?,
                        Operands::RemoteFirst => self.reduce(step, i, received, own)?,
                    }
                }
                Op::Reduce { a, b, .. } => {
                    let (a, b) = (self.read(step, a, i)?, self.read(step, b, i)?);
                    self.reduce(step, i, a, b)?
                }
            };
            self.result.push(value);
        }
        self.write(step, &op);
        if matches!(op, Op::RecvReduce { .. } | Op::Reduce { .. }) {
            self.note_completion(step)?;
        }
        Ok(())
    }

    fn read(&self, step: usize, span: Span, i: usize) -> Result<Value, VerifyError> {
        let rank = self.graph.rank(step);
        match self.held[rank][self.graph.place(rank, span.space, span.chunk + i)] {
            NONE => Err(VerifyError::Undefined {
                at: self.graph.site_of(step, span, i),
                memory: self.graph.memory,
            }),
            value => Ok(value),
        }
    }

    fn received(&self, step: usize, i: usize) -> Result<Value, VerifyError> {
        let Some(send) = self.graph.partner(step) else {
            unreachable!("every receive has met its send")
        };
        self.read(send, main_span(&self.graph.step(send).op), i)
    }

    fn reduce(&mut self, step: usize, i: usize, a: Value, b: Value) -> Result<Value, VerifyError> {
        let (graph, memory) = (self.graph, self.graph.memory);
        self.values.reduce(a, b).map_err(|clash| match clash {
            Clash::Chunks(first, second) => VerifyError::MixedChunks {
                at: graph.site(step, i),
                first,
                second,
            },
            Clash::Twice(contributor) => VerifyError::Duplicate {
                at: graph.site(step, i),
                contributor,
                memory,
            },
        })
    }

    fn write(&mut self, step: usize, op: &Op) {
        let (Some(dst), rank) = (op.writes(), self.graph.rank(step)) else {
            return;
        };
        for (i, &value) in self.result.iter().enumerate() {
            let place = self.graph.place(rank, dst.space, dst.chunk + i);
            self.held[rank][place] = value;
            self.writer[rank][place] = step as u32;
            self.uneven &= self.fits(rank, one(dst, i), value);
        }
    }

    /// Whether the value has the size of the output chunk that it is written to, even where every chunk
    /// of the vector has a size of its own.
    fn fits(&self, rank: Rank, dst: Span, value: Value) -> bool {
        match self.promise(rank, dst.chunk) {
            Promise::Input(expected) => value == expected,
            Promise::Reduction(chunk) => self.values.chunk(value) == chunk,
        }
    }

    fn note_completion(&mut self, step: usize) -> Result<(), VerifyError> {
        let mut complete = self.result.iter().map(|&v| self.values.is_complete(v));
        let Some(first) = complete.next() else {
            return Ok(());
        };
        self.completes[step] = first;
        match complete.position(|c| c != first) {
            None => Ok(()),
            Some(i) => Err(VerifyError::PartlyComplete {
                at: self.graph.site(step, i + 1),
            }),
        }
    }

    fn promise(&self, rank: Rank, chunk: usize) -> Promise {
        let s = self.graph.schedule;
        let (n, part) = (s.ranks(), s.chunks / s.ranks());
        let vector = s.collective.output_chunks(n, s.chunks, rank).start + chunk;
        match s.collective {
            Collective::AllGather | Collective::Gather { .. } => {
                Promise::Input(self.values.input(vector / part, vector))
            }
            Collective::AllToAll => Promise::Input(
                self.values
                    .input(vector / part, rank * part + vector % part),
            ),
            Collective::Broadcast { root } | Collective::Scatter { root } => {
                Promise::Input(self.values.input(root, vector))
            }
            Collective::AllReduce
            | Collective::Barrier
            | Collective::Reduce { .. }
            | Collective::ReduceScatter => Promise::Reduction(vector),
        }
    }

    /// Compares what every rank has with what it was promised.
    fn outputs(&self) -> Result<(), VerifyError> {
        let s = self.graph.schedule;
        // For each chunk of the vector, the first rank that has its reduction.
        let mut reference: Vec<Option<(Rank, Value, u32)>> = vec![None; s.chunks];
        for rank in 0..s.ranks() {
            for chunk in 0..s.collective.output_chunks(s.ranks(), s.chunks, rank).len() {
                let place = self
                    .graph
                    .place(rank, crate::schedule::Space::Output, chunk);
                let (value, writer) = (self.held[rank][place], self.writer[rank][place]);
                let promise = self.promise(rank, chunk);
                let kept = match promise {
                    Promise::Input(expected) => value == expected,
                    Promise::Reduction(of) => {
                        value != NONE
                            && self.values.chunk(value) == of
                            && self.values.is_complete(value)
                    }
                };
                if !kept {
                    return Err(self.wrong(rank, chunk, value, writer));
                }
                // With one rank nobody is there to differ from, and no step need write in place.
                let Promise::Reduction(of) = promise else {
                    continue;
                };
                match reference[of] {
                    Some((other, expected, other_writer)) if value != expected => {
                        return Err(VerifyError::Differs {
                            rank,
                            chunk: of,
                            at: self.graph.site(writer as usize, 0),
                            other,
                            other_at: self.graph.site(other_writer as usize, 0),
                        });
                    }
                    Some(_) => {}
                    None => reference[of] = Some((rank, value, writer)),
                }
            }
        }
        Ok(())
    }

    fn wrong(&self, rank: Rank, chunk: usize, value: Value, writer: u32) -> VerifyError {
        let expected = match self.promise(rank, chunk) {
            Promise::Input(value) => self.values.describe(value),
            Promise::Reduction(of) => format!("chunk {of} of every rank reduced"),
        };
        let writer = (writer != NONE).then(|| self.graph.site(writer as usize, 0));
        let (found, memory) = (self.values.describe(value), self.graph.memory);
        VerifyError::WrongOutput {
            rank,
            chunk,
            expected,
            found,
            writer,
            memory,
        }
    }
}

/// What an output chunk must hold at the end.
enum Promise {
    /// This rank's input chunk, as it was.
    Input(Value),
    /// This chunk of the vector, of all ranks.
    Reduction(usize),
}
