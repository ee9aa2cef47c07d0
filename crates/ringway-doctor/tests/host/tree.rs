//! Trees of files as a host has them, built from the texts in `tests/trees`.
//!
//! `PATH = VALUE` is a file of one line, `PATH:` one whose lines follow, each after `| `; `$ COMMAND` is a command's output, given
//! likewise; `PATH -> TARGET` is a link; `% PATH devctl=.. lnkctl=.. acs=..` a PCI configuration space, `% PATH short` its first
//! 64 bytes; `0x PATH HEX` bytes; `! PATH REASON` could not be read; `- PATH` takes away; `in PATH` and `s OLD / NEW` change what
//! is there, with `@` for the end of a line. `{a,b}` stands for two lines, one with each. `on NAME` starts from another tree.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

use ringway_doctor::host::Root;

/// A directory that is removed with its value.
pub(crate) struct Tree {
    root: PathBuf,
}

/// A fault: a tree, and what is to be found in it.
pub(crate) struct Fault {
    pub(crate) name: String,
    pub(crate) expected: BTreeSet<String>,
    text: String,
}

impl Fault {
    pub(crate) fn tree(&self) -> Tree {
        let tree = Tree::empty();
        tree.apply(&self.text);
        tree
    }
}

fn trees() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/trees")
}

/// All faults of all groups.
pub(crate) fn faults() -> Vec<Fault> {
    let mut files: Vec<PathBuf> = fs::read_dir(trees().join("faults"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    let mut faults: Vec<Fault> = Vec::new();
    for file in files {
        for line in fs::read_to_string(file).unwrap().lines() {
            if let Some(name) = line.strip_prefix("== ") {
                faults.push(Fault {
                    name: name.to_owned(),
                    expected: BTreeSet::new(),
                    text: String::new(),
                });
            } else if let Some(finding) = line.strip_prefix("expect ") {
                faults
                    .last_mut()
                    .unwrap()
                    .expected
                    .insert(finding.to_owned());
            } else {
                let text = &mut faults.last_mut().unwrap().text;
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    faults
}

impl Tree {
    pub(crate) fn empty() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // Not by the name of Ringway, whose own files in shared memory other tests look for.
        let name = format!("doctor-tree-{}-{number}", std::process::id());
        // Hundreds of small files for each tree: in memory where there is a place for it.
        let memory = Path::new("/dev/shm");
        let dir = if memory.is_dir() {
            memory.to_owned()
        } else {
            std::env::temp_dir()
        };
        let root = dir.join(name);
        fs::create_dir_all(&root).unwrap();
        Self { root }
    }

    pub(crate) fn named(name: &str) -> Self {
        Self::with(&format!("on {name}\n"))
    }

    pub(crate) fn with(text: &str) -> Self {
        let tree = Self::empty();
        tree.apply(text);
        tree
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// All files, relative to the root; links are not followed.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut dirs = vec![self.root.clone()];
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(dir).unwrap() {
                let entry = entry.unwrap();
                let kind = entry.file_type().unwrap();
                if kind.is_dir() {
                    dirs.push(entry.path());
                } else if kind.is_file() {
                    found.push(entry.path());
                }
            }
        }
        found.sort();
        found
    }

    fn apply(&self, text: &str) {
        let mut lines = text.lines().peekable();
        let mut places: Vec<String> = Vec::new();
        while let Some(line) = lines.next() {
            if let Some(change) = line.strip_prefix("s ") {
                let (old, new) = change.split_once(" /").unwrap();
                let new = new.strip_prefix(' ').unwrap_or(new);
                for place in &places {
                    self.change(place, &old.replace('@', "\n"), &new.replace('@', "\n"));
                }
                continue;
            }
            let mut block = String::new();
            while let Some(content) = lines.next_if(|next| next.starts_with('|')) {
                block.push_str(content.strip_prefix("| ").unwrap_or(""));
                block.push('\n');
            }
            if let Some(place) = line.strip_prefix("in ") {
                places = expand(place).iter().map(|it| path(it)).collect();
                continue;
            }
            for line in expand(line) {
                self.line(&line, &block);
            }
        }
    }

    fn change(&self, place: &str, old: &str, new: &str) {
        let file = self.root.join(place);
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.contains(old), "{place} has no {old:?}: {text}");
        fs::write(file, text.replacen(old, new, 1)).unwrap();
    }

    fn line(&self, line: &str, block: &str) {
        if line.is_empty() || line.starts_with('#') {
        } else if let Some(name) = line.strip_prefix("on ") {
            let file = trees().join(format!("{name}.tree"));
            self.apply(&fs::read_to_string(file).unwrap());
        } else if let Some(place) = line.strip_prefix("- ") {
            self.remove(&path(place));
        } else if let Some(rest) = line.strip_prefix("! ") {
            let (place, reason) = match rest.strip_prefix("$ ") {
                Some(rest) => rest.rsplit_once(' ').unwrap(),
                None => rest.split_once(' ').unwrap(),
            };
            let place = match rest.starts_with("$ ") {
                true => path(&format!("$ {place}")),
                false => place.to_owned(),
            };
            self.unread(&place, reason);
        } else if let Some(rest) = line.strip_prefix("% ") {
            let (place, rest) = rest.split_once(' ').unwrap();
            self.write(place, &config_space(rest));
        } else if let Some(rest) = line.strip_prefix("0x ") {
            let (place, hex) = rest.split_once(' ').unwrap();
            let bytes: Vec<u8> = (0..hex.len())
                .step_by(2)
                .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
                .collect();
            self.write(place, &bytes);
        } else if line.starts_with("$ ") {
            self.write(&path(line), block.as_bytes());
        } else if let Some((place, target)) = line.split_once(" -> ") {
            self.link(place, target);
        } else if let Some((place, value)) = line.split_once(" =") {
            let value = value.trim_start();
            self.write(place, format!("{value}\n").as_bytes());
        } else {
            let place = line.strip_suffix(':').unwrap();
            let text = match place {
                "proc/self/environ" => block.replace('\n', "\0"),
                _ => block.to_owned(),
            };
            self.write(place, text.as_bytes());
        }
    }

    pub(crate) fn write(&self, place: &str, bytes: &[u8]) {
        let file = self.root.join(place);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, bytes).unwrap();
    }

    fn link(&self, place: &str, target: &str) {
        let link = self.root.join(place);
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(target, &link).unwrap();
        fs::create_dir_all(link.parent().unwrap().join(target)).unwrap();
    }

    fn remove(&self, place: &str) {
        let file = self.root.join(place);
        let kind = file
            .symlink_metadata()
            .unwrap_or_else(|error| panic!("{place}: {error}"));
        if kind.is_dir() {
            fs::remove_dir_all(file).unwrap();
        } else {
            fs::remove_file(file).unwrap();
        }
    }

    fn unread(&self, place: &str, reason: &str) {
        let list = self.root.join("unread");
        let place = Root::recorded(&self.root).unwrap().resolve(place);
        let mut text = fs::read_to_string(&list).unwrap_or_default();
        text.push_str(&format!("{place}\t{reason}\n"));
        fs::write(list, text).unwrap();
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// Where a file, or a command's output, is.
fn path(place: &str) -> String {
    match place.strip_prefix("$ ") {
        Some(command) => Root::file_of(&command.split(' ').collect::<Vec<_>>()),
        None => place.to_owned(),
    }
}

/// A line for each alternative; braces of one line go together.
fn expand(line: &str) -> Vec<String> {
    let alternatives = |line: &str| {
        let inside = line.split('{').nth(1)?.split('}').next()?;
        Some(inside.split(',').count())
    };
    let Some(count) = alternatives(line) else {
        return vec![line.to_owned()];
    };
    (0..count)
        .map(|which| {
            let mut out = String::new();
            for (i, part) in line.split('{').enumerate() {
                match part.split_once('}') {
                    Some((inside, rest)) if i > 0 => {
                        out.push_str(inside.split(',').nth(which).unwrap());
                        out.push_str(rest);
                    }
                    _ => out.push_str(part),
                }
            }
            out
        })
        .collect()
}

/// A configuration space with the capability of PCI Express, and those of ACS and of the serial number if they are given.
fn config_space(fields: &str) -> Vec<u8> {
    if fields == "short" {
        return vec![0x15; 64];
    }
    let field = |name: &str| {
        let value = fields.split(' ').find_map(|it| it.strip_prefix(name))?;
        u16::from_str_radix(value.trim_start_matches("0x"), 16).ok()
    };
    let mut config = vec![0; 4096];
    let mut put = |at: usize, bytes: &[u8]| config[at..at + bytes.len()].copy_from_slice(bytes);
    put(6, &[0x10]);
    put(0x34, &[0x60]);
    put(0x60, &[0x10, 0]);
    put(0x68, &field("devctl=").unwrap().to_le_bytes());
    put(0x70, &field("lnkctl=").unwrap().to_le_bytes());
    put(0x100, &(0x0001u32 | 1 << 16 | 0x148 << 20).to_le_bytes());
    let next = if field("acs=").is_some() {
        0x160 << 20
    } else {
        0
    };
    match field("serial=") {
        Some(_) => {
            put(0x148, &(0x0003u32 | 1 << 16 | next).to_le_bytes());
            put(0x14c, b"SERIALNO");
        }
        None => put(0x148, &(0x0002u32 | 1 << 16 | next).to_le_bytes()),
    }
    if let Some(acs) = field("acs=") {
        put(0x160, &(0x000du32 | 1 << 16).to_le_bytes());
        put(0x166, &acs.to_le_bytes());
    }
    config
}
