//! The checks, group by group. Each is a function below an entry of its group's table.

pub(super) mod bonds;
mod containers;
mod cpu;
mod devices;
mod gids;
mod links;
mod marking;
mod memory;
mod overlays;
mod owner;
mod pcie;
mod qos;
mod slurm;
mod sysctls;

use super::check::Check;

pub(super) use marking::RINGWAY;
pub(super) use owner::TOOLS;

/// All checks, in the order in which they are run.
pub fn all() -> impl Iterator<Item = &'static Check> {
    [
        devices::CHECKS,
        links::CHECKS,
        bonds::CHECKS,
        gids::CHECKS,
        memory::CHECKS,
        pcie::CHECKS,
        cpu::CHECKS,
        qos::CHECKS,
        marking::CHECKS,
        owner::CHECKS,
        sysctls::CHECKS,
        containers::CHECKS,
        overlays::CHECKS,
        slurm::CHECKS,
    ]
    .into_iter()
    .flatten()
}
