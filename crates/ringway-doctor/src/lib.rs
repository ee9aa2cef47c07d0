//! What is wrong with a host or a fabric for RoCE, how one sees it, what mends it and what undoes the mending.
//!
//! Everything that judges returns [`Finding`]s, gathered in a [`Report`] that is printed as text, JSON or a page. Nothing here
//! changes anything, and nothing depends on the transports: a machine on which Ringway cannot run is what this is for.
#![forbid(unsafe_code)]

pub mod config;
pub mod file;
mod finding;
pub mod fleet;
pub mod host;
pub mod intent;
pub mod lint;
mod report;
mod variable;

pub use finding::{Confidence, Evidence, Finding, Severity, Step, Unjudged};
pub use report::Report;
