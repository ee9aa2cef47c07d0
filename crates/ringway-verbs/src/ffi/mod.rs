//! The C interface: structures, constants and function types of libibverbs and librdmacm.
//!
//! Written down from the headers of rdma-core 44, whose interface only ever grows. Enumerations of C are plain integers
//! here: a library newer than this file may return values that it does not know. The manual pages are the
//! documentation (`man 3 ibv_post_send`, `man 7 rdma_cm`).

#![allow(
    missing_docs,
    non_camel_case_types,
    reason = "names and meaning are those of the C headers and their manual pages"
)]

mod cm;
pub(crate) mod layout;
mod verbs;

pub use cm::*;
pub use layout::Layout;
pub use verbs::*;

/// The layouts of all structures here.
pub fn layouts() -> impl Iterator<Item = &'static Layout> {
    VERBS.iter().chain(CM)
}
