//! Files that the user names: read whole, but no more of them than makes sense, and without a wait for a writer that is not
//! there.

use std::{io::Read as _, path::Path};

use anyhow::{Context as _, Result, bail};
use ringway_doctor::file;
use rustix::fs::{OFlags, fcntl_setfl};

/// A file of text: `what` it is expected to be, and how many bytes such files have at most.
pub(crate) fn text(path: &Path, what: &str, most: u64) -> Result<String> {
    let file = path.display();
    let bytes = bytes(path, what, most)?;
    let wide = bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]);
    // Without a mark in front, too, half of the bytes of most text in UTF-16 are zero.
    if wide || bytes.len() > 1 && bytes.len() / 4 < bytes.iter().filter(|it| **it == 0).count() {
        bail!("{file} is text in UTF-16, or none; expected UTF-8: iconv -f UTF-16 -t UTF-8 {file}");
    }
    String::from_utf8(bytes)
        .with_context(|| format!("{file} is no text in UTF-8, expected a file of type {what}"))
}

/// A file.
pub(crate) fn bytes(path: &Path, what: &str, most: u64) -> Result<Vec<u8>> {
    let file = path.display();
    let cannot = || format!("the {what} {file} cannot be read");
    // Opened so that a pipe without a writer is empty; then it waits for what its writer has to say.
    let opened = file::open(path).with_context(cannot)?;
    fcntl_setfl(&opened, OFlags::empty()).with_context(cannot)?;
    let kind = opened.metadata().with_context(cannot)?;
    let size = kind.len();
    if kind.is_file() && size > most {
        bail!("{file} has {size} bytes, expected {what} files of at most {most}");
    }
    let mut bytes = Vec::new();
    // Pipes and devices do not say how much they hold.
    let read = opened.take(most + 1).read_to_end(&mut bytes);
    if read.with_context(cannot)? as u64 > most {
        bail!("{file} has more than {most} bytes, which is the most that {what} files have");
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, OpenOptions},
        process::Command,
        thread,
        time::Duration,
    };

    use super::*;

    /// A path that is gone when dropped.
    struct Scratch(std::path::PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let name = format!("ringway-input-{}-{name}", std::process::id());
            Self(std::env::temp_dir().join(name))
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    fn refused(path: &Path) -> String {
        format!("{:#}", text(path, "test", 1000).unwrap_err())
    }

    #[test]
    fn what_is_no_file_of_text_is_refused_at_once() {
        assert!(refused(Path::new("/dev/zero")).contains("more than 1000 bytes"));
        assert!(refused(Path::new("/")).contains("the test / cannot be read"));
        assert!(
            refused(Path::new("/nothing/there")).contains("the test /nothing/there cannot be read")
        );
        let file = Scratch::new("file");
        for (bytes, says) in [
            (
                vec![b'a'; 1001],
                "has 1001 bytes, expected test files of at most 1000",
            ),
            (vec![b'a', 0xff, 0xfe], "is no text in UTF-8"),
            (vec![0xff, 0xfe, b'a', 0], "is text in UTF-16"),
            (b"a\0b\0c\0d\0".to_vec(), "is text in UTF-16"),
            (vec![0; 900], "or none"),
        ] {
            fs::write(&file.0, bytes).unwrap();
            assert!(
                refused(&file.0).contains(says),
                "{}: {says}",
                refused(&file.0)
            );
        }
    }

    #[test]
    fn a_pipe_is_read_to_its_end_and_one_without_a_writer_is_empty() {
        let pipe = Scratch::new("pipe");
        let made = Command::new("mkfifo").arg(&pipe.0).status().unwrap();
        assert!(made.success());
        assert_eq!(text(&pipe.0, "test", 1000).unwrap(), "");
        let mut writer = OpenOptions::new();
        // Opened for both, as one for writing alone waits for the reader.
        let mut writer = writer.read(true).write(true).open(&pipe.0).unwrap();
        let reader = {
            let pipe = pipe.0.clone();
            thread::spawn(move || text(&pipe, "test", 1000).unwrap())
        };
        for part in ["a", "b"] {
            thread::sleep(Duration::from_millis(20));
            std::io::Write::write_all(&mut writer, part.as_bytes()).unwrap();
        }
        thread::sleep(Duration::from_millis(20));
        drop(writer);
        assert_eq!(reader.join().unwrap(), "ab");
    }
}
