//! Ringway.
