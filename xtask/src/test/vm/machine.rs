//! A run of the virtual machine: scenarios in, their output and exit codes out.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result};

use super::image::Image;
use crate::test::stage::Runner;

/// Something to run in the machine.
pub(super) struct Scenario {
    /// A word.
    pub(super) name: String,
    /// What `sh` runs. Binaries are in /share/bin.
    pub(super) script: String,
    /// After so long it is killed.
    pub(super) seconds: u64,
}

/// What a scenario came to.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) name: String,
    /// Standard output and error.
    pub(super) text: String,
    /// The exit code; 124 and 143 if it was killed at its deadline, `None` if the machine ended first.
    pub(super) code: Option<i32>,
    /// What it took, by the machine's clock.
    pub(super) seconds: u64,
}

/// What the machine is made of, besides its image.
pub(super) struct Machine {
    /// Soft-RoCE devices: `rxe0` on `rank0` at 10.0.0.1 and fd00::1, and so on; 9 at most.
    pub(super) devices: u32,
    /// The MTU in bytes of their links.
    pub(super) mtu: u32,
    /// Files that are put into /share/bin, with their names there.
    pub(super) binaries: Vec<(PathBuf, String)>,
}

/// Time for the machine to start and stop, where it is emulated and the host is busy.
const SECONDS_TO_BOOT: u64 = 60;

// With `tsc=reliable` clocks are read as on hardware. Otherwise the kernel, which takes several emulated processors' counters
// for unsynchronized, asks an emulated HPET, and each look at the clock takes microseconds.
const KERNEL_ARGUMENTS: &str = "console=ttyS0 quiet loglevel=4 panic=-1 reboot=t rdinit=/init mitigations=off nokaslr \
                                audit=0 apparmor=0 random.trust_cpu=on tsc=reliable";

impl Machine {
    /// Boots, runs the scenarios one after the other, and powers off. `dir` is for what is shared with the machine.
    pub(super) fn run(
        &self,
        runner: &Runner,
        dir: &Path,
        image: &Image,
        scenarios: &[Scenario],
    ) -> Result<Vec<Outcome>> {
        let share = dir.join("share");
        if share.exists() {
            fs::remove_dir_all(&share)?;
        }
        for new in ["scenarios", "bin"] {
            fs::create_dir_all(share.join(new))?;
        }
        let seconds = SECONDS_TO_BOOT + scenarios.iter().map(|it| it.seconds).sum::<u64>();
        let settings = format!(
            "DEVICES={}\nMTU={}\nSECONDS_IN_ALL={seconds}\n",
            self.devices, self.mtu
        );
        fs::write(share.join("settings"), settings)?;
        let mut order = String::new();
        for scenario in scenarios {
            order.push_str(&format!("{} {}\n", scenario.name, scenario.seconds));
            fs::write(
                share.join("scenarios").join(&scenario.name),
                &scenario.script,
            )?;
        }
        fs::write(share.join("order"), order)?;
        for (file, name) in &self.binaries {
            fs::copy(file, share.join("bin").join(name))
                .with_context(|| format!("cannot copy {}", file.display()))?;
        }

        let console = dir.join("console");
        let mut qemu = Command::new("qemu-system-x86_64");
        // Emulated even where there is /dev/kvm: within other virtual machines KVM may crash or hang, and what it would
        // save is seconds.
        qemu.args(["-accel", "tcg,thread=multi"]);
        qemu.args([
            "-machine",
            "q35",
            "-cpu",
            "max,la57=off",
            "-smp",
            "2",
            "-m",
            "1536",
        ]);
        qemu.args(["-nodefaults", "-no-user-config", "-nographic", "-no-reboot"]);
        qemu.arg("-kernel").arg(image.kernel());
        qemu.arg("-initrd").arg(image.initramfs());
        qemu.args(["-append", KERNEL_ARGUMENTS]);
        qemu.arg("-serial")
            .arg(format!("file:{}", console.display()));
        qemu.args(["-device", "virtio-serial-pci"]);
        qemu.args(["-chardev", "file,id=report,path=/dev/stdout"]);
        qemu.args(["-device", "virtserialport,chardev=report,nr=1"]);
        qemu.arg("-virtfs").arg(format!(
            "local,path={},mount_tag=share,security_model=none,readonly=on",
            share.display()
        ));
        let finished = runner.listen(qemu, Duration::from_secs(seconds))?;
        let outcomes = read_report(&finished.text, scenarios);
        if outcomes.iter().any(|outcome| outcome.code.is_none()) {
            let console = fs::read_to_string(&console).unwrap_or_default();
            println!("the virtual machine's console:\n{console}");
            println!("and its report:\n{}", finished.text);
            println!("{}", finished.failure.unwrap_or_default());
        }
        Ok(outcomes)
    }
}

/// The scenarios' outcomes.
fn read_report(text: &str, scenarios: &[Scenario]) -> Vec<Outcome> {
    let mut outcomes: Vec<Outcome> = scenarios
        .iter()
        .map(|scenario| Outcome {
            name: scenario.name.clone(),
            text: String::new(),
            code: None,
            seconds: 0,
        })
        .collect();
    let mut current = None;
    for line in text.lines() {
        let mut words = line.split(' ');
        match (words.next(), words.next()) {
            (Some("@begin"), Some(name)) => {
                current = outcomes.iter().position(|outcome| outcome.name == name);
            }
            (Some("@end"), Some(name)) => {
                let code = words.next().and_then(|code| code.parse().ok());
                let seconds = words.next().and_then(|seconds| seconds.parse().ok());
                if let Some(outcome) = outcomes.iter_mut().find(|outcome| outcome.name == name) {
                    outcome.code = code;
                    outcome.seconds = seconds.unwrap_or_default();
                }
                current = None;
            }
            _ => {
                if let Some(at) = current {
                    outcomes[at].text.push_str(line);
                    outcomes[at].text.push('\n');
                }
            }
        }
    }
    outcomes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scenario(name: &str) -> Scenario {
        Scenario {
            name: name.to_owned(),
            script: String::new(),
            seconds: 1,
        }
    }

    #[test]
    fn a_report_is_taken_apart() {
        let text = "qemu: a warning\n@begin one\nhello\n@here\n\n@end one 0 7\n@begin two\nhalf";
        let outcomes = read_report(text, &[scenario("one"), scenario("two"), scenario("three")]);
        let told: Vec<_> = outcomes
            .iter()
            .map(|outcome| (outcome.text.as_str(), outcome.code, outcome.seconds))
            .collect();
        assert_eq!(
            told,
            [
                ("hello\n@here\n\n", Some(0), 7),
                ("half\n", None, 0),
                ("", None, 0)
            ]
        );
    }
}
