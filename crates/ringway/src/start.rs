//! From nothing to the world's communicator.

use std::sync::Arc;

use ringway_link::{Transport, shm::HostSegment};

use crate::{
    Communicator, Error,
    bootstrap::World,
    control::Control,
    engine::{Engine, Membership},
    group::Group,
    settings::Settings,
};

/// The world's communicator over given parts.
pub(crate) fn assemble(
    world: World,
    control: Arc<Control>,
    settings: Settings,
    transport: Box<dyn Transport>,
    host: Option<Arc<HostSegment>>,
) -> Result<Communicator, Error> {
    let members: Arc<[usize]> = (0..world.size()).collect();
    let rank = world.rank;
    let engine = Engine::new(world, control, settings, transport, host)?;
    let plans = engine.plans(rank, engine.topology(&members));
    let group = Group::new(0, members, rank, plans);
    Ok(Communicator { membership: Arc::new(Membership(engine)), group })
}
