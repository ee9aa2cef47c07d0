//! RDMA verbs: libibverbs and librdmacm, loaded at run time, behind objects that cannot be used wrongly by accident.
//!
//! ```no_run
//! use ringway_sys::Staging;
//! use ringway_verbs::{
//!     Access, CompletionChannel, CompletionQueue, Context, Depths, Library, ProtectionDomain, QueuePair, Region, gid,
//! };
//!
//! # fn main() -> Result<(), ringway_verbs::VerbsError> {
//! let library = Library::load()?;                       // or the package to install
//! let context = Context::open(&library, "mlx5_0")?;
//! let choice = gid::choose(&context.gid_table(1)?, gid::Wish::default());
//! let domain = ProtectionDomain::new(&context)?;
//! let buffer = Staging::new(1 << 20);
//! let region = Region::register(&domain, buffer.memory(), Access::ALL)?;
//! let channel = CompletionChannel::new(&context)?;
//! let completions = CompletionQueue::new(&channel, 256)?;
//! let depths = Depths { send: 64, receive: 64, inline: 64 };
//! let pair = QueuePair::new(&domain, &completions, &completions, depths)?;
//! pair.to_init(1, Access::ALL)?;                        // then to_receive, to_send
//! # Ok(()) }
//! ```
//!
//! # What keeps it safe
//!
//!  - Every object holds those that it hangs on (`Arc`), so nothing is destroyed before what needs it.
//!  - A [`Region`] keeps a [`Memory`](ringway_sys::Memory) handle, whose maker has promised that the range stays valid. It is
//!    deregistered before the promise ends, after which the device does not touch it. So neither a request in flight nor
//!    a peer that writes when it likes can reach freed memory.
//!  - Requests name memory by keys, and the device refuses what is not in the key's region. [`Region::local`] borrows
//!    the region until its request is posted; [`Local::of_key`] is for those who keep regions in tables of their own.
//!  - Values of the library that this crate doesn't know are kept as numbers or are errors; none is undefined.
//!
//! What decides something (which GID, which MTU, whether memory may be locked) is a function of plain data, and reads
//! files below a root that tests replace.

pub mod ffi;
pub mod gid;
pub mod sysfs;

mod cm;
mod completion;
mod context;
mod device;
mod domain;
mod error;
mod event;
mod fork;
mod library;
mod memlock;
mod mtu;
mod object;
mod post;
mod queue_pair;
#[cfg(test)]
mod recorded;
mod region;
mod request;
mod status;

pub use cm::{CmEvent, CmEventKind, CmId, ConnectionTerms, EventChannel, IdToken};
pub use completion::{Completion, CompletionChannel, CompletionQueue, Ended};
pub use context::{Context, Limits, Port};
pub use device::{DeviceName, devices};
pub use domain::ProtectionDomain;
pub use error::VerbsError;
pub use event::AsyncEvent;
pub use fork::ForkSafety;
pub use library::{Library, LoadError};
pub use memlock::{Memlock, MemlockError, Surroundings};
pub use mtu::Mtu;
pub use post::Posting;
pub use queue_pair::{Depths, Path, Persistence, QueuePair, QueuePairState};
pub use region::{Access, Local, Region, RemotePlace};
pub use request::{Operation, SendRequest, Source};
pub use status::Status;
