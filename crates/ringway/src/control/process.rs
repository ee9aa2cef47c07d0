//! What this host knows of the processes of its ranks.

use std::{fs, time::Duration};

use ringway_plan::Rank;

use super::{Cause, shared::Shared};

/// The cause of a silence. On this host the kernel is asked what the process does; a process that has ended, and
/// whose connections a child of its own keeps open, has crashed.
pub(super) fn silent(shared: &Shared, rank: Rank, silence: Duration) -> Cause {
    let (it, me) = (&shared.members[rank], &shared.members[shared.rank]);
    let mut state = String::new();
    if it.host_id == me.host_id {
        match state_of(it.pid) {
            None | Some('Z' | 'X') => return Cause::Crashed,
            Some('T' | 't') => state += "stopped by a signal or a debugger",
            Some('D') => state += "waiting for a disk or a device",
            Some('R') => state += "running",
            Some(_) => state += "asleep",
        }
    }
    Cause::Silent { silence, state }
}

/// The kernel's letter for what a process does; none if there is no such process.
fn state_of(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may contain anything, parentheses too.
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

/// Lets the calling thread have its turn before others where this process may: signs of life that come late are
/// false alarms. Without the right to (CAP_SYS_NICE or a limit) the thread stays as it is.
pub(super) fn raise_priority() {
    // On Linux, priority belongs to threads, and "this process" names the calling one.
    if let Err(error) = rustix::process::setpriority_process(None, -10) {
        tracing::debug!("the control thread keeps its priority: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_knows_this_process_and_not_others() {
        assert!(matches!(state_of(std::process::id()), Some('R' | 'S')));
        assert_eq!(state_of(u32::MAX), None);
    }
}
