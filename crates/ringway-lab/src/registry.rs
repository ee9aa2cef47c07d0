//! Which labs are up, for other processes to find them.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, ErrorKind, Read as _, Seek as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use ringway_fabric::Fabric;
use rustix::process::{Pid, Signal, geteuid, kill_process};
use serde::{Deserialize, Serialize};

use crate::{
    blueprint::Settings,
    error::LabError,
    lab::{Lab, Reach},
};

/// A lab that is up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// By which it is found.
    pub name: String,
    /// Its first process, as the machine sees it.
    pub pid: u32,
    /// When that started, in the kernel's ticks: a number alone may come again.
    started: u64,
    /// Whether it lives in a user namespace of its own.
    user: bool,
    /// The text of the fabric file.
    fabric: String,
    /// What is the same in all nodes.
    pub settings: Settings,
    /// Links that are cut.
    pub down: Vec<usize>,
    /// Bytes per second of each link; empty if they are the file's.
    rates: Vec<f64>,
}

impl Entry {
    /// Of a lab as its file has it, whose first process is `pid`.
    pub fn new(name: &str, pid: u32, user: bool, fabric: &str, settings: Settings) -> Self {
        Self {
            name: name.to_owned(),
            pid,
            started: started(pid).unwrap_or(0),
            user,
            fabric: fabric.to_owned(),
            settings,
            down: Vec::new(),
            rates: Vec::new(),
        }
    }

    /// The fabric, as its file has it.
    pub fn fabric(&self) -> Result<Fabric, LabError> {
        Fabric::parse(&self.fabric).map_err(|e| LabError::Start {
            detail: e.to_string(),
        })
    }

    /// The lab, to be entered and changed.
    pub fn lab(&self) -> Result<Lab, LabError> {
        let fabric = self.fabric()?;
        let reach = Reach::Of {
            pid: self.pid,
            user: self.user,
        };
        let rates = match self.rates.is_empty() {
            true => fabric.links().iter().map(|l| l.rate).collect(),
            false => self.rates.clone(),
        };
        Ok(Lab::attach(
            fabric,
            self.settings.clone(),
            reach,
            self.down.clone(),
            rates,
        ))
    }

    fn is_up(&self) -> bool {
        started(self.pid) == Some(self.started)
    }

    /// Ends it, and waits until nothing of it is left.
    fn end(&self) {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid.filter(|_| self.is_up()) {
            // The kernel kills the rest with the first.
            let _ = kill_process(pid, Signal::KILL);
            for _ in 0..500 {
                if !self.is_up() {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
        }
    }
}

/// When a process started; `None` if there is none, or only what its parent has not looked at.
fn started(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything.
    let mut fields = stat[stat.rfind(')')? + 1..].split_whitespace();
    let state = fields.next()?;
    (state != "Z").then(|| fields.nth(18)?.parse().ok())?
}

/// A directory with a file for each lab of this user.
#[derive(Clone, Debug)]
pub struct Registry {
    directory: PathBuf,
}

fn at(path: &Path) -> impl Fn(io::Error) -> LabError {
    move |source| LabError::File {
        path: path.to_owned(),
        source,
    }
}

impl Registry {
    /// This user's: in `/run` for root, else in `XDG_RUNTIME_DIR`, else in `/tmp`. Forgets labs that have ended.
    pub fn open() -> Result<Self, LabError> {
        let user = geteuid();
        let directory = match (user.is_root(), std::env::var_os("XDG_RUNTIME_DIR")) {
            (true, _) => "/run/ringway-lab".into(),
            (false, Some(own)) => PathBuf::from(own).join("ringway-lab"),
            (false, None) => format!("/tmp/ringway-lab-{}", user.as_raw()).into(),
        };
        Self::at(directory)
    }

    fn at(directory: PathBuf) -> Result<Self, LabError> {
        let failed = at(&directory);
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&directory)
            .map_err(&failed)?;
        let found = fs::symlink_metadata(&directory).map_err(&failed)?;
        // In /tmp anybody could have made it.
        if !found.is_dir() || found.uid() != geteuid().as_raw() {
            return Err(failed(io::Error::new(
                ErrorKind::PermissionDenied,
                "it is not a directory of this user's",
            )));
        }
        drop(failed);
        let registry = Self { directory };
        registry.forget_ended()?;
        Ok(registry)
    }

    fn path(&self, name: &str) -> Result<PathBuf, LabError> {
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        match (1..=64).contains(&name.len()) && name.chars().all(fits) {
            true => Ok(self.directory.join(format!("{name}.json"))),
            false => Err(LabError::Name { name: name.into() }),
        }
    }

    /// Whether a lab may have that name, and has not.
    pub fn check_free(&self, name: &str) -> Result<(), LabError> {
        match self.path(name)?.exists() {
            true => Err(LabError::Exists { name: name.into() }),
            false => Ok(()),
        }
    }

    /// Adds a lab.
    pub fn add(&self, entry: &Entry) -> Result<(), LabError> {
        let path = self.path(&entry.name)?;
        let file = OpenOptions::new().write(true).create_new(true).open(&path);
        let file = match file {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {
                return Err(LabError::Exists {
                    name: entry.name.clone(),
                });
            }
            file => file.map_err(at(&path))?,
        };
        write(file, entry).map_err(at(&path))
    }

    /// The labs that are up, by name.
    pub fn all(&self) -> Result<Vec<Entry>, LabError> {
        let failed = at(&self.directory);
        let mut entries = Vec::new();
        for file in fs::read_dir(&self.directory).map_err(&failed)? {
            let path = file.map_err(&failed)?.path();
            // Another process may take it away meanwhile, or write it for the first time.
            let Ok(text) = fs::read_to_string(&path) else {
                continue;
            };
            entries.extend(serde_json::from_str::<Entry>(&text));
        }
        entries.sort_by(|a: &Entry, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn forget_ended(&self) -> Result<(), LabError> {
        for entry in self.all()?.iter().filter(|e| !e.is_up()) {
            self.remove(entry);
        }
        Ok(())
    }

    /// Forgets a lab that has ended.
    pub fn remove(&self, entry: &Entry) {
        if let Ok(path) = self.path(&entry.name) {
            let _ = fs::remove_file(path);
        }
    }

    /// Ends a lab.
    pub fn end(&self, name: &str) -> Result<(), LabError> {
        let entry = self.find(name)?;
        entry.end();
        self.remove(&entry);
        Ok(())
    }

    fn missing(&self, name: &str) -> LabError {
        let up = self.all().unwrap_or_default().into_iter();
        LabError::NoLab {
            name: name.into(),
            up: up.map(|e| e.name).collect(),
        }
    }

    /// The lab of that name.
    pub fn find(&self, name: &str) -> Result<Entry, LabError> {
        self.path(name)?;
        let found = self.all()?.into_iter().find(|e| e.name == name);
        found.ok_or_else(|| self.missing(name))
    }

    /// Changes a lab, one process at a time, and notes what it then is.
    pub fn change(
        &self,
        name: &str,
        change: impl FnOnce(&mut Lab) -> Result<(), LabError>,
    ) -> Result<(), LabError> {
        let path = self.path(name)?;
        let failed = at(&path);
        let mut file = match OpenOptions::new().read(true).write(true).open(&path) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Err(self.missing(name)),
            file => file.map_err(&failed)?,
        };
        file.lock().map_err(&failed)?;
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(&failed)?;
        let mut entry: Entry =
            serde_json::from_str(&text).map_err(|e| failed(io::Error::other(e)))?;
        let mut lab = entry.lab()?;
        let changed = change(&mut lab);
        // Also where it failed in the middle: what was done is done.
        entry.down = lab.down().to_vec();
        entry.rates = lab.rates().to_vec();
        write(file, &entry).map_err(&failed)?;
        changed
    }
}

/// Makes an entry all that is in a file.
fn write(mut file: File, entry: &Entry) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(serde_json::to_string_pretty(entry)?.as_bytes())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn labs_are_found_and_those_that_ended_are_forgotten() {
        let directory = std::env::temp_dir().join(format!("ringway-labs-{}", std::process::id()));
        let registry = Registry::at(directory.clone()).unwrap();
        let mut sleeper = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let own = Entry::new("one", sleeper.id(), false, "fabric: f", Settings::sample());
        registry.check_free("one").unwrap();
        registry.add(&own).unwrap();
        let error = registry.add(&own).unwrap_err().to_string();
        assert!(error.contains("ringway lab down one"), "{error}");
        assert_eq!(registry.find("one").unwrap(), own);
        let error = registry.find("two").unwrap_err().to_string();
        assert!(error.contains("there are one"), "{error}");

        // A number that came again is another process.
        let other = Entry {
            name: "other".into(),
            started: own.started + 1,
            ..own.clone()
        };
        registry.add(&other).unwrap();
        assert_eq!(
            Registry::at(directory.clone())
                .unwrap()
                .all()
                .unwrap()
                .len(),
            1
        );
        registry.end("one").unwrap();
        assert!(!sleeper.wait().unwrap().success());
        assert_eq!(registry.all().unwrap(), []);
        fs::remove_dir(&directory).unwrap();
    }

    #[test]
    fn names_are_no_paths() {
        let registry = Registry {
            directory: "/nowhere".into(),
        };
        for name in ["", "../x", "a b", &"x".repeat(65)] {
            let error = registry.check_free(name).unwrap_err().to_string();
            assert!(error.contains("expected 1 to 64"), "{error}");
        }
    }
}
