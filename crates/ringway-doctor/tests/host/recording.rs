//! Recordings: they say what the host said, and nothing that is private.

use std::fs;

use ringway_doctor::host::{self, Root};

use crate::{
    diagnose, found,
    tree::{Tree, faults},
};

/// A recording of a tree.
fn record(tree: &Tree) -> Tree {
    let recording = Tree::empty();
    let root = Root::recorded(tree.root()).unwrap();
    assert!(host::record(root, recording.root()).unwrap() > 0);
    recording
}

#[test]
fn a_recording_says_what_the_host_says() {
    for name in ["connectx", "user", "rxe", "rxe-vm", "none", "container"] {
        let tree = Tree::named(name);
        let (original, copy) = (diagnose(&tree), diagnose(&record(&tree)));
        assert_eq!(copy, original, "{name}: {}", copy.text(false));
    }
    for fault in faults() {
        let tree = fault.tree();
        let copy = diagnose(&record(&tree));
        assert_eq!(found(&copy), fault.expected, "{}", fault.name);
        assert_eq!(copy.unjudged, diagnose(&tree).unjudged, "{}", fault.name);
    }
}

#[test]
fn a_recording_holds_nothing_private() {
    let tree = Tree::with(
        "on connectx\n\
         proc/sys/kernel/hostname = node17.example.com\n\
         proc/4711/comm = secretd\n\
         etc/passwd = alice\n\
         proc/self/environ:\n| WORLD_SIZE=2\n| AWS_SECRET=hush\n| UCX_TCP_X=8.8.4.4:99\n\
         etc/slurm/slurm.conf:\n| SlurmctldHost=node17\n| PropagateResourceLimitsExcept=MEMLOCK\n| TaskPlugin=task/cgroup\n\
         etc/systemd/system/roce-qos.service:\n| [Service]\n| Environment=TOKEN=hush\n| ExecStart=mlnx_qos -i eth2 -f 0\n\
         sys/class/infiniband/mlx5_0/ports/1/gids/3 = 0000:0000:0000:0000:0000:ffff:0808:0404\n",
    );
    let recording = record(&tree);
    let mut all = String::new();
    for file in recording.files() {
        all.push_str(&file.display().to_string());
        all.push_str(&String::from_utf8_lossy(&fs::read(file).unwrap()));
    }
    for private in [
        "node17",
        "secretd",
        "alice",
        "hush",
        "8.8.4.4",
        "0808:0404",
        "bace:f6ff",
        "SERIALNO",
        "0d1f",
    ] {
        assert!(!all.contains(private), "{private}");
    }
    assert!(all.contains("Global tclass=106"));
    assert_eq!(diagnose(&recording).findings, []);
}

#[test]
fn a_recording_does_not_overwrite() {
    let tree = Tree::named("none");
    let root = Root::recorded(tree.root()).unwrap();
    let error = host::record(root, tree.root()).unwrap_err().to_string();
    assert!(error.contains("is not empty"), "{error}");
}

#[test]
fn links_do_not_lead_out_of_a_recording() {
    let tree = Tree::named("none");
    let outside = Tree::with("secret = 9000\n");
    let link = tree.root().join("sys/class/net/ens3/mtu");
    fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(outside.root().join("secret"), link).unwrap();
    let root = Root::recorded(tree.root()).unwrap();
    assert_eq!(root.number("sys/class/net/ens3/mtu"), None);
    let up = "../../../../../../../../../../../../../../../../etc/passwd";
    assert!(root.text(up).is_err());
}

#[test]
fn a_pipe_in_a_recording_holds_nobody_up() {
    let tree = Tree::named("none");
    let file = tree.root().join("sys/class/net/ens3/mtu");
    fs::remove_file(&file).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&file).status();
    assert!(made.unwrap().success());
    let root = Root::recorded(tree.root()).unwrap();
    assert_eq!(root.number("sys/class/net/ens3/mtu"), None);
    diagnose(&tree);
}
