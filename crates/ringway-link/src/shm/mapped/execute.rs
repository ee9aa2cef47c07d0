//! A step's pass over memory.

use std::ops::Range;

use ringway_kernels::{Finish, Stores};
use ringway_plan::mapped::{Base, BoundOperand, BoundProgram, BoundStep};
use ringway_sys::Memory;

use super::{MappedPlan, op::Peer};

/// Up to this many operands of a step cost no allocation.
const FEW: usize = 8;

/// Does the bytes `part` of a step's chunk, or where data is staged of its `segment`, as far as there are so many;
/// returns how many there were. `staging` is how that is filled.
pub(super) fn step(
    plan: &MappedPlan,
    program: &BoundProgram,
    peers: &[Peer],
    step: &BoundStep,
    (segment, staging): (Option<u64>, Stores),
    part: Range<usize>,
) -> usize {
    let (start, most) = match segment {
        Some(segment) => (segment as usize * plan.segment, plan.segment),
        None => (0, usize::MAX),
    };
    let whole = step.len.saturating_sub(start).min(most);
    let bytes = part.start..part.end.min(whole);
    if bytes.is_empty() {
        return 0;
    }
    let copy_of_slot = segment.unwrap_or(0) % plan.copies();
    let place = |operand: &BoundOperand| {
        let peer = &peers[operand.rank];
        let (memory, offset) = match operand.base {
            Base::Input => (peer.input, operand.offset + start),
            Base::Output => (peer.output, operand.offset + start),
            Base::Staging => {
                let slot = copy_of_slot as usize * program.slots() + operand.offset;
                (peer.staging, slot * plan.segment)
            }
        };
        memory.slice(offset + bytes.start..offset + bytes.end)
    };
    let sources = program.operands(&step.sources);
    let destinations = program.operands(&step.destinations);
    let finish = if step.completes {
        plan.finish
    } else {
        Finish::None
    };
    // What goes to memory that was input, read just before, is better written through the caches.
    let own = &peers[plan.member];
    let input = own.input.slice(0..plan.extent(plan.member)[0]);
    let streams = |to: &BoundOperand| match to.base {
        Base::Staging => staging == Stores::Streaming,
        _ => plan.stream && (segment.is_none() || !place(to).overlaps(input)),
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
    bytes.len()
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
