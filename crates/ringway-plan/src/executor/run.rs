//! The executor's work: what starts next, and what a completion sets free.

use super::{
    Executor, WINDOW,
    action::{Action, ActionId},
    compile::{Dep, Kind, Step},
    state::{Cursor, State},
};

impl Executor {
    pub(super) fn queue_start(&mut self, queue: u32) {
        let state = &mut self.queues[queue as usize];
        if !std::mem::replace(&mut state.in_starting, true) {
            self.starting.push_back(queue);
        }
    }

    pub(super) fn queue_work(&mut self, queue: u32) {
        let state = &mut self.queues[queue as usize];
        if !std::mem::replace(&mut state.in_working, true) {
            self.working.push_back(queue);
        }
    }

    /// Starts the next message of a queue, if it may.
    pub(super) fn start(&mut self, index: u32) -> Option<Action> {
        let queue = &self.program.queues[index as usize];
        let State {
            start: mut cursor,
            oldest,
            ..
        } = self.queues[index as usize];
        if cursor.step == queue.steps.end || cursor.position - oldest >= WINDOW {
            return None;
        }
        let step = &self.program.steps[cursor.step as usize];
        let waits = matches!(step.kind, Kind::Send | Kind::Recv);
        if waits && !self.open(&mut cursor) {
            self.queues[index as usize].start = cursor;
            return None;
        }
        let id = ActionId {
            queue: index,
            position: cursor.position,
        };
        let (peer, lane, message) = (self.peer(queue.peer), queue.lane, step.message);
        let slice = cursor.position - step.first;
        let place = |operand| step.place(operand, slice, self.program.slice_bytes);
        let action = match step.kind {
            Kind::Send => {
                let src = place(step.reads[0]);
                Action::Send {
                    id,
                    peer,
                    lane,
                    message,
                    slice,
                    src,
                }
            }
            Kind::Recv | Kind::Signal => {
                let dst = place(step.writes);
                Action::Recv {
                    id,
                    peer,
                    lane,
                    message,
                    slice,
                    dst,
                }
            }
            Kind::RecvReduce(_) => {
                let view = queue.view(cursor.position);
                Action::View {
                    id,
                    peer,
                    lane,
                    message,
                    slice,
                    len: place(step.writes).len,
                    view,
                }
            }
            Kind::Copy | Kind::Reduce | Kind::Nothing => {
                unreachable!("local steps are in queues of their own")
            }
        };
        self.advance(&mut cursor);
        self.queues[index as usize].start = cursor;
        Some(action)
    }

    /// Does the next local work of a queue, if there is some to do.
    pub(super) fn work(&mut self, index: u32) -> Option<Action> {
        loop {
            let queue = &self.program.queues[index as usize];
            let State {
                start,
                work: mut cursor,
                oldest,
                arrived,
                ..
            } = self.queues[index as usize];
            if cursor.position == start.position || cursor.position - oldest >= u64::BITS {
                return None;
            }
            let step = &self.program.steps[cursor.step as usize];
            let local = matches!(step.kind, Kind::Copy | Kind::Reduce | Kind::Nothing);
            if !local && arrived & (1 << (cursor.position - oldest)) == 0 {
                return None;
            }
            if step.kind != Kind::Recv && !self.open(&mut cursor) {
                self.queues[index as usize].work = cursor;
                return None;
            }
            let position = cursor.position;
            let id = ActionId {
                queue: index,
                position,
            };
            let slice = position - step.first;
            let place = |operand| step.place(operand, slice, self.program.slice_bytes);
            let (a, b, dst) = (
                place(step.reads[0]),
                place(step.reads[1]),
                place(step.writes),
            );
            let finish = step.finish;
            let action = match step.kind {
                Kind::Copy => Some(Action::Copy { id, src: a, dst }),
                Kind::Reduce => Some(Action::Reduce {
                    id,
                    a,
                    b,
                    dst,
                    finish,
                }),
                Kind::RecvReduce(order) => {
                    let view = queue.view(position);
                    Some(Action::Combine {
                        id,
                        view,
                        own: a,
                        dst,
                        order,
                        finish,
                    })
                }
                Kind::Recv | Kind::Signal | Kind::Nothing => None,
                Kind::Send => unreachable!("sends are not queued for work"),
            };
            self.advance(&mut cursor);
            self.queues[index as usize].work = cursor;
            if action.is_some() {
                return action;
            }
            self.finish(index, position);
        }
    }

    /// Whether the slice at the cursor waits for nothing.
    fn open(&self, cursor: &mut Cursor) -> bool {
        let step = &self.program.steps[cursor.step as usize];
        let slice = cursor.position - step.first;
        if slice < cursor.open {
            return true;
        }
        let allowed = |dep: &Dep| match self.queues[dep.queue as usize]
            .oldest
            .saturating_sub(dep.first)
        {
            done if done >= dep.slices => u32::MAX,
            done => (i64::from(done) - i64::from(dep.lag)).max(0) as u32,
        };
        let mut open = u32::MAX;
        for index in cursor.dep..step.deps.end {
            let slices = allowed(&self.program.deps[index as usize]);
            if slices == u32::MAX && index == cursor.dep {
                cursor.dep += 1;
            }
            open = open.min(slices);
        }
        cursor.open = open;
        slice < open
    }

    fn advance(&self, cursor: &mut Cursor) {
        cursor.position += 1;
        let step = &self.program.steps[cursor.step as usize];
        if cursor.position - step.first == step.slices {
            *cursor = Cursor::at(&self.program, cursor.step + 1, cursor.position);
        }
    }

    /// Notes that a slice has taken effect, and looks again at what waited for it.
    pub(super) fn finish(&mut self, index: u32, position: u32) {
        let state = &mut self.queues[index as usize];
        state.done |= 1 << (position - state.oldest);
        while self.queues[index as usize].done & 1 != 0 {
            let state = &mut self.queues[index as usize];
            state.done >>= 1;
            state.arrived >>= 1;
            state.oldest += 1;
            self.left -= 1;
            let step = &self.program.steps[state.oldest_step as usize];
            if state.oldest - step.first == step.slices {
                state.oldest_step += 1;
            }
            for i in step.wakes.clone() {
                self.wake(self.program.wakes[i as usize]);
            }
        }
        if (index as usize) < self.program.senders + self.program.receivers {
            self.queue_start(index);
        } else {
            // It may have stopped because no more slices can be under way.
            self.queue_work(index);
        }
    }

    /// Looks again at a step that waits, if its queue has come to it.
    fn wake(&mut self, step: u32) {
        let Step { kind, queue, .. } = self.program.steps[step as usize];
        let state = &self.queues[queue as usize];
        if matches!(kind, Kind::Send | Kind::Recv) {
            if state.start.step == step {
                self.queue_start(queue);
            }
        } else if state.work.step == step {
            self.queue_work(queue);
        }
    }
}
