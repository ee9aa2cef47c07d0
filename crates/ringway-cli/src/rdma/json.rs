//! As JSON.

use ringway_verbs::{
    gid::{self, Wish},
    sysfs::{DeviceFiles, PortFiles},
};
use serde_json::{Value, json};

use super::look::Found;

/// Rates in bits per second, MTUs in bytes.
pub(super) fn report(found: &Found) -> Value {
    let devices: Vec<Value> = found
        .devices
        .iter()
        .map(|it| device(it, found.closed.get(&it.name)))
        .collect();
    let addresses: Vec<Value> = found
        .addresses
        .iter()
        .map(|it| json!({"interface": it.name, "address": it.address}))
        .collect();
    json!({
        "devices": devices,
        "software": {"addresses": addresses},
        "libibverbs": {
            "usable": found.library.is_ok(),
            "error": found.library.as_ref().err(),
            "fork": found.library.as_ref().ok().map(ToString::to_string),
        },
        "locked_memory": {
            "limit": found.memlock.limit.filter(|_| !found.memlock.privileged),
            "used": found.memlock.used,
        },
        "absence": found.absence,
    })
}

fn device(device: &DeviceFiles, closed: Option<&String>) -> Value {
    let ports: Vec<Value> = device.ports.iter().map(port).collect();
    json!({
        "name": device.name,
        "kind": device.kind,
        "firmware": device.firmware,
        "error": closed,
        "ports": ports,
    })
}

fn port(port: &PortFiles) -> Value {
    let choice = gid::choose(&port.gids, Wish::default());
    let gids: Vec<Value> = port
        .gids
        .iter()
        .map(|entry| {
            json!({
                "index": entry.index,
                "address": entry.gid.address(),
                "kind": entry.kind.to_string(),
                "interface": entry.netdev,
            })
        })
        .collect();
    json!({
        "port": port.number,
        "state": port.state,
        "physical_state": port.physical,
        "link_layer": port.link_layer,
        "rate": port.rate,
        "interface_mtu": port.mtu.map(|(interface, _)| interface),
        "roce_mtu": port.mtu.and_then(|(_, mtu)| mtu).map(ringway_verbs::Mtu::bytes),
        "gids": gids,
        "gid_index": choice.as_ref().ok().map(|choice| choice.entry.index),
        "gid_note": match &choice {
            Ok(choice) => choice.note.clone(),
            Err(error) => Some(error.to_string()),
        },
        "counters": port.counters,
    })
}
