//! Trees of files as /sys and /proc have them, for tests of what reads those.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

/// A directory that is removed with its value.
pub(crate) struct Tree {
    root: PathBuf,
}

impl Tree {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "ringway-verbs-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let root = std::env::temp_dir().join(name);
        fs::create_dir_all(&root).unwrap();
        Self { root }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn file(&self, path: &str, text: &str) {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// An entry of a table of GIDs. Without a type, reading the type fails, as it does in a container.
    pub(crate) fn gid(
        &self,
        device: &str,
        port: u8,
        index: u32,
        gid: &str,
        kind: Option<&str>,
        netdev: Option<&str>,
    ) {
        let dir = format!("sys/class/infiniband/{device}/ports/{port}");
        self.file(&format!("{dir}/gids/{index}"), &format!("{gid}\n"));
        for (attribute, text) in [("types", kind), ("ndevs", netdev)] {
            let path = format!("{dir}/gid_attrs/{attribute}/{index}");
            match text {
                Some(text) => self.file(&path, &format!("{text}\n")),
                // A directory in a file's place makes the read fail.
                None => fs::create_dir_all(self.root.join(path)).unwrap(),
            }
        }
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}
