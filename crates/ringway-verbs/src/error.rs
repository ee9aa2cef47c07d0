//! What can go wrong.

use std::io;

use thiserror::Error;

use crate::{gid::GidError, library::LoadError, memlock::MemlockError};

/// A failure of RDMA.
#[derive(Debug, Error)]
pub enum VerbsError {
    /// A library cannot be used.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// No GID can be used.
    #[error("device {device}, port {port}: {source}")]
    Gid {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// Why.
        source: GidError,
    },
    /// The limit of locked memory is too low.
    #[error(transparent)]
    Memlock(#[from] MemlockError),
    /// The device that was asked for is not there.
    #[error(
        "there is no RDMA device {wanted}, found: {found}; `ringway rdma list` shows what there is"
    )]
    NoDevice {
        /// The name that was asked for.
        wanted: String,
        /// The names that are there.
        found: String,
    },
    /// A call failed.
    #[error("{call} failed on {place}: {source}{}", remedy(call, source))]
    Call {
        /// The function, as its manual page is named.
        call: &'static str,
        /// Device, queue pair or address.
        place: String,
        /// The system's reason.
        source: io::Error,
    },
    /// A value that the device or the library gave is not one that this crate knows.
    #[error(
        "{place} gave {what} {value}, which is unknown; expected {expected}; update Ringway or the driver"
    )]
    Unknown {
        /// Device or object.
        place: String,
        /// What the value is.
        what: &'static str,
        /// The value.
        value: String,
        /// The values that are known.
        expected: &'static str,
    },
    /// An argument cannot be.
    #[error("{what} is {got}, expected {expected}")]
    Argument {
        /// Which argument.
        what: &'static str,
        /// Its value.
        got: String,
        /// What it may be.
        expected: String,
    },
    /// The queue pair's queue is full: completions have to be polled first.
    #[error(
        "the {queue} queue of queue pair {number:#x} is full; poll completions before posting more, or make it deeper"
    )]
    Full {
        /// "send" or "receive".
        queue: &'static str,
        /// The queue pair's number.
        number: u32,
    },
    /// Nothing came before the deadline.
    #[error("{what} did not come within {milliseconds} ms")]
    Deadline {
        /// What was waited for.
        what: String,
        /// How long.
        milliseconds: u128,
    },
}

impl VerbsError {
    /// A failed call that left its reason in `errno`.
    pub(crate) fn last(call: &'static str, place: impl Into<String>) -> Self {
        Self::Call {
            call,
            place: place.into(),
            source: io::Error::last_os_error(),
        }
    }

    /// The result of a call that returns an error number (some return it negated), or -1 with `errno` set.
    pub(crate) fn check(
        code: i32,
        call: &'static str,
        place: impl Into<String>,
    ) -> Result<(), Self> {
        match code {
            0 => Ok(()),
            -1 => Err(Self::last(call, place)),
            code => Err(Self::Call {
                call,
                place: place.into(),
                source: io::Error::from_raw_os_error(code.saturating_abs()),
            }),
        }
    }

    /// The system's error number, if a call failed with one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Call { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }
}

/// What to do about a failed call, behind a semicolon; nothing where the reason says all.
fn remedy(call: &str, reason: &io::Error) -> &'static str {
    match (call, reason.raw_os_error()) {
        ("ibv_open_device", Some(libc::EACCES | libc::EPERM)) => {
            "; /dev/infiniband/uverbs* must be readable and writable for this user (group rdma), in a container pass the \
             device: --device /dev/infiniband"
        }
        ("ibv_open_device", Some(libc::ENOENT | libc::ENODEV | libc::ENXIO)) => {
            "; load the kernel's part: modprobe ib_uverbs; in a container pass the device: --device /dev/infiniband"
        }
        ("rdma_create_event_channel", _) => {
            "; load the kernel's part: modprobe rdma_ucm; in a container pass /dev/infiniband/rdma_cm"
        }
        ("ibv_reg_mr", Some(libc::ENOMEM)) => {
            "; the limit of locked memory allows it, so the device's own table of regions is full: register fewer, larger \
             regions"
        }
        ("ibv_dereg_mr", _) => {
            "; the device may go on using the memory: keep it until the device is closed"
        }
        ("ibv_reg_dmabuf_mr", Some(libc::EOPNOTSUPP)) => {
            "; the driver cannot register device memory by dma-buf: load nvidia-peermem, or stage through host memory"
        }
        ("ibv_create_qp" | "ibv_create_cq", Some(libc::ENOMEM)) => {
            "; the device's limits are reached: use fewer or shallower queue pairs"
        }
        ("ibv_modify_qp", Some(libc::ETIMEDOUT)) => {
            "; the peer's address is not resolved: is its interface up, and on a network that this one reaches?"
        }
        ("ibv_modify_qp", Some(libc::EINVAL)) => {
            "; the usual reason is a GID that is gone (an address was removed, a link went down) or a wrong family"
        }
        ("rdma_resolve_addr", Some(libc::ENODEV | libc::ENETUNREACH | libc::EHOSTUNREACH)) => {
            "; no RDMA device is on the route to this address"
        }
        _ => "",
    }
}
