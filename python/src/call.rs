//! Collective calls with Python's arguments, as requests to the engine.

use std::{ops::Range, str::FromStr, time::Duration};

use pyo3::{
    buffer::PyUntypedBuffer,
    exceptions::PyTypeError,
    prelude::*,
    types::{PyDict, PyString},
};
use ringway::{Algorithm, Collective, Memory, Parts, ReduceOp, Request};

use crate::{
    error::Class,
    kind::Kind,
    operand::{Access, Operand},
};

/// A request with what keeps its memory where it is.
pub(crate) struct Call {
    pub(crate) request: Request,
    pub(crate) pins: Vec<PyUntypedBuffer>,
}

/// Keywords that all calls take.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Options {
    pub(crate) kind: Option<Kind>,
    priority: u8,
    pub(crate) timeout: Option<Duration>,
    algorithm: Option<Algorithm>,
}

/// The last keywords of a Python call.
pub(crate) type Keywords<'a, 'py> = &'a Bound<'py, PyDict>;

impl Options {
    pub(crate) fn read(keywords: Option<Keywords<'_, '_>>) -> PyResult<Self> {
        let mut options = Self::default();
        for (name, value) in keywords.into_iter().flatten() {
            let name = name.cast::<PyString>()?.to_string_lossy().into_owned();
            let given = !value.is_none();
            match name.as_str() {
                "algorithm" if given => options.algorithm = Some(parse(value.extract()?)?),
                "dtype" if given => options.kind = Some(Kind::named(value.extract()?)?),
                "priority" if given => options.priority = value.extract()?,
                "timeout" if given => options.timeout = Some(seconds(value.extract()?)?),
                "algorithm" | "dtype" | "priority" | "timeout" => {}
                _ => {
                    return Err(PyTypeError::new_err(format!(
                        "unexpected keyword argument '{name}'; expected algorithm, dtype, priority or timeout"
                    )));
                }
            }
        }
        Ok(options)
    }

    fn apply(self, mut request: Request) -> Request {
        request = request.priority(self.priority);
        if let Some(timeout) = self.timeout {
            request = request.timeout(timeout);
        }
        match self.algorithm {
            Some(algorithm) => request.algorithm(algorithm),
            None => request,
        }
    }
}

/// A time limit in seconds.
pub(crate) fn seconds(value: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value)
        .ok()
        .filter(|limit| !limit.is_zero())
        .ok_or_else(|| {
            Class::Argument.error(format!(
                "a timeout of {value} s; expected a positive number of seconds"
            ))
        })
}

/// A name of the engine's.
pub(crate) fn parse<T: FromStr<Err: std::fmt::Display>>(name: &str) -> PyResult<T> {
    name.parse()
        .map_err(|unknown: T::Err| Class::Argument.error(unknown.to_string()))
}

/// Elements of each part, where parts lie one after the other.
pub(crate) fn packed(counts: &[usize], kind: Kind) -> Vec<Range<usize>> {
    let mut end = 0_usize;
    let part = |count: &usize| {
        let start = end;
        // Beyond any memory, and so refused, where it does not fit.
        end = end.saturating_add(count.saturating_mul(kind.parts()));
        start..end
    };
    counts.iter().map(part).collect()
}

/// A collective that is being put together.
struct Draft<'a> {
    collective: Collective,
    input: Option<Operand>,
    output: Option<Operand>,
    /// Whether the input is the output as well.
    in_place: bool,
    op: Option<&'a str>,
    options: Options,
}

impl Draft<'_> {
    fn kind(&self) -> PyResult<Kind> {
        match (&self.input, &self.output) {
            (Some(input), Some(output)) if input.kind != output.kind => {
                Err(Class::Argument.error(format!(
                    "{}: input has elements of {} and output of {}; expected the same",
                    self.collective.name(),
                    input.kind.name(),
                    output.kind.name()
                )))
            }
            (Some(operand), _) | (None, Some(operand)) => Ok(operand.kind),
            (None, None) => Ok(Kind::Bool),
        }
    }

    fn finish(self, counts: Option<(&[usize], &[usize])>) -> PyResult<Call> {
        let kind = self.kind()?;
        let memory =
            |operand: &Option<Operand>| operand.as_ref().map_or(Memory::EMPTY, |o| o.memory);
        let input = memory(&self.input);
        let output = if self.in_place {
            input
        } else {
            memory(&self.output)
        };
        let mut request = Request::new(self.collective, kind.dtype(), input, output);
        if let Some(op) = self.op {
            request = request.reduce_op(kind.reduction(parse::<ReduceOp>(op)?)?);
        }
        if let Some((input, output)) = counts {
            request = request.parts(Parts {
                input: packed(input, kind),
                output: packed(output, kind),
            });
        }
        let pins = [self.input, self.output]
            .into_iter()
            .flatten()
            .map(|o| o.pin)
            .collect();
        Ok(Call {
            request: self.options.apply(request),
            pins,
        })
    }
}

/// Who calls: a rank of so many.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) rank: usize,
    pub(crate) size: usize,
}

type Object<'a, 'py> = &'a Bound<'py, PyAny>;
type Counts = Option<Vec<usize>>;

/// An operand that only the root has: elsewhere it is not looked at.
fn at_root(
    caller: Caller,
    root: usize,
    collective: Collective,
    operand: Option<Object<'_, '_>>,
    what: &str,
    access: Access,
    kind: Option<Kind>,
) -> PyResult<Option<Operand>> {
    match operand {
        _ if caller.rank != root => Ok(None),
        Some(operand) => Operand::pin(operand, what, access, kind).map(Some),
        None => {
            Err(Class::Argument.error(format!("{}: the root needs an {what}", collective.name())))
        }
    }
}

/// The elements of an operand, as counts have them.
fn elements(operand: Option<&Operand>) -> usize {
    operand.map_or(0, |o| o.memory.len() / o.kind.size())
}

pub(crate) fn all_reduce(
    input: Object<'_, '_>,
    output: Option<Object<'_, '_>>,
    op: &str,
    options: Options,
) -> PyResult<Call> {
    let in_place = output.is_none_or(|output| output.is(input));
    let access = if in_place {
        Access::Write
    } else {
        Access::Read
    };
    let input = Some(Operand::pin(input, "input", access, options.kind)?);
    let pin = |output| Operand::pin(output, "output", Access::Write, options.kind);
    let output = output.filter(|_| !in_place).map(pin).transpose()?;
    Draft {
        collective: Collective::AllReduce,
        input,
        output,
        in_place,
        op: Some(op),
        options,
    }
    .finish(None)
}

pub(crate) fn reduce_scatter(
    caller: Caller,
    input: Object<'_, '_>,
    output: Object<'_, '_>,
    op: &str,
    counts: Counts,
    options: Options,
) -> PyResult<Call> {
    let input = Some(Operand::pin(input, "input", Access::Read, options.kind)?);
    let output = Some(Operand::pin(output, "output", Access::Write, options.kind)?);
    let own = [elements(output.as_ref())];
    let counts = counted(caller, counts)?;
    let draft = Draft {
        collective: Collective::ReduceScatter,
        input,
        output,
        in_place: false,
        op: Some(op),
        options,
    };
    draft.finish(counts.as_deref().map(|counts| (counts, &own[..])))
}

pub(crate) fn all_gather(
    caller: Caller,
    input: Object<'_, '_>,
    output: Object<'_, '_>,
    counts: Counts,
    options: Options,
) -> PyResult<Call> {
    let input = Some(Operand::pin(input, "input", Access::Read, options.kind)?);
    let output = Some(Operand::pin(output, "output", Access::Write, options.kind)?);
    let own = [elements(input.as_ref())];
    let counts = counted(caller, counts)?;
    let draft = Draft {
        collective: Collective::AllGather,
        input,
        output,
        in_place: false,
        op: None,
        options,
    };
    draft.finish(counts.as_deref().map(|counts| (&own[..], counts)))
}

pub(crate) fn broadcast(
    caller: Caller,
    buffer: Object<'_, '_>,
    root: usize,
    options: Options,
) -> PyResult<Call> {
    let collective = Collective::Broadcast { root };
    let in_place = caller.rank == root;
    let access = if in_place {
        Access::Read
    } else {
        Access::Write
    };
    let buffer = Some(Operand::pin(buffer, "buffer", access, options.kind)?);
    let (input, output) = if in_place {
        (buffer, None)
    } else {
        (None, buffer)
    };
    Draft {
        collective,
        input,
        output,
        in_place,
        op: None,
        options,
    }
    .finish(None)
}

pub(crate) fn reduce(
    caller: Caller,
    input: Object<'_, '_>,
    output: Option<Object<'_, '_>>,
    root: usize,
    op: &str,
    options: Options,
) -> PyResult<Call> {
    let collective = Collective::Reduce { root };
    let in_place = caller.rank == root && output.is_none_or(|output| output.is(input));
    let access = if in_place {
        Access::Write
    } else {
        Access::Read
    };
    let input = Some(Operand::pin(input, "input", access, options.kind)?);
    let pin = |output| Operand::pin(output, "output", Access::Write, options.kind);
    let output = output
        .filter(|_| caller.rank == root && !in_place)
        .map(pin)
        .transpose()?;
    Draft {
        collective,
        input,
        output,
        in_place,
        op: Some(op),
        options,
    }
    .finish(None)
}

pub(crate) fn gather(
    caller: Caller,
    input: Object<'_, '_>,
    output: Option<Object<'_, '_>>,
    root: usize,
    counts: Counts,
    options: Options,
) -> PyResult<Call> {
    let collective = Collective::Gather { root };
    let input = Some(Operand::pin(input, "input", Access::Read, options.kind)?);
    let kind = options.kind;
    let output = at_root(
        caller,
        root,
        collective,
        output,
        "output",
        Access::Write,
        kind,
    )?;
    let own = [elements(input.as_ref())];
    let counts = counted(caller, counts)?;
    let draft = Draft {
        collective,
        input,
        output,
        in_place: false,
        op: None,
        options,
    };
    let all = |counts| if caller.rank == root { counts } else { &[][..] };
    draft.finish(counts.as_deref().map(|counts| (&own[..], all(counts))))
}

pub(crate) fn scatter(
    caller: Caller,
    input: Option<Object<'_, '_>>,
    output: Object<'_, '_>,
    root: usize,
    counts: Counts,
    options: Options,
) -> PyResult<Call> {
    let collective = Collective::Scatter { root };
    let kind = options.kind;
    let input = at_root(caller, root, collective, input, "input", Access::Read, kind)?;
    let output = Some(Operand::pin(output, "output", Access::Write, kind)?);
    let own = [elements(output.as_ref())];
    let counts = counted(caller, counts)?;
    let draft = Draft {
        collective,
        input,
        output,
        in_place: false,
        op: None,
        options,
    };
    let all = |counts| if caller.rank == root { counts } else { &[][..] };
    draft.finish(counts.as_deref().map(|counts| (all(counts), &own[..])))
}

pub(crate) fn all_to_all(
    caller: Caller,
    input: Object<'_, '_>,
    output: Object<'_, '_>,
    counts: (Counts, Counts),
    options: Options,
) -> PyResult<Call> {
    let collective = Collective::AllToAll;
    let input = Some(Operand::pin(input, "input", Access::Read, options.kind)?);
    let output = Some(Operand::pin(output, "output", Access::Write, options.kind)?);
    let counts = (counted(caller, counts.0)?, counted(caller, counts.1)?);
    let counts = match &counts {
        (Some(input), Some(output)) => Some((&input[..], &output[..])),
        (None, None) => None,
        _ => {
            return Err(Class::Argument.error(
                "all_to_all: expected both input_counts and output_counts, or neither, found one",
            ));
        }
    };
    Draft {
        collective,
        input,
        output,
        in_place: false,
        op: None,
        options,
    }
    .finish(counts)
}

pub(crate) fn barrier(options: Options) -> PyResult<Call> {
    let collective = Collective::Barrier;
    Draft {
        collective,
        input: None,
        output: None,
        in_place: false,
        op: None,
        options,
    }
    .finish(None)
}

/// Counts for every rank.
fn counted(caller: Caller, counts: Counts) -> PyResult<Counts> {
    match &counts {
        Some(counts) if counts.len() != caller.size => Err(Class::Argument.error(format!(
            "{} counts in a group of {} ranks; expected one for each",
            counts.len(),
            caller.size
        ))),
        _ => Ok(counts),
    }
}
