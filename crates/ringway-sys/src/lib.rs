//! The operating system's parts that Ringway stands on.

mod memory;

pub use memory::Memory;
