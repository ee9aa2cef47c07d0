//! Slurm.

use crate::host::{
    Host,
    check::{Check, Group, Said},
};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "slurm.memlock",
        group: Group::Slurm,
        expects: "PropagateResourceLimitsExcept=MEMLOCK",
        why: "Slurm carries the limits of the login host into the job: its 64 KiB of locked memory, too",
        source: "slurm.conf(5): PropagateResourceLimits, PropagateResourceLimitsExcept",
        run: memlock,
    },
    Check {
        id: "slurm.binding",
        group: Group::Slurm,
        expects: "a TaskPlugin that binds tasks to CPUs",
        why: "ranks that are not bound wander between sockets, away from their NIC and memory",
        source: "slurm.conf(5): TaskPlugin",
        run: binding,
    },
];

const FILES: [&str; 2] = ["etc/slurm/slurm.conf", "etc/slurm-llnl/slurm.conf"];

/// A setting of slurm.conf, with the file and line. Names are of any case.
fn setting(host: &Host<'_>, name: &str) -> Option<(String, usize, String)> {
    FILES.iter().find_map(|file| {
        let text = host.root.text(file).ok()?;
        text.lines().enumerate().find_map(|(number, line)| {
            let (key, value) = line.trim().split_once('=')?;
            let value = value.split('#').next().unwrap_or_default().trim();
            key.trim()
                .eq_ignore_ascii_case(name)
                .then(|| ((*file).to_owned(), number + 1, value.to_owned()))
        })
    })
}

fn file<'a>(host: &Host<'_>) -> Option<&'a str> {
    FILES.into_iter().find(|file| host.root.exists(file))
}

fn memlock(host: &Host<'_>, said: &mut Said) -> bool {
    let carried = host.environment.get("SLURM_RLIMIT_MEMLOCK");
    let carried = carried.filter(|value| value.parse::<u64>().is_ok());
    let file = file(host);
    if file.is_none() && carried.is_none() {
        return false;
    }
    let except = setting(host, "PropagateResourceLimitsExcept");
    let limits = setting(host, "PropagateResourceLimits");
    let lists = |value: &str, wanted: &str| {
        let mut names = value.split(',').map(str::trim);
        names.any(|name| name.eq_ignore_ascii_case(wanted) || name.eq_ignore_ascii_case("ALL"))
    };
    let kept = except.as_ref().is_some_and(|it| lists(&it.2, "MEMLOCK"));
    // By default all are carried over; with one of the two the other is not allowed.
    let excluded = limits.as_ref().is_some_and(|it| !lists(&it.2, "MEMLOCK"));
    if carried.is_none() && (kept || excluded || host.devices.is_empty()) {
        return true;
    }
    let finding = said.warn(
        "Slurm",
        "the limit of locked memory is carried over from the host that submits",
    );
    let finding = match (carried, file) {
        (Some(value), _) => finding.saw("environment variable SLURM_RLIMIT_MEMLOCK", value),
        (None, Some(path)) => finding
            .saw(path, "no PropagateResourceLimitsExcept=MEMLOCK")
            .likely(),
        (None, None) => finding,
    };
    finding
        .run("echo PropagateResourceLimitsExcept=MEMLOCK >> /etc/slurm/slurm.conf && scontrol reconfigure")
        .act("and LimitMEMLOCK=infinity for slurmd: systemctl edit slurmd, then restart it")
        .undo("sed -i '/^PropagateResourceLimitsExcept=MEMLOCK$/d' /etc/slurm/slurm.conf && scontrol reconfigure");
    true
}

fn binding(host: &Host<'_>, said: &mut Said) -> bool {
    let Some(path) = file(host) else { return false };
    let plugin = setting(host, "TaskPlugin");
    let value = plugin.as_ref().map_or("", |it| it.2.as_str());
    if value.contains("affinity") || value.contains("cgroup") {
        return true;
    }
    let finding = said.note("Slurm", "tasks are not bound to CPUs");
    let finding = match &plugin {
        Some((file, line, value)) => finding.saw_line(file, *line, format!("TaskPlugin={value}")),
        None => finding.saw(path, "no TaskPlugin"),
    };
    finding
        .act("set TaskPlugin=task/affinity,task/cgroup in slurm.conf on all nodes and restart slurmd")
        .undo_by("set TaskPlugin back");
    true
}
