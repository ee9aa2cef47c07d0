//! The virtual machine's kernel and file system, made once from Debian packages.

use std::{
    env::consts,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::{setup, test::stage::Runner};

/// What makes it, and what it is made of beside packages. These and the system's release are its recipe: an image of
/// another is made anew.
const FILES: [(&str, &str); 3] = [
    ("image.sh", include_str!("image.sh")),
    ("init.sh", include_str!("init.sh")),
    ("link-up.sh", include_str!("link-up.sh")),
];

/// Commands that are needed on this side.
const COMMANDS: [setup::Need; 4] = [
    (
        "qemu-system-x86_64",
        &["qemu-system-x86"],
        "a machine with RDMA devices",
    ),
    ("depmod", &["kmod"], "the kernel modules of that machine"),
    ("xz", &["xz-utils"], "the kernel of that machine"),
    ("tshark", &["tshark"], "what is captured in that machine"),
];

/// A kernel and an initramfs.
pub(super) struct Image {
    dir: PathBuf,
}

impl Image {
    pub(super) fn kernel(&self) -> PathBuf {
        self.dir.join("vmlinux")
    }

    pub(super) fn initramfs(&self) -> PathBuf {
        self.dir.join("initramfs")
    }

    /// Why this machine can have none; `None` if it can.
    pub(super) fn impossible() -> Option<String> {
        if consts::ARCH != "x86_64" {
            return Some(format!(
                "the virtual machine is for x86_64, this is {}",
                consts::ARCH
            ));
        }
        setup::need(&COMMANDS)
            .err()
            .map(|error| format!("{error:#}"))
    }

    /// The one in this directory, made if it is missing or of another recipe.
    pub(super) fn get(runner: &Runner, parent: &Path) -> Result<Self> {
        let dir = parent.join("image");
        // The packages are those of this system's release: what is built here needs its libc, and not an older one's.
        let release =
            fs::read_to_string("/etc/os-release").context("cannot read /etc/os-release")?;
        let recipe: String = FILES
            .iter()
            .map(|(_, text)| *text)
            .chain([&*release])
            .collect();
        if fs::read_to_string(dir.join("recipe")).is_ok_and(|made_by| made_by == recipe) {
            return Ok(Self { dir });
        }
        let work = parent.join("making");
        for old in [&work, &dir] {
            if old.exists() {
                fs::remove_dir_all(old)
                    .with_context(|| format!("cannot remove {}", old.display()))?;
            }
        }
        let (made, scripts) = (work.join("made"), work.join("scripts"));
        for new in [&made, &scripts] {
            fs::create_dir_all(new).with_context(|| format!("cannot make {}", new.display()))?;
        }
        for (name, text) in FILES {
            fs::write(scripts.join(name), text)?;
        }
        if let Ok(update) = setup::apt_update() {
            runner.quiet(update)?;
        }
        let mut make = Command::new("sh");
        make.arg(scripts.join("image.sh")).arg(&made).arg(&scripts);
        make.env("PATH", setup::path());
        runner.quiet(make).context("the virtual machine's image")?;
        for file in ["vmlinux", "initramfs"] {
            if !fs::metadata(made.join(file)).is_ok_and(|file| file.len() > 0) {
                bail!("making the virtual machine's image gave no {file}");
            }
        }
        fs::write(made.join("recipe"), recipe)?;
        fs::rename(&made, &dir)?;
        fs::remove_dir_all(&work)?;
        Ok(Self { dir })
    }
}
