//! Small operations, whose data travels beside the counters: what counts is every nanosecond.

use ringway_kernels::{Finish, Stores};
use ringway_plan::mapped::{Base, BoundOperand, BoundProgram, Walk};
use ringway_sys::Memory;

use super::{
    MappedCall, MappedError, MappedPlan,
    block::{PARCEL, PAYLOAD, POINT_BITS},
    execute,
    group::Inner,
    op::Phase,
};

/// The steps of a small operation: first those that show, then, once all members have called, the rest.
#[derive(Clone, Debug)]
pub(super) struct InlinePlan {
    /// Whether the data takes a parcel; otherwise it fits the context.
    pub(super) has_parcel: bool,
    shows: Vec<usize>,
    steps: Vec<usize>,
}

impl InlinePlan {
    /// Of a program that can show all its staging at once; none if that is too much.
    pub(super) fn new(program: &BoundProgram) -> Option<Self> {
        let bytes = program.shown_bytes().filter(|&bytes| bytes <= PARCEL)?;
        let mut plan = Self {
            has_parcel: bytes > PAYLOAD,
            shows: Vec::new(),
            steps: Vec::new(),
        };
        let mut walk = Walk::new(program, 1);
        while let Some((index, _)) = walk.at(program) {
            let step = program.step(index);
            let shows = program
                .operands(&step.destinations)
                .iter()
                .all(|o| o.base == Base::Staging);
            match shows {
                true => plan.shows.push(index),
                false if step.len > 0 => plan.steps.push(index),
                false => {}
            }
            walk.advance(program);
        }
        Some(plan)
    }
}

/// Carries out an operation if all that it needs comes within a moment. Else returns where it stands, for
/// [`super::MappedOp`] to go on from.
#[inline]
pub(super) fn try_run(
    group: &Inner,
    call: &MappedCall,
    plan: &InlinePlan,
    op: u64,
) -> Result<Option<Phase>, MappedError> {
    if group.context_taken(op, plan.has_parcel).is_some() {
        return Ok(Some(Phase::Enter));
    }
    show(group, call, plan, op);
    let members = group.members.len();
    for ahead in 1..members {
        let member = (group.me + ahead) % members;
        let word = group.members[member].context(op).progress();
        if !group.spins.spin(|| word.load() >= op << POINT_BITS) {
            return Ok(Some(Phase::Meet(0)));
        }
        hear(group, call, member, op)?;
    }
    work(group, call, plan, op);
    group.finish(op);
    Ok(None)
}

/// Tells the others what this member calls, with all that they need of it.
#[inline]
pub(super) fn show(group: &Inner, call: &MappedCall, plan: &InlinePlan, op: u64) {
    let context = group.members[group.me].context(op);
    for &index in &plan.shows {
        do_step(group, call, op, plan.has_parcel, index);
    }
    context.describe(call.descriptor, group.sequence.finished());
    context.progress().store(op << POINT_BITS);
    group.waker.wake(&group.segment);
}

/// Takes note of what a member calls that has come.
#[inline]
pub(super) fn hear(
    group: &Inner,
    call: &MappedCall,
    member: usize,
    op: u64,
) -> Result<(), MappedError> {
    let context = group.members[member].context(op);
    let theirs = context.descriptor();
    if theirs != call.descriptor {
        return Err(MappedError::Mismatch {
            member,
            theirs,
            mine: call.descriptor,
        });
    }
    group.sequence.learn(member, context.finished());
    Ok(())
}

/// All members have called: the rest.
#[inline]
pub(super) fn work(group: &Inner, call: &MappedCall, plan: &InlinePlan, op: u64) {
    for &index in &plan.steps {
        do_step(group, call, op, plan.has_parcel, index);
    }
}

fn do_step(group: &Inner, call: &MappedCall, op: u64, has_parcel: bool, index: usize) {
    let plan: &MappedPlan = &call.plan;
    let program = &plan.staged;
    let step = program.step(index);
    execute::in_rows(call, program, step, 0, 0..step.len, |bytes| {
        let place = |operand: &BoundOperand| -> Memory {
            let at = |start: usize| start + bytes.start..start + bytes.end;
            let of = |memory| execute::row(call.places.as_deref(), memory, at(operand.offset));
            match operand.base {
                Base::Input => of(call.input),
                Base::Output => of(call.output),
                Base::Staging => {
                    let shown = program.shown(operand.rank).unwrap_or(&[]);
                    let start = shown.get(operand.offset).copied().unwrap_or(usize::MAX);
                    let member = &group.members[operand.rank];
                    let payload = match has_parcel {
                        true => member.parcel(op),
                        false => member.context(op).payload(),
                    };
                    payload.slice(at(start))
                }
            }
        };
        let finish = if step.completes {
            plan.finish
        } else {
            Finish::None
        };
        let sources = program.operands(&step.sources);
        let destinations = program.operands(&step.destinations);
        match (sources, destinations) {
            ([source], _) if finish == Finish::None => {
                let source = place(source);
                for to in destinations.iter().map(place).filter(|&to| to != source) {
                    to.copy_from(source);
                }
            }
            ([a, b], [to]) if finish == Finish::None => {
                Memory::reduce(plan.dtype, plan.op, place(to), place(a), place(b));
            }
            _ => execute::with_memory(sources.iter().map(place), |sources| {
                execute::with_memory(destinations.iter().map(place), |to| {
                    Memory::combine(plan.dtype, plan.op, to, sources, finish, Stores::Cached);
                });
            }),
        }
    });
}
