//! Processes that are started.

use std::{io, os::unix::process::CommandExt as _, process::Command};

use rustix::process::{Signal, set_parent_process_death_signal};

/// Has the process that `command` starts killed when the thread that starts it ends, be it by kill -9.
pub fn end_with_parent(command: &mut Command) {
    // SAFETY: between fork and exec the closure makes one system call and allocates nothing.
    unsafe {
        command.pre_exec(|| {
            set_parent_process_death_signal(Some(Signal::KILL)).map_err(io::Error::from)
        });
    }
}
