//! Where everything is read from: this machine, or a recording of one.

mod command;
mod journal;

use std::{
    collections::BTreeMap,
    fmt, fs, io,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use crate::file;
use journal::Journal;

/// Symbolic links that a path may lead through.
const LINKS: usize = 32;

/// The most that is read of a file, in bytes: /proc/interrupts of 512 CPUs has 3 MB.
const LARGEST: u64 = 8 << 20;

/// A directory, relative to the root, that holds the outputs of commands in a recording: a file for each, named as
/// [`Root::file_of`] says.
pub(super) const COMMANDS: &str = "commands";

/// A file of a recording that tells what could not be read: lines of a path, a tabulator, and the reason.
pub(super) const UNREAD: &str = "unread";

/// The file system and the commands of a host: this one, or as a directory holds them.
///
/// A recording has `sys`, `proc`, `etc` and `dev` as the host has them, as far as they are read, the outputs of commands in
/// `commands` and the reasons why something could not be read in `unread`. Symbolic links are followed within it only.
pub struct Root {
    base: PathBuf,
    live: bool,
    unread: BTreeMap<String, Unread>,
    outputs: Mutex<BTreeMap<String, Result<String, Unread>>>,
    places: Mutex<BTreeMap<String, String>>,
    journal: Option<Mutex<Journal>>,
}

/// Why something was not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unread {
    /// There is no such file or command.
    Absent,
    /// Only root, or somebody with a capability, may.
    Denied,
    /// It failed with these words.
    Failed(String),
}

impl Unread {
    fn of(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Self::Absent,
            io::ErrorKind::PermissionDenied => Self::Denied,
            _ => Self::Failed(error.to_string()),
        }
    }

    fn parse(reason: &str) -> Self {
        match reason {
            "absent" => Self::Absent,
            "denied" => Self::Denied,
            other => Self::Failed(other.to_owned()),
        }
    }
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Absent => "absent",
            Self::Denied => "denied",
            Self::Failed(words) => words,
        })
    }
}

impl Root {
    /// This machine.
    pub fn live() -> Self {
        Self::over(PathBuf::from("/"), true)
    }

    /// A recording.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn recorded(base: &Path) -> io::Result<Self> {
        let mut root = Self::over(base.to_owned(), false);
        fs::read_dir(base)?;
        match file::read(&base.join(UNREAD), LARGEST) {
            Ok(bytes) => {
                let lines = String::from_utf8_lossy(&bytes);
                for (path, reason) in lines.lines().filter_map(|line| line.split_once('\t')) {
                    root.unread.insert(path.to_owned(), Unread::parse(reason));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        Ok(root)
    }

    fn over(base: PathBuf, live: bool) -> Self {
        Self {
            base,
            live,
            unread: BTreeMap::new(),
            outputs: Mutex::default(),
            places: Mutex::default(),
            journal: None,
        }
    }

    /// The same, which keeps what is read.
    pub(super) fn recording(mut self) -> Self {
        self.journal = Some(Mutex::default());
        self
    }

    /// Whether this is the machine the program runs on.
    pub fn is_live(&self) -> bool {
        self.live
    }

    /// The contents of a file, without the spaces around them. Paths are relative to the root: `proc/cmdline`.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn text(&self, path: &str) -> Result<String, Unread> {
        let bytes = self.bytes(path)?;
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// The contents of a file.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn bytes(&self, path: &str) -> Result<Vec<u8>, Unread> {
        let place = self.resolve(path);
        let read = match self.unread.get(&place) {
            Some(reason) => Err(reason.clone()),
            None => {
                file::read(&self.base.join(&place), LARGEST).map_err(|error| Unread::of(&error))
            }
        };
        self.note(|journal| journal.read(&place, &read));
        read
    }

    /// A number in a file.
    pub fn number(&self, path: &str) -> Option<u64> {
        self.text(path).ok()?.parse().ok()
    }

    /// The names in a directory, in order; none if it is not there or may not be looked into.
    pub fn names(&self, dir: &str) -> Vec<String> {
        let place = self.resolve(dir);
        let entries = fs::read_dir(self.base.join(&place)).into_iter().flatten();
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        names.sort_unstable_by(|a, b| natural(a).cmp(&natural(b)));
        // Processes come and go, and are no one's business.
        if self.journal.is_some() && place != "proc" {
            for name in &names {
                self.exists(&format!("{place}/{name}"));
            }
        }
        names
    }

    /// Whether there is such a file or directory.
    pub fn exists(&self, path: &str) -> bool {
        let place = self.resolve(path);
        let there = self.base.join(&place).symlink_metadata().is_ok();
        if there {
            self.note(|journal| journal.exists(&place));
        }
        there
    }

    /// Whether a file may be read and written.
    ///
    /// # Errors
    /// If not.
    pub fn writable(&self, path: &str) -> Result<(), Unread> {
        use rustix::fs::{Access, access};
        let place = self.resolve(path);
        let granted = match self.unread.get(&place) {
            Some(reason) => Err(reason.clone()),
            // Of a recording only what is in it is known, not the rights of whoever looks at it.
            None if !self.live => self
                .base
                .join(&place)
                .symlink_metadata()
                .map(drop)
                .map_err(|error| Unread::of(&error)),
            None => access(self.base.join(&place), Access::READ_OK | Access::WRITE_OK)
                .map_err(|error| Unread::of(&error.into())),
        };
        self.note(|journal| match &granted {
            Ok(()) => journal.exists(&place),
            Err(reason) => journal.unread(&place, reason),
        });
        granted
    }

    /// The last part of what a symbolic link points to: the driver of `device/driver`.
    pub fn link_name(&self, path: &str) -> Option<String> {
        let (dir, last) = path.rsplit_once('/')?;
        let place = self.resolve(path);
        // A link that leads to what was not recorded still says its name.
        let linked = place != format!("{}/{last}", self.resolve(dir));
        let name = place.rsplit('/').next()?.to_owned();
        if linked {
            self.note(|journal| journal.exists(&place));
        }
        linked.then_some(name)
    }

    /// Where a path leads when all links on the way are followed, relative to the root. What is not there is left as it
    /// stands.
    pub fn resolve(&self, path: &str) -> String {
        self.follow(path, &mut 0)
    }

    fn follow(&self, path: &str, links: &mut usize) -> String {
        let (parent, last) = path.rsplit_once('/').unwrap_or(("", path));
        let place = if parent.is_empty() {
            String::new()
        } else {
            self.directory(parent, links)
        };
        let here = match last {
            "" | "." => return place,
            // Nothing is above the root.
            ".." => return place.rsplit_once('/').unwrap_or_default().0.to_owned(),
            _ if place.is_empty() => last.to_owned(),
            _ => format!("{place}/{last}"),
        };
        // The process itself, whatever its number: a recording is read by another.
        if here == "proc/self" || *links >= LINKS {
            return here;
        }
        let target = fs::read_link(self.base.join(&here)).ok();
        let Some(target) = target.as_deref().and_then(Path::to_str) else {
            return here;
        };
        *links += 1;
        self.note(|journal| journal.link(&here, target));
        if target.starts_with('/') {
            self.follow(target, links)
        } else {
            self.follow(&format!("{place}/{target}"), links)
        }
    }

    /// The same for a directory, which is remembered: hundreds of files are read below some.
    fn directory(&self, path: &str, links: &mut usize) -> String {
        let places = || self.places.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = places().get(path) {
            return known.clone();
        }
        let place = self.follow(path, links);
        places().insert(path.to_owned(), place.clone());
        place
    }

    /// What a command writes to its standard output.
    ///
    /// # Errors
    /// If it is not installed or recorded, fails, or takes longer than a second.
    pub fn output(&self, command: &[&str]) -> Result<String, Unread> {
        let file = Self::file_of(command);
        if let Some(known) = self.kept().get(&file) {
            return known.clone();
        }
        let output = if self.live {
            command::run(command)
        } else {
            self.text(&file)
        };
        self.keep(file, &output);
        output
    }

    /// Whether a command is installed on this machine; always, as far as is known, on a recorded one.
    pub(super) fn installed(&self, program: &str) -> bool {
        !self.live || command::installed(program)
    }

    /// Runs commands at once, so that their outputs are there when they are asked for.
    pub fn prepare(&self, commands: &[Vec<&str>]) {
        if !self.live {
            return;
        }
        let outputs: Vec<_> = std::thread::scope(|scope| {
            let running: Vec<_> = commands
                .iter()
                .map(|command| scope.spawn(|| command::run(command)))
                .collect();
            running.into_iter().map(|it| it.join().ok()).collect()
        });
        for (command, output) in commands.iter().zip(outputs) {
            if let Some(output) = output {
                self.keep(Self::file_of(command), &output);
            }
        }
    }

    fn keep(&self, file: String, output: &Result<String, Unread>) {
        let bytes = output.clone().map(String::into_bytes);
        self.note(|journal| journal.read(&file, &bytes));
        self.kept().insert(file, output.clone());
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Result<String, Unread>>> {
        self.outputs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where a recording has the output of a command: its words joined by `_`, and `-` for `/`.
    pub fn file_of(command: &[&str]) -> String {
        format!("{COMMANDS}/{}", command.join("_").replace('/', "-"))
    }

    fn note(&self, entry: impl FnOnce(&mut Journal)) {
        if let Some(journal) = &self.journal {
            entry(&mut journal.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// What was read since [`Self::recording`].
    pub(super) fn into_journal(self) -> Journal {
        self.journal
            .map(|journal| journal.into_inner().unwrap_or_else(PoisonError::into_inner))
            .unwrap_or_default()
    }
}

/// Names in the order in which people count: `cpu2` before `cpu10`.
fn natural(name: &str) -> (&str, u64, &str) {
    let start = name
        .find(|c: char| c.is_ascii_digit())
        .unwrap_or(name.len());
    let (word, rest) = name.split_at(start);
    let end = rest
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(rest.len());
    (word, rest[..end].parse().unwrap_or(0), name)
}

pub(super) use journal::Entry;
