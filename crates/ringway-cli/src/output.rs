//! Where results go: the standard output; and the files that a measurement leaves, opened before anything is measured,
//! written when all is.

use std::{
    fmt,
    fs::{File, OpenOptions},
    io::{self, ErrorKind, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Error, Result};
use ringway::{Communicator, ReduceOp};
use serde::Serialize;

/// The exit code where the reader of the standard output has gone: what shells give a program that SIGPIPE ended.
pub(crate) const READER_GONE: u8 = 141;

/// Why [`print()`] fails where nobody reads any more, as after `| head -1`: no mistake of anybody's.
#[derive(Debug)]
struct ReaderGone;

impl fmt::Display for ReaderGone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nobody reads the standard output any more")
    }
}

/// Prints a result, all of it at once. All commands do it here: `print!` panics where the disk is full or the reader has
/// gone.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => Error::msg(ReaderGone),
        _ => Error::new(error).context("the standard output cannot be written"),
    })
}

/// Tells all ranks how rank 0 came off with what it has printed, so that they stop together and no rank takes another's end
/// for a fault: whether they are to go on, on other ranks than 0; the error itself on rank 0.
pub(crate) fn goes_on(comm: &Communicator, printed: Result<()>) -> Result<bool> {
    let mut failed = [u64::from(printed.is_err())];
    comm.all_reduce(&mut failed, ReduceOp::Max)?;
    printed.map(|()| failed == [0])
}

/// Prints a result for programs.
pub(crate) fn print_json(value: &impl Serialize) -> Result<()> {
    print(&format!("{}\n", serde_json::to_string_pretty(value)?))
}

/// Says why a command failed, and gives `code`; 141 and no word if its reader had seen enough.
pub(crate) fn fail(error: &Error, code: u8) -> ExitCode {
    if error.is::<ReaderGone>() {
        return ExitCode::from(READER_GONE);
    }
    // One write: ranks that share a terminal would mix their words otherwise.
    let _ = io::stderr().write_all(format!("ringway: {error:#}\n").as_bytes());
    ExitCode::from(code)
}

/// A file that can be written.
#[derive(Debug)]
pub(crate) struct Output {
    path: PathBuf,
    file: File,
}

impl Output {
    /// Opens the file that `flag` names, or makes it. What an earlier run left in it stays until [`Output::write`].
    pub(crate) fn open(flag: &str, path: &Path) -> Result<Self> {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .with_context(|| format!("{flag} {} cannot be written", path.display()))?;
        Ok(Self {
            path: path.to_owned(),
            file,
        })
    }

    /// Makes `text` all that is in the file.
    pub(crate) fn write(mut self, text: &str) -> Result<()> {
        let mut write = || {
            // Pipes and terminals have no length.
            if self.file.metadata()?.is_file() {
                self.file.set_len(0)?;
            }
            self.file.write_all(text.as_bytes())
        };
        write().with_context(|| format!("writing {}", self.path.display()))
    }
}

/// Whether the file that `flag` names can be written, for a process that leaves the writing to another. Only regular
/// files are opened: the reader of a pipe would take the first close for the end.
pub(crate) fn probe(flag: &str, path: &Path) -> Result<()> {
    if path
        .metadata()
        .is_ok_and(|there| !there.is_file() && !there.is_dir())
    {
        return Ok(());
    }
    Output::open(flag, path).map(drop)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_was_there_goes_when_it_is_written_and_not_before() {
        let path = std::env::temp_dir().join(format!("ringway-output-{}", std::process::id()));
        fs::write(&path, "a longer text than the new one").unwrap();
        probe("--json", &path).unwrap();
        let output = Output::open("--json", &path).unwrap();
        assert!(fs::read_to_string(&path).unwrap().starts_with("a longer"));
        output.write("[]").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "[]");
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn what_cannot_be_written_is_named_with_its_flag() {
        let error = probe("--plot", Path::new("/proc/none/bandwidth.svg")).unwrap_err();
        let text = format!("{error:#}");
        assert!(text.contains("--plot /proc/none/bandwidth.svg"), "{text}");
        assert!(text.contains("No such file"), "{text}");
        assert!(probe("--json", &std::env::temp_dir()).is_err());
    }
}
