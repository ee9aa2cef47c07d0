//! What was read, for a recording.

use std::collections::BTreeMap;

use super::Unread;

/// What was read of a host, by path relative to the root.
#[derive(Debug, Default)]
pub(in crate::host) struct Journal {
    pub(in crate::host) entries: BTreeMap<String, Entry>,
    pub(in crate::host) unread: BTreeMap<String, Unread>,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::host) enum Entry {
    /// It is there; nobody looked into it.
    There,
    /// A file and its contents.
    File(Vec<u8>),
    /// A symbolic link and what it points to.
    Link(String),
}

impl Journal {
    pub(super) fn read(&mut self, place: &str, read: &Result<Vec<u8>, Unread>) {
        match read {
            Ok(bytes) => {
                let entry = Entry::File(bytes.clone());
                self.entries.insert(place.to_owned(), entry);
            }
            Err(reason) => self.unread(place, reason),
        }
    }

    pub(super) fn exists(&mut self, place: &str) {
        self.entries.entry(place.to_owned()).or_insert(Entry::There);
    }

    pub(super) fn link(&mut self, place: &str, target: &str) {
        self.entries
            .insert(place.to_owned(), Entry::Link(target.to_owned()));
    }

    /// What is absent needs no word: it will be absent from the recording.
    pub(super) fn unread(&mut self, place: &str, reason: &Unread) {
        if *reason != Unread::Absent {
            self.unread.insert(place.to_owned(), reason.clone());
        }
    }
}
