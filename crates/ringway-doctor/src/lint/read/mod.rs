//! Readers: from the statements of each system to the one model.

pub(super) mod application;
pub(super) mod eos;
pub(super) mod host;
pub(super) mod junos;
pub(super) mod manifest;
mod mlnx_qos;
pub(super) mod nvue;
pub(super) mod nxos;
pub(super) mod onyx;
pub(super) mod os10;
pub(super) mod sonic;
pub(super) mod unit;
