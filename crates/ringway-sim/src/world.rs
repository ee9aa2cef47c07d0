//! Which rank is where.

use ringway_fabric::{Fabric, NodeId, Port, levels};
use ringway_plan::{Rank, Topology};

use crate::error::SimError;

/// Where a rank runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The fabric's host.
    pub host: usize,
    /// Which GPU of it.
    pub gpu: usize,
    /// Which NIC the GPU uses.
    pub nic: usize,
}

impl Place {
    /// Where its flows enter and leave the fabric.
    pub const fn port(self) -> Port {
        Port {
            host: self.host,
            nic: self.nic,
        }
    }
}

/// Ranks on the hosts of a fabric: those of a host are numbered one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct World {
    places: Vec<Place>,
    /// Racks, pods ...: groups above hosts, by level and rank.
    levels: Vec<Vec<usize>>,
}

impl World {
    /// `per_host` ranks on each host of `order`, the hosts in that order.
    pub fn new(fabric: &Fabric, order: &[usize], per_host: usize) -> Result<Self, SimError> {
        let mut places = Vec::with_capacity(order.len() * per_host);
        let mut taken = vec![false; fabric.hosts()];
        for &host in order {
            let kind = match fabric.host(host) {
                Some(kind) if !std::mem::replace(&mut taken[host], true) => kind,
                _ => {
                    let hosts = fabric.hosts();
                    return Err(SimError::NoHost { host, hosts });
                }
            };
            if per_host > kind.gpus {
                return Err(SimError::Gpus {
                    ranks: per_host,
                    hosts: order.len(),
                    host: fabric.node_name(NodeId(host)),
                    gpus: kind.gpus,
                });
            }
            places.extend((0..per_host).map(|gpu| {
                let nic = kind.nic_of(gpu);
                Place { host, gpu, nic }
            }));
        }
        let of_places = |level: Vec<usize>| places.iter().map(|place| level[place.host]).collect();
        let levels = levels(fabric).into_iter().map(of_places).collect();
        Ok(Self { places, levels })
    }

    /// How many ranks.
    pub const fn ranks(&self) -> usize {
        self.places.len()
    }

    /// Where a rank is.
    pub fn place(&self, rank: Rank) -> Place {
        self.places[rank]
    }

    /// For generators: which ranks share a host, a rack, a pod.
    pub fn topology(&self) -> Topology {
        let hosts = self.places.iter().map(|p| p.host).collect();
        Topology::new(hosts).with_levels(self.levels.clone())
    }
}
