//! What `fork` does to registered memory.

use std::fmt;

use crate::{ffi, library::Verbs};

/// Whether a child process may exist beside registered memory.
///
/// A child made by `fork` shares pages until one side writes to them; the writer then gets a copy. If that is the
/// parent, the device goes on using the page that the parent no longer has: data is lost in silence. Python's data
/// loaders fork, so this is common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForkSafety {
    /// The kernel copies pinned pages for the child at once (Linux 5.12 and newer). Nothing has to be done.
    Unneeded,
    /// `ibv_fork_init` keeps registered pages out of children: a child that touches them is killed by a signal. Whole
    /// pages are kept out, with whatever else is on them, so register page-aligned memory. Of huge pages too, if
    /// RDMAV_HUGEPAGES_SAFE is set in the environment (ibv_fork_init(3)).
    Enabled,
    /// It could not be made safe: with this error number. Don't fork after memory was registered, or start children by
    /// `exec` at once (Python: the start method "spawn").
    Unsafe(i32),
}

impl ForkSafety {
    /// Asks for it; must come before the first device is opened.
    pub(crate) fn establish(verbs: &Verbs) -> Self {
        let status = || {
            // SAFETY: no arguments; the function may be called at any time.
            verbs.ibv_is_fork_initialized.map(|ask| unsafe { ask() })
        };
        match status() {
            Some(ffi::IBV_FORK_UNNEEDED) => return Self::Unneeded,
            Some(ffi::IBV_FORK_ENABLED) => return Self::Enabled,
            _ => {}
        }
        // SAFETY: no arguments. No memory was registered before by this crate; if another user of the library did so,
        // the function fails, which is told.
        match unsafe { (verbs.ibv_fork_init)() } {
            0 if status() == Some(ffi::IBV_FORK_UNNEEDED) => Self::Unneeded,
            0 => Self::Enabled,
            errno => Self::Unsafe(errno),
        }
    }
}

impl fmt::Display for ForkSafety {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unneeded => f.write_str("safe: the kernel copies registered pages for children"),
            Self::Enabled => f.write_str("safe: registered pages are kept out of children"),
            Self::Unsafe(errno) => write!(
                f,
                "NOT safe ({}): do not fork while memory is registered; in Python use the start method \"spawn\"",
                std::io::Error::from_raw_os_error(*errno)
            ),
        }
    }
}
