//! A lab: the network that was made, and how it is changed.

use std::{env, fs, path::Path, process::Command};

use ringway_fabric::{Fabric, NodeId, Routes};

use crate::{
    address::interface,
    blueprint::{Blueprint, Settings},
    command::run,
    error::LabError,
    sandbox::scratch,
    shaping::Shaping,
    stats::{self, HopStats},
};

/// How commands get into the lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// This process is in it.
    Inside,
    /// By the namespaces of its first process, among them one of users if `user`.
    Of { pid: u32, user: bool },
}

impl Reach {
    /// What to put before a command.
    fn prefix(self) -> Vec<String> {
        let Self::Of { pid, user } = self else {
            return Vec::new();
        };
        let pid = pid.to_string();
        let mut words = vec!["nsenter", "--target", &pid];
        if user {
            words.extend(["--user", "--preserve-credentials"]);
        }
        words.extend(["--mount", "--net", "--ipc", "--pid", "--"]);
        words.into_iter().map(str::to_owned).collect()
    }
}

/// What to put before a command so that it runs in a node, from anywhere in the lab.
pub fn within(node: &str) -> Vec<String> {
    // Namespaces have a working directory of their own.
    const SCRIPT: &str = r#"hostname "$1" && cd "$2" && shift 2 && exec "$@""#;
    let here = env::current_dir().unwrap_or_else(|_| "/".into());
    let here = here.display().to_string();
    let words = [
        "ip", "netns", "exec", node, "unshare", "--uts", "--", "sh", "-c", SCRIPT, "sh", node,
        &here,
    ];
    words.map(str::to_owned).to_vec()
}

/// A fabric as a network on this machine. See the crate's documentation.
#[derive(Debug)]
pub struct Lab {
    fabric: Fabric,
    settings: Settings,
    reach: Reach,
    /// Links that are cut.
    down: Vec<usize>,
    /// Bytes per second of each link.
    rates: Vec<f64>,
}

impl Lab {
    /// Makes the network in the namespaces of this process, which [`crate::Inside::enter`] has prepared.
    pub fn build(fabric: Fabric, settings: Settings) -> Result<Self, LabError> {
        let rates = fabric.links().iter().map(|l| l.rate).collect();
        let lab = Self {
            fabric,
            settings,
            reach: Reach::Inside,
            down: Vec::new(),
            rates,
        };
        let blueprint = lab.blueprint()?;
        let mut ip = Command::new("ip");
        run("ip", ip.args(["-batch", "-"]), &blueprint.network())?;
        let routes = Routes::new(&lab.fabric);
        for node in (0..lab.fabric.nodes()).map(NodeId) {
            let (rules, routes) = (blueprint.rules(node), blueprint.routes(&routes, node));
            let script = format!(
                "{}ip -batch - << 'END'\n{rules}{routes}END\n",
                blueprint.node(node)
            );
            lab.script(node, &script)?;
        }
        lab.name_hosts(&blueprint.names())?;
        Ok(lab)
    }

    /// A lab that is up, with what was changed in it.
    pub(crate) fn attach(
        fabric: Fabric,
        settings: Settings,
        reach: Reach,
        down: Vec<usize>,
        rates: Vec<f64>,
    ) -> Self {
        Self {
            fabric,
            settings,
            reach,
            down,
            rates,
        }
    }

    fn blueprint(&self) -> Result<Blueprint<'_>, LabError> {
        Blueprint::new(&self.fabric, &self.settings)
    }

    /// Makes hosts known by their names, in the lab.
    fn name_hosts(&self, names: &str) -> Result<(), LabError> {
        let known = Path::new("/etc/hosts");
        if !known.exists() {
            return Ok(());
        }
        let path = scratch().join("hosts");
        fs::write(&path, names).map_err(|source| LabError::File {
            path: path.clone(),
            source,
        })?;
        let mut mount = Command::new("mount");
        run("mount", mount.arg("--bind").arg(&path).arg(known), "").map(drop)
    }

    /// The fabric, as its file has it.
    pub const fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// What is the same in all nodes.
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Links that are cut.
    pub fn down(&self) -> &[usize] {
        &self.down
    }

    /// Bytes per second of each link.
    pub fn rates(&self) -> &[f64] {
        &self.rates
    }

    fn enter(&self, node: NodeId) -> Vec<String> {
        let mut words = self.reach.prefix();
        words.extend(["ip", "netns", "exec"].map(str::to_owned));
        words.push(self.fabric.node_name(node));
        words
    }

    /// What to put before a command so that it runs in a node, which then is the name of its host.
    pub fn within(&self, node: NodeId) -> Vec<String> {
        let mut words = self.reach.prefix();
        words.extend(within(&self.fabric.node_name(node)));
        words
    }

    /// Runs a script of `sh` in a node, to the first command that fails.
    pub(crate) fn script(&self, node: NodeId, script: &str) -> Result<String, LabError> {
        let words = self.enter(node);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).args(["sh", "-e"]);
        run(&self.fabric.node_name(node), &mut command, script)
    }

    /// The links of `leaf0-spine1`, or all of `spine1`.
    pub fn links(&self, what: &str) -> Result<Vec<usize>, LabError> {
        let links = match what.split_once('-') {
            Some((a, b)) => match (self.fabric.node(a), self.fabric.node(b)) {
                (Some(a), Some(b)) => self.fabric.between(a, b),
                _ => Vec::new(),
            },
            None => {
                let node = self.fabric.node(what);
                let links = node
                    .map(|node| self.fabric.links_of(node))
                    .unwrap_or_default();
                links.iter().map(|l| l.0).collect()
            }
        };
        match links.is_empty() {
            true => Err(LabError::NoLink { what: what.into() }),
            false => Ok(links),
        }
    }

    /// The node of that name.
    pub fn node(&self, name: &str) -> Result<NodeId, LabError> {
        let found = self.fabric.node(name);
        found.ok_or_else(|| LabError::NoNode { name: name.into() })
    }

    /// Each end of each of the links: the node and its interface.
    fn ends(&self, links: &[usize]) -> Vec<(NodeId, String)> {
        let ends = links.iter().flat_map(|&link| {
            let both = [self.fabric.links()[link].a, self.fabric.links()[link].b];
            both.map(|node| (node, link))
        });
        ends.filter_map(|(node, link)| Some((node, interface(&self.fabric, node, link)?)))
            .collect()
    }

    /// Takes links away; then switches route around them.
    pub fn cut(&mut self, links: &[usize]) -> Result<(), LabError> {
        for (node, interface) in self.ends(links) {
            self.script(node, &format!("ip link set {interface} down"))?;
        }
        self.down.extend(links);
        self.down.sort_unstable();
        self.down.dedup();
        self.reroute()
    }

    /// Gives links back; then switches use them again.
    pub fn heal(&mut self, links: &[usize]) -> Result<(), LabError> {
        for (node, interface) in self.ends(links) {
            self.script(node, &format!("ip link set {interface} up"))?;
        }
        self.down.retain(|link| !links.contains(link));
        self.reroute()
    }

    fn reroute(&self) -> Result<(), LabError> {
        let (blueprint, routes) = (self.blueprint()?, Routes::without(&self.fabric, &self.down));
        for node in (0..self.fabric.nodes()).map(NodeId) {
            let routes = blueprint.routes(&routes, node);
            self.script(node, &format!("ip -batch - << 'END'\n{routes}END\n"))?;
        }
        Ok(())
    }

    /// Gives links a rate, in both directions. Bytes per second.
    pub fn set_rate(&mut self, links: &[usize], rate: f64) -> Result<(), LabError> {
        let shaping = Shaping::new(rate, self.settings.mtu);
        for (node, interface) in self.ends(links) {
            let line = shaping.change(&interface, self.settings.queues);
            self.script(node, &format!("tc {line}"))?;
        }
        for &link in links {
            self.rates[link] = rate;
        }
        Ok(())
    }

    /// What each direction of each link has carried since the lab was made.
    pub fn stats(&self) -> Result<Vec<HopStats>, LabError> {
        let mut all = Vec::with_capacity(2 * self.fabric.links().len());
        for node in (0..self.fabric.nodes()).map(NodeId) {
            let text = self.script(node, "tc -s -j qdisc show")?;
            all.extend(stats::read(&self.fabric, node, &text)?);
        }
        all.sort_by_key(|s| s.hop.index());
        Ok(all)
    }
}
