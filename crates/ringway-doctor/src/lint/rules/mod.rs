//! What has to hold: at a port, along the way of a packet, and against an intent.

mod intent;
mod job;
mod needs;
mod path;
mod port;

use super::{model::Fabric, notes::Notes, source::Sources};

/// Judges all that was read.
pub(super) fn judge(fabric: &Fabric, sources: &Sources, notes: &mut Notes) {
    for switch in &fabric.switches {
        let name = sources.name(switch.place);
        port::switch(switch, name, fabric.intents.is_empty(), notes);
    }
    path::judge(fabric, sources, notes);
    intent::judge(fabric, sources, notes);
    needs::judge(fabric, sources, notes);
    job::judge(fabric, notes);
}
