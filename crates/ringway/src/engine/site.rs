//! Where the ranks are on the job's fabric, if rank 0 has been told of one.

use std::{
    fs,
    num::ParseIntError,
    time::{Duration, Instant},
};

use ringway_fabric::{
    Distances, Fabric, Pattern, Port, expected_load, farthest, levels, place_within,
};
use ringway_plan::{Rank, Schedule, Topology};

use crate::{
    Error,
    bootstrap::{Member, World},
    settings::Settings,
};

/// The ranks of the world on a fabric.
#[derive(Debug)]
pub(crate) struct Site {
    fabric: Fabric,
    /// By rank: its host, and by which of the host's NICs its messages go.
    ports: Vec<Port>,
    /// The hosts of the world in the order of a ring that loads links least.
    order: Vec<usize>,
    /// Groups of hosts above hosts, by level and host, as far as the settings want them.
    levels: Vec<Vec<usize>>,
}

/// Work for the search of the hosts' order: a tenth of a second.
const WORK: u64 = 5_000_000;

/// For more ranks the contention of all algorithms would take seconds to find.
const MOST_RANKS: usize = 256;

/// What rank 0 has found, a word in the first line: `none`; `fabric`, the order of hosts in the next line and the file
/// behind it; or `error` and what is wrong.
const KEY: &str = "ringway/fabric";

impl Site {
    /// The fabric that rank 0's settings name, for all ranks. Where not all hosts are on it the log says so, and the job
    /// does without.
    ///
    /// # Errors
    /// Rank 0 cannot read the file, or there is something wrong in it: the same on all ranks.
    pub(crate) fn of(world: &World, settings: &Settings) -> Result<Option<Self>, Error> {
        let deadline = Instant::now() + settings.values().connect_timeout;
        if world.rank == 0 {
            let note = note(world, settings).unwrap_or_else(|reason| format!("error\n{reason}"));
            world.store.set(KEY, note.as_bytes(), deadline)?;
        }
        let note = world.store.get(KEY, deadline)?;
        let mut site = Self::read(&String::from_utf8_lossy(&note), &world.members)
            .map_err(|reason| Error::Argument(format!("rank 0's setting fabric: {reason}")))?;
        if let (Some(site), Some(wanted)) = (&mut site, settings.values().hierarchy_levels) {
            // Ranks and hosts are two.
            site.levels.truncate(wanted.saturating_sub(2));
        }
        Ok(site)
    }

    /// Whether the file that the settings name is one, before anybody joins: rank 0 serves the rendezvous, and should not
    /// leave it in the midst.
    pub(crate) fn check(settings: &Settings) -> Result<(), Error> {
        match load(settings) {
            Ok(_) => Ok(()),
            Err(reason) => Err(Error::Argument(format!("setting fabric: {reason}"))),
        }
    }

    fn read(note: &str, members: &[Member]) -> Result<Option<Self>, String> {
        match note.split_once('\n') {
            Some(("fabric", rest)) => {
                let (order, text) = rest.split_once('\n').unwrap_or_default();
                let fabric = Fabric::parse(text).map_err(|error| error.to_string())?;
                let hosts: Result<_, ParseIntError> = order.split(' ').map(str::parse).collect();
                Ok(Some(Self {
                    ports: ports(&fabric, members)?,
                    levels: levels(&fabric),
                    order: hosts.map_err(|e| format!("no order of hosts: {e}"))?,
                    fabric,
                }))
            }
            Some((_, reason)) => Err(reason.to_owned()),
            None => Ok(None),
        }
    }

    /// The ranks by host.
    pub(crate) fn topology(&self, members: &[Rank]) -> Topology {
        let hosts = members.iter().map(|&rank| self.ports[rank].host).collect();
        let of_rank =
            |level: &Vec<usize>| members.iter().map(|&r| level[self.ports[r].host]).collect();
        Topology::new(hosts)
            .with_order(self.order.clone())
            .with_levels(self.levels.iter().map(of_rank).collect())
    }

    /// The host of a rank, by the fabric's number.
    pub(crate) fn host(&self, rank: Rank) -> usize {
        self.ports[rank].host
    }

    /// The hosts that have ranks, side by side, by the fabric's numbers.
    pub(crate) fn order(&self) -> &[usize] {
        &self.order
    }

    /// The seconds for each byte of the vector that the busiest link takes; 0 where that isn't known: there are too many
    /// ranks, or no path.
    pub(crate) fn busiest(&self, members: &[Rank], schedule: &Schedule) -> f64 {
        if members.len() > MOST_RANKS {
            return 0.0;
        }
        let ports: Vec<Port> = members.iter().map(|&rank| self.ports[rank]).collect();
        expected_load(&self.fabric, &ports, schedule)
            .map_or(0.0, |load| load.into_iter().fold(0.0, f64::max))
    }

    /// The way between hosts: latency, bytes per second, and how many NICs a host has.
    pub(crate) fn way(&self) -> (Duration, f64, usize) {
        let (latency, rate) = farthest(&self.fabric);
        let nics = self.fabric.host(0).map_or(1, |kind| kind.nics);
        (latency, rate, nics)
    }
}

/// The fabric that the settings name, and the text that it was read from.
fn load(settings: &Settings) -> Result<Option<(Fabric, String)>, String> {
    let Some(path) = &settings.values().fabric else {
        return Ok(None);
    };
    let place = format!("{} ({})", path.display(), settings.source("fabric"));
    let text = fs::read_to_string(path)
        .map_err(|e| format!("{place}: {e}; expected a file as `ringway fabric new` writes"))?;
    let fabric = Fabric::parse(&text).map_err(|error| format!("{place}: {error}"))?;
    Ok(Some((fabric, text)))
}

/// What rank 0 leaves for all, or what is wrong.
fn note(world: &World, settings: &Settings) -> Result<String, String> {
    let Some((fabric, text)) = load(settings)? else {
        return Ok("none".to_owned());
    };
    match ports(&fabric, &world.members) {
        Ok(ports) => {
            let order: Vec<String> = order(&fabric, &ports)
                .iter()
                .map(usize::to_string)
                .collect();
            let order = order.join(" ");
            tracing::info!(order, "hosts of the fabric, side by side");
            Ok(format!("fabric\n{order}\n{text}"))
        }
        Err(reason) => {
            tracing::warn!(reason, "the fabric file is not used");
            Ok("none".to_owned())
        }
    }
}

/// The hosts that have ranks, in the order of a ring that loads links least.
fn order(fabric: &Fabric, ports: &[Port]) -> Vec<usize> {
    let mut hosts: Vec<usize> = ports.iter().map(|port| port.host).collect();
    hosts.sort_unstable();
    hosts.dedup();
    let ring = Pattern::ring(hosts.len());
    place_within(&ring, &mut Distances::of(fabric), &hosts, WORK)
        .best
        .order
}

/// Where each rank's messages enter the fabric: ranks of a host take its GPUs in turns. Hosts are found by name, be it
/// with a domain behind.
fn ports(fabric: &Fabric, members: &[Member]) -> Result<Vec<Port>, String> {
    let mut by_host: Vec<Option<&Member>> = vec![None; fabric.hosts()];
    let mut seated = vec![0; fabric.hosts()];
    let mut ports = Vec::with_capacity(members.len());
    for member in members {
        let short = member.host.split('.').next().unwrap_or_default();
        let node = fabric
            .node(&member.host)
            .or_else(|| fabric.node(short))
            .filter(|node| node.0 < fabric.hosts());
        let Some((host, kind)) = node.and_then(|node| Some((node.0, fabric.host(node.0)?))) else {
            return Err(format!("{member} is on no host of it"));
        };
        let first = by_host[host].get_or_insert(member);
        if first.host_id != member.host_id {
            return Err(format!(
                "{first} and {member} are on one host of it, but share no memory"
            ));
        }
        let gpu = seated[host];
        seated[host] += 1;
        let nic = kind.nic_of(gpu);
        ports.push(Port { host, nic });
    }
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Source;

    #[test]
    fn a_file_that_is_no_fabric_is_refused_with_its_line() {
        let path = std::env::temp_dir().join(format!("ringway-site-{}", std::process::id()));
        fs::write(&path, "fabric: f\nhosts:\n  - {nmae: host}\n").unwrap();
        let mut settings = Settings::default();
        let name = path.to_str().unwrap();
        settings.set("fabric", name, Source::Default).unwrap();
        let error = Site::check(&settings).unwrap_err().to_string();
        fs::remove_file(&path).unwrap();
        assert!(error.contains("line 3"), "{error}");
    }
}
