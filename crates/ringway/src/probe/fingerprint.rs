//! By what a fabric is known again.

use std::fs;

use super::gather;
use crate::{Communicator, Error, bootstrap::fnv1a};

/// The same on rank 0 in every job on these hosts, in this order, with these addresses, NICs, link rates, and settings of what carries messages and how;
/// of this version. Without meaning on other ranks, which take part.
pub(super) fn of(comm: &Communicator) -> Result<u64, Error> {
    let cards = gather(comm, fnv1a(cards().bytes()))?;
    let engine = comm.engine();
    let values = engine.settings.values();
    let mut text = format!(
        "{} {} {:?} {:?} {:?} {}\n",
        env!("CARGO_PKG_VERSION"),
        values.transports,
        values.streams,
        values.queue_pairs,
        values.wire_between_hosts,
        comm.transport(),
    );
    for (member, cards) in engine.world.members.iter().zip(cards) {
        text += &format!("{} {cards:x}", member.host);
        for candidate in &member.address.addresses {
            text += &format!(" {}/{}", candidate.ip, candidate.prefix);
        }
        text.push('\n');
    }
    Ok(fnv1a(text.bytes()))
}

/// This host's network cards: names, hardware addresses, and rates where the kernel tells. Containers may see another network's in
/// `/sys`: there the hardware address is another.
fn cards() -> String {
    let mut cards: Vec<String> = ringway_sys::hardware_addresses()
        .unwrap_or_default()
        .into_iter()
        .map(|(name, address)| {
            let bytes: Vec<String> = address.iter().map(|b| format!("{b:02x}")).collect();
            let address = bytes.join(":");
            let read = |what: &str| {
                let text = fs::read_to_string(format!("/sys/class/net/{name}/{what}"));
                text.unwrap_or_default().trim().to_owned()
            };
            let rate = match read("address") == address {
                true => read("speed"),
                false => String::new(),
            };
            format!("{name} {address} {rate}")
        })
        .collect();
    cards.sort_unstable();
    cards.join("\n")
}
