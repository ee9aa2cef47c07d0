//! A recording of a host: what the checks have read of it and nothing else, without what is private.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use thiserror::Error;

use super::{
    Root, diagnose, nccl,
    root::{Entry, UNREAD},
    scrub::Scrub,
    watch,
};

/// A recording could not be written.
#[derive(Debug, Error)]
pub enum RecordError {
    /// There is something already.
    #[error("{} is not empty: expected a directory that is new or empty; name another", dir.display())]
    NotEmpty {
        /// The directory.
        dir: PathBuf,
    },
    /// Writing failed.
    #[error("cannot write {}: {source}; see rights and free space there", path.display())]
    Write {
        /// The file or directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Runs all checks over `root` and writes what they have read into `dir`, as [`Root::recorded`] expects it. Returns the
/// number of files.
///
/// Host names, MAC and public IP addresses, GUIDs and serial numbers are replaced, the same by the same everywhere; of files
/// that hold more than the checks need only their lines are kept.
///
/// # Errors
/// If there is something in `dir` already, or it cannot be written.
pub fn record(root: Root, dir: &Path) -> Result<usize, RecordError> {
    if fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(RecordError::NotEmpty {
            dir: dir.to_owned(),
        });
    }
    let root = root.recording();
    diagnose(&root, None);
    nccl::advise(&root);
    watch::Ports::of(&root).sample(&root);
    let mut scrub = Scrub::of(&root);
    let journal = root.into_journal();
    let mut files = 0;
    for (path, entry) in &journal.entries {
        let place = dir.join(scrub.text(path));
        match entry {
            Entry::There => write(&place, |place| fs::create_dir_all(place))?,
            Entry::Link(target) => {
                let target = scrub.text(target);
                write(&place, |place| std::os::unix::fs::symlink(&target, place))?;
            }
            Entry::File(bytes) => {
                if let Some(bytes) = scrub.file(path, bytes) {
                    write(&place, |place| fs::write(place, &bytes))?;
                    files += 1;
                }
            }
        }
    }
    let unread: String = journal
        .unread
        .iter()
        .map(|(path, reason)| scrub.text(&format!("{path}\t{reason}\n")))
        .collect();
    write(&dir.join(UNREAD), |place| fs::write(place, &unread))?;
    Ok(files)
}

fn write(path: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> Result<(), RecordError> {
    let parent = path.parent().map_or(Ok(()), fs::create_dir_all);
    parent
        .and_then(|()| make(path))
        .map_err(|source| RecordError::Write {
            path: path.to_owned(),
            source,
        })
}
