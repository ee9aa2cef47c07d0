//! Locked memory, shared memory, huge pages, fork.

use crate::host::{
    Host,
    check::{Check, Draft, Group, Said},
    parse::{self, Locked, Version},
};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "memory.memlock",
        group: Group::Memory,
        expects: "unlimited, or CAP_IPC_LOCK",
        why: "registered memory is locked in RAM: beyond the limit queues and buffers fail with \"cannot allocate memory\"",
        source: "Linux, drivers/infiniband/core/umem.c; nccl-tests #206, ucx #8229, orcm #128",
        run: memlock,
    },
    Check {
        id: "memory.limits_file",
        group: Group::Memory,
        expects: "the limit that limits.conf promises",
        why: "limits.conf is read at login only: shells, daemons and mpirun started before keep the old limit",
        source: "limits.conf(5), pam_limits(8); nccl-tests #206",
        run: limits_file,
    },
    Check {
        id: "memory.shm",
        group: Group::Memory,
        expects: "1 GiB or more in /dev/shm",
        why: "ranks of one host meet in /dev/shm: Docker's 64 MB end in \"bus error\" or \"no space left\"",
        source: "Docker, docker run --shm-size: 64 MB by default",
        run: shm,
    },
    Check {
        id: "memory.hugepages",
        group: Group::Memory,
        expects: "free huge pages where some are reserved",
        why: "an application that was promised huge pages fails or falls back when none is free",
        source: "Linux, Documentation/admin-guide/mm/hugetlbpage.rst",
        run: hugepages,
    },
    Check {
        id: "memory.fork",
        group: Group::Memory,
        expects: "Linux 5.12 or newer, or RDMAV_FORK_SAFE",
        why: "older kernels hand registered pages to a child that forks, and the device writes into nowhere: silent loss",
        source: "ibv_fork_init(3); Linux 5.12: pinned pages are copied at fork",
        run: fork,
    },
];

/// What a process registers at least: queues, and buffers of a small job. Sixteen times what distributions allow.
const ENOUGH: u64 = 1 << 30;

fn memlock(host: &Host<'_>, said: &mut Said) -> bool {
    if host.devices.is_empty() {
        return false;
    }
    let path = "proc/self/limits";
    let limits = host.root.text(path).unwrap_or_default();
    let Some((soft, hard)) = parse::locked_memory(&limits) else {
        said.unknown(
            "this process",
            "its limit of locked memory was not found",
            "ulimit -l",
        );
        return true;
    };
    let Locked::Bytes(bytes) = soft else {
        return true;
    };
    if host.may_lock {
        return true;
    }
    let problem = format!("{bytes} bytes of memory may be locked: expected unlimited");
    let finding = if bytes < ENOUGH {
        said.error("this process", problem)
    } else {
        said.warn("this process", problem)
    };
    let finding = finding
        .saw(path, format!("Max locked memory: soft {soft}, hard {hard}"))
        .saw("proc/self/status", "CapEff without CAP_IPC_LOCK");
    raise(host, finding);
    true
}

/// How the limit is raised, where the process lives.
fn raise(host: &Host<'_>, finding: Draft<'_>) {
    let at = &host.surroundings;
    if at.kubernetes {
        finding
            .act("in the pod: securityContext: {capabilities: {add: [IPC_LOCK]}}")
            .undo_by("take the capability out again");
    } else if at.slurm {
        finding
            .run("mkdir -p /etc/systemd/system/slurmd.service.d && printf '[Service]\\nLimitMEMLOCK=infinity\\n' > /etc/systemd/system/slurmd.service.d/memlock.conf && systemctl daemon-reload && systemctl restart slurmd")
            .act("put PropagateResourceLimitsExcept=MEMLOCK into slurm.conf on all nodes, then: scontrol reconfigure")
            .undo("rm /etc/systemd/system/slurmd.service.d/memlock.conf && systemctl daemon-reload && systemctl restart slurmd");
    } else if at.container {
        finding
            .act("start the container with --ulimit memlock=-1, or with --cap-add IPC_LOCK")
            .undo_by("start it without");
    } else if at.service {
        finding
            .act("systemctl edit SERVICE, add [Service] and LimitMEMLOCK=infinity, and restart it")
            .undo_by("systemctl revert SERVICE, and restart it");
    } else {
        finding
            .run("printf '* soft memlock unlimited\\n* hard memlock unlimited\\n' > /etc/security/limits.d/90-rdma.conf")
            .act("log in again, on all hosts; daemons that start jobs need LimitMEMLOCK=infinity and a restart")
            .undo("rm /etc/security/limits.d/90-rdma.conf");
    }
}

fn limits_file(host: &Host<'_>, said: &mut Said) -> bool {
    let mut files = vec!["etc/security/limits.conf".to_owned()];
    let dir = "etc/security/limits.d";
    let names = host.root.names(dir).into_iter();
    files.extend(names.map(|name| format!("{dir}/{name}")));
    let promise = files.iter().find_map(|file| {
        let text = host.root.text(file).ok()?;
        text.lines().enumerate().find_map(|(number, line)| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let unlimited = matches!(words.as_slice(),
                [domain, "soft" | "-", "memlock", "unlimited" | "infinity" | "-1"] if *domain == "*");
            unlimited.then(|| (file.clone(), number + 1, line.trim().to_owned()))
        })
    });
    let Some((file, number, line)) = promise else {
        return false;
    };
    let limits = host.root.text("proc/self/limits").unwrap_or_default();
    let soft = parse::locked_memory(&limits).map(|(soft, _)| soft);
    let (Some(Locked::Bytes(bytes)), false) = (soft, host.may_lock) else {
        return true;
    };
    let finding = said
        .warn(
            "this process",
            format!("limits.conf promises unlimited locked memory, the process has {bytes} bytes"),
        )
        .saw_line(&file, number, line)
        .saw("proc/self/limits", format!("Max locked memory: {bytes}"));
    if host.surroundings.container || host.surroundings.slurm || host.surroundings.service {
        raise(host, finding);
    } else {
        finding.act("log in again on all hosts (a new ssh session, not su), and restart the daemon that starts jobs; check in the job itself: ulimit -l");
    }
    true
}

fn shm(host: &Host<'_>, said: &mut Said) -> bool {
    let mounts = host.root.text("proc/self/mounts").unwrap_or_default();
    let options = mounts.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        (words.next()? == "/dev/shm").then_some(())?;
        words.nth(1)
    });
    // Without a size it is half of the memory.
    let size = options.and_then(|options| {
        let size = options.split(',').find_map(|it| it.strip_prefix("size="))?;
        let number: u64 = size.strip_suffix('k')?.parse().ok()?;
        Some((size, number))
    });
    let Some((size, kibibytes)) = size else {
        return options.is_some();
    };
    if kibibytes < 1 << 20 {
        let finding = said
            .warn("/dev/shm", format!("it holds {} MB", kibibytes / 1024))
            .saw("proc/self/mounts", format!("/dev/shm size={size}"));
        if host.surroundings.kubernetes {
            finding
                .act("mount an emptyDir of medium Memory at /dev/shm in the pod")
                .undo_by("take the volume out again");
        } else if host.surroundings.container {
            finding
                .act("start the container with --shm-size=8g, or with --ipc=host")
                .undo_by("start it without");
        } else {
            finding
                .run("mount -o remount,size=50% /dev/shm")
                .undo(format!("mount -o remount,size={size} /dev/shm"));
        }
    }
    true
}

fn hugepages(host: &Host<'_>, said: &mut Said) -> bool {
    let path = "proc/meminfo";
    let text = host.root.text(path).unwrap_or_default();
    let count = |name: &str| parse::field(&text, name)?.parse::<u64>().ok();
    let (Some(total), Some(free)) = (count("HugePages_Total"), count("HugePages_Free")) else {
        return false;
    };
    if total == 0 {
        return false;
    }
    if free == 0 {
        said.note("host", format!("all {total} huge pages are in use"))
            .saw(
                path,
                format!("HugePages_Total {total}, HugePages_Free {free}"),
            )
            .run(format!("sysctl -w vm.nr_hugepages={}", total * 2))
            .undo(format!("sysctl -w vm.nr_hugepages={total}"))
            .likely();
    }
    true
}

fn fork(host: &Host<'_>, said: &mut Said) -> bool {
    if host.devices.is_empty() {
        return false;
    }
    let path = "proc/sys/kernel/osrelease";
    let release = host.root.text(path).unwrap_or_default();
    let Some(version) = Version::parse(&release) else {
        said.unknown("kernel", "its version was not understood", "uname -r");
        return true;
    };
    let safe = host
        .environment
        .get("RDMAV_FORK_SAFE")
        .is_some_and(|value| value != "0");
    // Distributions with older numbers have the change, too.
    if version.before(&[5, 12]) && !safe {
        said.note("kernel", format!("Linux {version} does not copy registered pages for children"))
            .saw(path, release)
            .act("Ringway asks libibverbs to keep registered pages out of children; for other programs that fork (Python's data loaders) put RDMAV_FORK_SAFE=1 into the environment")
            .undo_by("take it out again")
            .likely();
    }
    true
}
