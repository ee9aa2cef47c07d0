//! The `ringway` command.
fn main() {}
