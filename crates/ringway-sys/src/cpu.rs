//! Processors: how many this process may use, and how to wait on them.

use std::{fs, io, path::Path};

/// The number of processors that this process may use at once: those of its affinity mask, less where a
/// control group limits the time (`docker run --cpus 2`). At least 1.
pub fn cpu_count() -> usize {
    let allowed = rustix::thread::sched_getaffinity(None).map_or_else(
        |_| std::thread::available_parallelism().map_or(1, usize::from),
        |set| set.count() as usize,
    );
    let cgroup = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let quota = quota(Path::new("/sys/fs/cgroup"), &cgroup).unwrap_or(usize::MAX);
    allowed.min(quota).max(1)
}

/// The smallest quota, in whole processors rounded up, of the control group (version 2) that `own`, the text
/// of /proc/self/cgroup, names, and of those above it.
fn quota(root: &Path, own: &str) -> Option<usize> {
    let path = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let group = root.join(path);
    group
        .ancestors()
        .take_while(|dir| dir.starts_with(root))
        .filter_map(|dir| {
            let text = fs::read_to_string(dir.join("cpu.max")).ok()?;
            let (quota, period) = text.trim().split_once(' ')?;
            let (quota, period) = (quota.parse::<usize>().ok()?, period.parse::<usize>().ok()?);
            (period > 0).then(|| quota.div_ceil(period))
        })
        .min()
}

/// Lets another thread that waits for this processor run.
#[inline]
pub fn yield_now() {
    rustix::thread::sched_yield();
}

/// Tells the processor that this is a loop that waits.
#[inline]
pub fn spin_hint() {
    std::hint::spin_loop();
}

/// Asks that the calling thread, when it wakes, need not wait for the end of another's turn, for which it takes shorter
/// turns of its own: 0.1 ms, the shortest there are. For threads that do little at a time and are waited for. Needs no
/// right; kernels before Linux 6.12 take no notice (`sched_setattr(2)`, `sched_runtime` of SCHED_OTHER).
///
/// # Errors
/// The kernel knows no such call, or a sandbox forbids it.
pub fn take_short_turns() -> io::Result<()> {
    // SAFETY: a plain structure of numbers, of which zeros are one.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::sched_attr>() as u32;
    let check = |result: libc::c_long| match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    };
    // SAFETY: 0 is the calling thread; the kernel writes at most `size` bytes to the structure.
    check(unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) })?;
    if attributes.sched_policy != libc::SCHED_OTHER as u32 {
        // Someone has given it a policy of its own.
        return Ok(());
    }
    attributes.sched_runtime = 100_000;
    // SAFETY: as above; the kernel reads the structure, whose field `size` it filled in.
    check(unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_turns_are_taken() {
        take_short_turns().unwrap();
        take_short_turns().unwrap();
    }

    #[test]
    fn the_smallest_quota_on_the_way_up_counts() {
        let root = std::env::temp_dir().join(format!("ringway-cpu-{}", std::process::id()));
        let leaf = root.join("a/b");
        fs::create_dir_all(&leaf).unwrap();
        fs::write(root.join("a/cpu.max"), "150000 100000\n").unwrap();
        fs::write(leaf.join("cpu.max"), "max 100000\n").unwrap();
        assert_eq!(quota(&root, "0::/a/b\n"), Some(2));
        fs::write(leaf.join("cpu.max"), "50000 100000\n").unwrap();
        assert_eq!(quota(&root, "1:cpu:/x\n0::/a/b\n"), Some(1));
        assert_eq!(quota(&root, "1:cpu:/x\n"), None);
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn there_is_a_processor() {
        assert!(cpu_count() >= 1);
    }
}
