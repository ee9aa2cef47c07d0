//! Files of tests.

use std::path::PathBuf;

/// A file that goes with the test.
pub(crate) struct File(PathBuf);

impl File {
    pub(crate) fn new(name: &str) -> Self {
        let name = format!("ringway-test-{}-{name}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    pub(crate) fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
