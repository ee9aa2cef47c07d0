//! What units and jobs say of hosts, against an intent and the hosts' own configurations.

use super::super::{
    model::{Fabric, Marking, Needs},
    notes::Notes,
    source::{Place, Sources},
};
use crate::intent::{DATA, Intent, Nic};

pub(super) fn judge(fabric: &Fabric, sources: &Sources, notes: &mut Notes) {
    for needs in &fabric.needs {
        let subject = sources.name(needs.place);
        for (place, intent) in &fabric.intents {
            against_intent(needs, intent, *place, subject, notes);
        }
        against_hosts(needs, fabric, subject, notes);
    }
    for (place, intent) in &fabric.intents {
        for marking in fabric.markings.iter().filter(|marking| marking.set) {
            marks(marking, intent, *place, notes);
        }
    }
}

/// Data that is marked with the DSCP of another class than the intent's.
fn marks(marking: &Marking, intent: &Intent, place: Place, notes: &mut Notes) {
    let Some(data) = intent.class(DATA) else {
        return;
    };
    let dscp = u8::try_from(marking.tos.value >> 2).unwrap_or(u8::MAX);
    // NCCL's small messages, which say where data may go, may have a lossless class of their own.
    let small = marking.name.contains("FIFO");
    let class = intent.class_of(dscp).filter(|_| dscp < 64);
    if class.is_some_and(|(name, class)| name == DATA || small && class.lossless.value) {
        return;
    }
    let code_points = data
        .code_points()
        .iter()
        .map(u8::to_string)
        .collect::<Vec<_>>();
    let line = data
        .dscp
        .as_ref()
        .map_or(data.priority.line, |dscp| dscp.line);
    notes.error(
        "intent",
        marking.name.as_str(),
        format!(
            "{} is {}: DSCP {dscp}, and the intent's class data has {}",
            marking.name,
            marking.tos.value,
            code_points.join(", ")
        ),
        "what differs from the intent differs from the switches and hosts made from it: data takes another class",
        [place.line(line.max(1)), marking.tos.place],
        "write the DSCP of class data x 4 + 2 (ECN-capable); or correct the intent",
    );
}

/// Whether a name, or a pattern such as `eth*`, is the interface's.
fn fits(named: &str, interface: &str) -> bool {
    match named.strip_suffix('*') {
        Some(prefix) => interface.starts_with(prefix),
        None => named == interface,
    }
}

fn against_intent(needs: &Needs, intent: &Intent, place: Place, subject: &str, notes: &mut Notes) {
    let nics = &intent.host.nics;
    let line = |nic: Option<&Nic>| place.line(nic.map_or(1, |nic| nic.interface.line).max(1));
    let list = |of: fn(&Nic) -> String| nics.iter().map(of).collect::<Vec<_>>().join(", ");
    let mut tell = |problem: String, places: Vec<Place>| {
        notes.error(
            "intent",
            subject,
            problem,
            "what differs from the intent differs from the switches and hosts made from it: data takes a network that is lossy",
            places,
            "ringway fabric config (k8s, slurm) INTENT.yaml prints what is wanted; or correct the intent",
        );
    };
    for named in &needs.interfaces {
        if !nics
            .iter()
            .any(|nic| fits(&named.value, &nic.interface.value.0))
        {
            let has = list(|nic| nic.interface.value.0.clone());
            let problem = format!(
                "{} names interface {}: the intent has {has}",
                needs.what, named.value
            );
            tell(problem, vec![line(nics.first()), named.place]);
        }
    }
    for named in &needs.devices {
        if !nics
            .iter()
            .any(|nic| named.value.fits(&nic.device.0, nic.port))
        {
            let has = list(|nic| format!("{}:{}", nic.device.0, nic.port));
            let port = named
                .value
                .port
                .map_or(String::new(), |port| format!(":{port}"));
            let problem = format!(
                "{} takes device {}{port}: the intent has {has}",
                needs.what, named.value.name
            );
            tell(problem, vec![line(nics.first()), named.place]);
        }
    }
    for nic in nics {
        let mut interfaces = needs.interfaces.iter();
        if let Some(first) = needs.interfaces.first()
            && !needs.more_interfaces
            && !interfaces.any(|named| fits(&named.value, &nic.interface.value.0))
        {
            let problem = format!(
                "{} does not name interface {} of the intent",
                needs.what, nic.interface.value.0
            );
            tell(problem, vec![line(Some(nic)), first.place]);
        }
        let mut devices = needs.devices.iter();
        if let Some(first) = needs.devices.first()
            && !needs.more_devices
            && !devices.any(|named| named.value.fits(&nic.device.0, nic.port))
        {
            let problem = format!(
                "{} does not take device {}:{} of the intent",
                needs.what, nic.device.0, nic.port
            );
            tell(problem, vec![line(Some(nic)), first.place]);
        }
    }
    for mtu in needs
        .mtus
        .iter()
        .filter(|mtu| mtu.value != intent.mtu.value)
    {
        let problem = format!(
            "MTU: the intent wants {}, {} has {}",
            intent.mtu.value, needs.what, mtu.value
        );
        tell(problem, vec![place.line(intent.mtu.line.max(1)), mtu.place]);
    }
    notes.judged("intent");
}

/// Interfaces that no host sets up, and MTUs that are above those of the hosts.
fn against_hosts(needs: &Needs, fabric: &Fabric, subject: &str, notes: &mut Notes) {
    let nics = || fabric.hosts.iter().flat_map(|host| &host.nics);
    let Some((_, any)) = nics().next() else {
        return;
    };
    notes.judged("needs");
    for named in &needs.interfaces {
        if !nics().any(|(name, _)| fits(&named.value, name)) {
            notes.warning(
                "needs.interface",
                subject,
                format!("{} names interface {}, which no host here sets up", needs.what, named.value),
                "an interface without trust, PFC and ECN is lossy, whatever the switches are",
                [named.place, any.place],
                "correct the name, or set the interface up: ringway fabric config INTENT.yaml --for host",
            );
        }
    }
    let smallest = nics()
        .filter_map(|(_, nic)| nic.mtu)
        .min_by_key(|mtu| mtu.value);
    if let Some(smallest) = smallest {
        for mtu in needs.mtus.iter().filter(|mtu| mtu.value > smallest.value) {
            notes.error(
                "needs.mtu",
                subject,
                format!(
                    "{} wants an MTU of {}, and a host's interface has {}",
                    needs.what, mtu.value, smallest.value
                ),
                "the card drops what is longer than its own MTU, whatever a virtual function says",
                [mtu.place, smallest.place],
                "give both the same MTU",
            );
        }
    }
}
