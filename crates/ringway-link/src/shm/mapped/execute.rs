//! A step's pass over memory.

use std::ops::Range;

use ringway_kernels::{Finish, Stores};
use ringway_plan::mapped::{Base, BoundOperand, BoundProgram, BoundStep};
use ringway_sys::{Memory, Places};

use super::{MappedCall, MappedPlan, op::Peer};

/// Up to this many operands of a step cost no allocation.
const FEW: usize = 8;

/// Does the bytes `part` of a step's chunk, or where data is staged of its `segment`, as far as there are so many;
/// returns how many there were. `staging` is how that is filled.
pub(super) fn step(
    call: &MappedCall,
    program: &BoundProgram,
    peers: &[Peer],
    step: &BoundStep,
    (segment, staging): (Option<u64>, Stores),
    part: Range<usize>,
) -> usize {
    let plan: &MappedPlan = &call.plan;
    let (start, most) = match segment {
        Some(segment) => (segment as usize * plan.segment, plan.segment),
        None => (0, usize::MAX),
    };
    let whole = step.len.saturating_sub(start).min(most);
    let bytes = part.start..part.end.min(whole);
    if bytes.is_empty() {
        return 0;
    }
    let places = call.places.as_deref();
    let copy_of_slot = segment.unwrap_or(0) % plan.copies;
    let pass = |bytes: Range<usize>| {
        let place = |operand: &BoundOperand| {
            let peer = &peers[operand.rank];
            let from = operand.offset + start;
            let of = |memory| row(places, memory, from + bytes.start..from + bytes.end);
            match operand.base {
                Base::Input => of(peer.input),
                Base::Output => of(peer.output),
                Base::Staging => {
                    let slot = copy_of_slot as usize * program.slots() + operand.offset;
                    let from = slot * plan.segment;
                    peer.staging.slice(from + bytes.start..from + bytes.end)
                }
            }
        };
        let sources = program.operands(&step.sources);
        let destinations = program.operands(&step.destinations);
        let finish = if step.completes {
            plan.finish
        } else {
            Finish::None
        };
        // What goes to memory that was input, read just before, is better written through the caches.
        let replaces_input = |to: &BoundOperand| match places {
            Some(_) => true,
            None => {
                let own = &peers[plan.member];
                place(to).overlaps(own.input.slice(0..plan.extent(plan.member)[0]))
            }
        };
        let streams = |to: &BoundOperand| match to.base {
            Base::Staging => staging == Stores::Streaming,
            _ => plan.stream && (segment.is_none() || !replaces_input(to)),
        };
        with_memory(sources.iter().map(place), |sources| match *sources {
            [source] if finish == Finish::None => {
                for to in destinations {
                    copy(source, place(to), !streams(to));
                }
            }
            _ => with_memory(destinations.iter().map(place), |to| {
                let stores = match destinations.iter().all(streams) {
                    true => Stores::Streaming,
                    false => Stores::Cached,
                };
                Memory::combine(plan.dtype, plan.op, to, sources, finish, stores);
            }),
        });
    };
    in_rows(call, program, step, start, bytes.clone(), pass);
    bytes.len()
}

/// Calls `f` with parts of `bytes` of a step, from `start` of its chunk, that lie in a row wherever the step reads and writes.
#[inline]
pub(super) fn in_rows(
    call: &MappedCall,
    program: &BoundProgram,
    step: &BoundStep,
    start: usize,
    bytes: Range<usize>,
    mut f: impl FnMut(Range<usize>),
) {
    let Some(places) = &call.places else {
        return f(bytes);
    };
    let operands = [&step.sources, &step.destinations].map(|range| program.operands(range));
    let mut rest = bytes;
    while !rest.is_empty() {
        let row = operands
            .into_iter()
            .flatten()
            .filter(|operand| operand.base != Base::Staging)
            .map(|operand| {
                let from = operand.offset + start;
                places.first(from + rest.start..from + rest.end).len()
            })
            .fold(rest.len(), usize::min);
        f(rest.start..rest.start + row);
        rest.start += row;
    }
}

/// Of `places`, or where there are none of `memory`, a range that lies in a row.
#[inline]
pub(super) fn row(places: Option<&Places>, memory: Memory, range: Range<usize>) -> Memory {
    match places {
        None => memory.slice(range),
        Some(places) => places.first(range),
    }
}

fn copy(from: Memory, to: Memory, cached: bool) {
    // In place, the chunk is where it belongs.
    match (from == to, cached) {
        (true, _) => {}
        (false, true) => to.copy_lines(from),
        (false, false) => to.copy_streaming(from),
    }
}

/// Calls `f` with all of `memory` in a row.
#[inline]
pub(super) fn with_memory(
    memory: impl ExactSizeIterator<Item = Memory>,
    f: impl FnOnce(&[Memory]),
) {
    let count = memory.len();
    if count > FEW {
        return f(&memory.collect::<Vec<_>>());
    }
    let mut few = [Memory::EMPTY; FEW];
    for (room, memory) in few.iter_mut().zip(memory) {
        *room = memory;
    }
    f(&few[..count]);
}
