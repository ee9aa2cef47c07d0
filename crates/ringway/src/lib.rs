//! Ringway.
pub mod bootstrap;
pub mod control;
pub mod settings;
