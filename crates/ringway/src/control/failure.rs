//! What users read when a rank fails.

use std::{fmt, time::Duration};

use ringway_plan::Rank;

/// A failure as all surviving ranks agree on it. Its `Display` is the sentence that users read: which rank,
/// where, doing what, the likely cause, the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The rank that failed.
    pub rank: Rank,
    /// Its host.
    pub host: String,
    /// Its process.
    pub pid: u32,
    /// How it failed.
    pub cause: Cause,
    /// What the rank of [`Cause::heard`] was doing at its last sign of life: `all_reduce (operation 17)`; empty if that
    /// is not known.
    pub operation: String,
    /// How far that one was: `lane 0, step 3`; empty if not known.
    pub step: String,
    /// How long that one had been doing that.
    pub since: Duration,
}

/// How a rank failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// It gave up on purpose.
    Aborted {
        /// Why, in its own words.
        reason: String,
    },
    /// Its process ended without leaving the job.
    Crashed,
    /// It left the job in good order, and was still needed.
    Left,
    /// Its connection to another rank broke while both are alive.
    LinkLost {
        /// The other.
        peer: Rank,
        /// What the operating system said.
        detail: String,
    },
    /// It does something else than another rank where both must do the same.
    Mismatch {
        /// The other.
        other: Rank,
        /// What the other does.
        expected: String,
        /// What it does itself.
        found: String,
    },
    /// It sent another rank what does not fit the operation or the protocol, and that one refused it.
    Misfit {
        /// The other.
        peer: Rank,
        /// What was expected and what came.
        detail: String,
    },
    /// It gives no sign of life; its connections are open.
    Silent {
        /// For how long when it was given up.
        silence: Duration,
        /// What else is known: `its process is stopped by a signal`; may be empty.
        known: String,
    },
    /// An operation of its did not end in time.
    Timeout {
        /// The time that it had.
        limit: Duration,
        /// The operation, in the rank's own words.
        operation: String,
        /// Whom it waited for, if it knows.
        awaited: Option<Rank>,
        /// What sets the limit: `RINGWAY_TIMEOUT`, say.
        set_by: String,
    },
    /// It cannot go on, for a reason of its own: memory, a call that its operating system refused.
    Unable {
        /// The reason, and what to do.
        detail: String,
    },
    /// It said that it is there, and never joined the control plane; or, of rank 0, never said who has.
    Unconnected {
        /// The time that it had.
        limit: Duration,
    },
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            rank, host, pid, ..
        } = self;
        write!(f, "rank {rank} (host {host}, pid {pid}) ")?;
        match &self.cause {
            Cause::Aborted { reason } => write!(f, "aborted the job: {reason}")?,
            Cause::Crashed => f.write_str("ended without leaving the job")?,
            Cause::Left => f.write_str("has left the job, and was still needed")?,
            Cause::LinkLost { peer, detail } => {
                write!(f, "lost its connection to rank {peer}: {detail}")?
            }
            Cause::Mismatch {
                other,
                expected,
                found,
            } => {
                write!(f, "calls {found} where rank {other} calls {expected}")?;
            }
            Cause::Misfit { peer, detail } => {
                write!(f, "sent rank {peer} what does not fit: {detail}")?;
            }
            Cause::Silent { silence, known } => {
                write!(f, "has given no sign of life for {silence:.1?}")?;
                if !known.is_empty() {
                    write!(f, " ({known})")?;
                }
            }
            Cause::Timeout {
                limit,
                operation,
                awaited,
                ..
            } => {
                write!(f, "did not end {operation} within {limit:.1?}")?;
                if let Some(peer) = awaited {
                    write!(f, ", waiting for rank {peer}")?;
                }
            }
            Cause::Unable { detail } => write!(f, "cannot go on: {detail}")?,
            Cause::Unconnected { limit } => write!(f, "did not connect within {limit:.0?}")?,
        }
        if let Some(heard) = self
            .cause
            .heard(*rank)
            .filter(|_| !self.operation.is_empty())
        {
            if heard == *rank {
                f.write_str("; it was last heard in ")?;
            } else {
                write!(f, "; rank {heard} was last heard in ")?;
            }
            f.write_str(&self.operation)?;
            if !self.step.is_empty() {
                write!(f, ", {}", self.step)?;
            }
            if !self.since.is_zero() {
                write!(f, ", for {:.1?}", self.since)?;
            }
        }
        f.write_str(". ")?;
        self.cause.write_remedy(f)
    }
}

impl Cause {
    /// Whose last sign of life is of interest when `rank` fails so: its own, unless it has said itself what it was in;
    /// then that of the rank that it waited for.
    pub const fn heard(&self, rank: Rank) -> Option<Rank> {
        match self {
            Self::Mismatch { .. } | Self::Unable { .. } => None,
            Self::Timeout { awaited, .. } => *awaited,
            _ => Some(rank),
        }
    }

    /// The likely reason, and what to do.
    fn write_remedy(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Aborted { .. } => "The reason is its own: see its log",
            Self::Crashed => {
                "Likely it ended with an error or was killed (out of memory, kill -9, its scheduler's limit): see its \
                 log, and `dmesg` of its host for the out-of-memory killer"
            }
            Self::Left => {
                "Likely the ranks do not make the same calls: every rank must make all collective calls before it \
                 leaves"
            }
            Self::LinkLost { .. } => {
                "Likely the network between the two hosts failed, or something between them cuts idle connections: \
                 see both hosts' `ip -s link` and the switch's log"
            }
            Self::Mismatch { .. } => {
                "All ranks of a group must make the same calls in the same order, and a recv needs memory for just what \
                 is sent: compare what the two do up to this call"
            }
            Self::Misfit { .. } => {
                "Likely the ranks do not make the same calls with the same sizes; if they do, or their versions of \
                 Ringway differ, it is a fault of Ringway's: please report it"
            }
            Self::Silent { .. } => {
                "Likely it is stopped (a debugger, SIGSTOP), or its host has failed, is out of memory, or is cut \
                 off; if hosts here pause for longer, raise RINGWAY_FAILURE_AFTER"
            }
            Self::Timeout { set_by, .. } => {
                return write!(
                    f,
                    "Likely another rank never made the call, or computes for longer: if that is meant, raise {set_by}"
                );
            }
            Self::Unable { .. } => "That is of its own making, and no fault of the network's",
            Self::Unconnected { .. } => {
                "Likely it hangs or is starved while it starts, or a firewall lets its host reach the rendezvous but \
                 not rank 0's port: see its log, and RINGWAY_CONNECT_TIMEOUT, RINGWAY_PORT"
            }
        })
    }
}
