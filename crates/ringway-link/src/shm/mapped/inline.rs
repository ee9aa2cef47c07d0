//! Small operations, whose data travels beside the counters: what counts is every nanosecond.

use std::time::Instant;

use ringway_kernels::{Finish, Stores};
use ringway_plan::mapped::{Base, BoundOperand, BoundProgram, Walk};
use ringway_sys::Memory;

use super::{
    MappedCall, MappedError, MappedPlan,
    block::POINT_BITS,
    execute,
    group::Inner,
    wait::{Awaited, Waiter, spin},
};

/// The steps of a small operation: first those that show, then, once all members have called, the rest.
#[derive(Clone, Debug)]
pub(super) struct InlinePlan {
    shows: Vec<usize>,
    steps: Vec<usize>,
}

impl InlinePlan {
    /// Of a program that can show all its staging at once.
    pub(super) fn new(program: &BoundProgram) -> Self {
        let mut plan = Self {
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
        plan
    }
}

/// Carries out an operation.
pub(super) fn run(
    group: &Inner,
    call: &MappedCall,
    plan: &InlinePlan,
    deadline: Instant,
    interrupt: &dyn Fn() -> bool,
) -> Result<(), MappedError> {
    let op = group.sequence.next();
    while let Some(awaited) = group.context_taken(op) {
        wait(group, &awaited, op, deadline, interrupt)?;
    }
    show(group, call, plan, op);
    let members = group.members.len();
    for ahead in 1..members {
        let member = (group.me + ahead) % members;
        let word = group.members[member].context(op).progress();
        let awaited = Awaited {
            member,
            word,
            target: op << POINT_BITS,
        };
        if !spin(group.patience.spins, || word.load() >= awaited.target) {
            wait(group, &awaited, op, deadline, interrupt)?;
        }
        hear(group, call, member, op)?;
    }
    work(group, call, plan, op);
    group.finish(op);
    Ok(())
}

#[cold]
fn wait(
    group: &Inner,
    awaited: &Awaited,
    op: u64,
    deadline: Instant,
    interrupt: &dyn Fn() -> bool,
) -> Result<(), MappedError> {
    let mut waiter = Waiter::new(&group.segment, group.patience);
    while !group.pause(&mut waiter, awaited, op, deadline, interrupt)? {}
    Ok(())
}

/// Tells the others what this member calls, with all that they need of it.
#[inline]
pub(super) fn show(group: &Inner, call: &MappedCall, plan: &InlinePlan, op: u64) {
    let context = group.members[group.me].context(op);
    for &index in &plan.shows {
        do_step(group, call, op, index);
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
        do_step(group, call, op, index);
    }
}

fn do_step(group: &Inner, call: &MappedCall, op: u64, index: usize) {
    let plan: &MappedPlan = &call.plan;
    let program = &plan.staged;
    let step = program.step(index);
    let place = |operand: &BoundOperand| -> Memory {
        let (memory, start) = match operand.base {
            Base::Input => (call.input, operand.offset),
            Base::Output => (call.output, operand.offset),
            Base::Staging => {
                let shown = program.shown(operand.rank).unwrap_or(&[]);
                let start = shown.get(operand.offset).copied().unwrap_or(usize::MAX);
                (group.members[operand.rank].context(op).payload(), start)
            }
        };
        memory.slice(start..start + step.len)
    };
    let finish = if step.completes {
        plan.finish
    } else {
        Finish::None
    };
    execute::with_memory(
        program.operands(&step.sources).iter().map(place),
        |sources| {
            execute::with_memory(
                program.operands(&step.destinations).iter().map(place),
                |to| match *sources {
                    [source] if finish == Finish::None => {
                        to.iter()
                            .filter(|&&to| to != source)
                            .for_each(|to| to.copy_from(source));
                    }
                    _ => Memory::combine(plan.dtype, plan.op, to, sources, finish, Stores::Cached),
                },
            );
        },
    );
}
