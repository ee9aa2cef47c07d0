//! A stand-in for libibverbs, loaded by tests in its place: devices of memory, which fail on demand in ways that neither
//! Linux's soft RoCE nor hardware can be made to.
//!
//! A request is carried out while it is posted, between queue pairs of one process. What is faked is the library's side
//! of its C interface only; timing, packets and what hardware does are not.
//!
//! The controls act on objects by their pointers and keep nothing of their own: they work on objects of a copy of this
//! library that was loaded at run time.

mod calls;
mod control;
mod engine;
mod objects;

pub use control::{
    LOCKED_DEVICE, OPEN_DEVICE, Refusable, drop_gid, fail_next, lose_poll, raise, refuse,
};
