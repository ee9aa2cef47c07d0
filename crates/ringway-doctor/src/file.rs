//! Files that others have written, in a tree that was sent or in place of a template: read without a wait for a writer that is
//! not there, and no more of them than makes sense.

use std::{
    fs::OpenOptions,
    io::{self, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

/// The first `most` bytes of a file. A pipe that nobody writes to is empty.
pub(crate) fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let mut options = OpenOptions::new();
    let file = options.read(true).custom_flags(nonblocking).open(path)?;
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A file of text that has no more than `most` bytes.
pub(crate) fn text(path: &Path, most: u64) -> io::Result<String> {
    let bytes = read(path, most + 1)?;
    if bytes.len() as u64 > most {
        let reason = format!("it has more than {most} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, reason));
    }
    String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}
