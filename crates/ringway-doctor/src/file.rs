//! Files that others have written, in a tree that was sent or in place of a template: read without a wait for a writer that is
//! not there, and no more of them than makes sense.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

/// Opens a file for reading. A pipe that nobody writes to is empty, and reading one whose writer has not written yet is an error of
/// kind `WouldBlock`.
///
/// # Errors
/// It cannot be opened.
pub fn open(path: &Path) -> io::Result<File> {
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(nonblocking).open(path)
}

/// The first `most` bytes of a file.
pub(crate) fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.take(most).read_to_end(&mut bytes)?;
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
