//! The files that a measurement leaves: opened before anything is measured, written when all is.

use std::{
    fs::{File, OpenOptions},
    io::Write as _,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

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
