//! Numbers for queue pairs and keys.

use std::io;

/// Bits that nobody can guess, from the operating system.
pub(super) fn random() -> io::Result<u32> {
    let mut bytes = [0; 4];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u32::from_ne_bytes(bytes))
}
