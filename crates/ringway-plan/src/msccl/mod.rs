//! Schedules in MSCCL's XML: read here, and proved like our own before use.
//!
//! A file has an `algo` with a `gpu` for each rank, in it thread blocks (`tb`) with `step`s. A thread block does its
//! steps one after the other, sends to one peer and receives from one, on one channel; `depid` and
//! `deps` make a step wait for a step of another block of the rank. Step types, with what MSCCL's
//! interpreter makes of them:
//!
//! | type | meaning |
//! |---|---|
//! | `s` | send src |
//! | `r` | receive into dst |
//! | `rcs` | receive into dst, and send it on |
//! | `rrc` | dst = src + received |
//! | `rrcs` | dst = src + received, and send it on |
//! | `rrs` | send on src + received, without keeping it |
//! | `cpy` | dst = src |
//! | `re` | dst = dst + src |
//! | `nop` | only waits |
//!
//! Where two operands are added, that of the lower rank stands first, so that ranks that exchange and add end with the
//! same bits.

mod parse;
mod translate;

use crate::{
    schedule::Rank,
    verify::{Verified, VerifyError, verify},
};

/// Why a file is no schedule that can run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MscclError {
    /// Steps of a rank that wait for each other.
    #[error(
        "line {line}: the steps of gpu {gpu} wait for each other in a circle, this one among them; remove a depid"
    )]
    Circle {
        /// The rank.
        gpu: Rank,
        /// The line of one of the steps.
        line: u32,
    },
    /// Two steps that touch the same chunk, one of them writing, in any order.
    #[error(
        "line {line}: expected this step of gpu {gpu} to come after the one in line {other}, which touches the same chunk; found nothing that orders them; add depid and deps"
    )]
    Race {
        /// The rank.
        gpu: Rank,
        /// The line of one step.
        line: u32,
        /// The line of the other.
        other: u32,
    },
    /// A correct file of a wrong schedule.
    #[error("the file can be read, but its schedule is wrong: {0}")]
    Refused(#[from] VerifyError),
    /// Something else than MSCCL's format.
    #[error("line {line}: expected {expected}, found {found}")]
    Unexpected {
        /// The line.
        line: u32,
        /// What may stand there.
        expected: String,
        /// What stands there.
        found: String,
    },
    /// No XML.
    #[error("expected MSCCL's XML, found something that is no XML: {0}")]
    Xml(String),
}

/// Reads a schedule from the text of an MSCCL file, and proves it. Files do not say which rank is the root of a
/// broadcast, reduce, gather or scatter: that is `root`.
pub fn read_msccl(xml: &str, root: Rank) -> Result<Verified, MscclError> {
    let algo = parse::parse(xml, root)?;
    Ok(verify(translate::translate(&algo)?)?)
}
