//! What a rank says about its process.

use std::os::unix::fs::MetadataExt;

use ringway_link::PeerAddress;
use ringway_plan::Rank;

use super::{HostId, Member, codec::fnv1a};

/// This process as the member that has `address`.
pub(super) fn this_process(rank: Rank, address: PeerAddress) -> Member {
    Member {
        rank,
        host: host_name(),
        host_id: host_id(),
        pid: std::process::id(),
        address,
        has_nic: has_nic(),
    }
}

fn has_nic() -> bool {
    std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some())
}

pub(super) fn host_name() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

/// Hashes what tells processes apart that cannot share memory: the boot of the kernel, and below it the namespaces of
/// network, processes and System V, and the user. What cannot be read is no reason to differ.
fn host_id() -> HostId {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let inode =
        |name: &str| std::fs::metadata(format!("/proc/self/ns/{name}")).map_or(0, |m| m.ino());
    let user = rustix::process::geteuid().as_raw();
    let place = format!("{} {} {} {user}", inode("net"), inode("pid"), inode("ipc"));
    HostId::new(fnv1a(boot.bytes()), fnv1a(place.bytes()))
}
