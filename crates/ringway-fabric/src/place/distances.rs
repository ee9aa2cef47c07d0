//! Over which links bytes go from host to host: on a fabric, or by a measured matrix.

use std::{collections::HashMap, rc::Rc};

use super::pattern::Pattern;
use crate::{
    model::{Fabric, NodeId},
    routes::{Port, Routes},
};

/// Rates that were measured between hosts.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    /// `rate[i][j]`: bytes per second from i to j.
    rate: Vec<Vec<f64>>,
    /// `latency[i][j]`: seconds.
    latency: Option<Vec<Vec<f64>>>,
}

/// Why numbers are no matrix.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum BadMatrix {
    /// A row of another length.
    #[error("row {row} of the {what} has {found} entries; expected {expected}, one for each host")]
    Shape {
        /// Rates or latencies.
        what: &'static str,
        /// From 0.
        row: usize,
        /// Its length.
        found: usize,
        /// The number of hosts.
        expected: usize,
    },
    /// An entry that no host has.
    #[error("the {what} from host {from} to host {to} is {found}; expected {expected}")]
    Value {
        /// Rate or latency.
        what: &'static str,
        /// From 0.
        from: usize,
        /// From 0.
        to: usize,
        /// The entry.
        found: f64,
        /// What can be.
        expected: &'static str,
    },
}

impl Matrix {
    /// Bytes per second, and seconds if they were measured; what stands in the diagonal does not matter.
    pub fn new(rate: Vec<Vec<f64>>, latency: Option<Vec<Vec<f64>>>) -> Result<Self, BadMatrix> {
        let hosts = rate.len();
        square("rates", &rate, hosts, "a number above 0", |r| {
            r > 0.0 && r.is_finite()
        })?;
        if let Some(latency) = &latency {
            let valid = |l: f64| l >= 0.0 && l.is_finite();
            square("latencies", latency, hosts, "a number from 0", valid)?;
        }
        Ok(Self { rate, latency })
    }

    /// How many hosts.
    pub const fn hosts(&self) -> usize {
        self.rate.len()
    }
}

fn square(
    what: &'static str,
    rows: &[Vec<f64>],
    expected_rows: usize,
    expected: &'static str,
    valid: impl Fn(f64) -> bool,
) -> Result<(), BadMatrix> {
    if rows.len() != expected_rows {
        return Err(BadMatrix::Shape {
            what,
            row: rows.len(),
            found: 0,
            expected: expected_rows,
        });
    }
    for (from, row) in rows.iter().enumerate() {
        if row.len() != expected_rows {
            return Err(BadMatrix::Shape {
                what,
                row: from,
                found: row.len(),
                expected: expected_rows,
            });
        }
        let wrong = row
            .iter()
            .enumerate()
            .find(|&(to, &v)| from != to && !valid(v));
        if let Some((to, &found)) = wrong {
            return Err(BadMatrix::Value {
                what,
                from,
                to,
                found,
                expected,
            });
        }
    }
    Ok(())
}

/// The way from one host to another.
#[derive(Debug)]
pub(super) struct Way {
    /// Links with what part of a flow each carries. Where there is no path, none.
    pub(super) links: Vec<(u32, f64)>,
    /// How far it is: links, or microseconds.
    pub(super) hops: f64,
}

/// The ways between hosts. Those of a fabric are kept when they have been asked for.
#[derive(Debug)]
pub struct Distances<'a> {
    source: Source<'a>,
    /// By link: seconds for each byte.
    seconds: Vec<f64>,
    ways: HashMap<(u32, u32), Rc<Way>>,
}

#[derive(Debug)]
enum Source<'a> {
    Fabric { fabric: &'a Fabric, routes: Routes },
    Matrix(&'a Matrix),
}

impl<'a> Distances<'a> {
    /// Of a fabric: flows spread evenly over equal paths. Of several NICs the first stands for all.
    pub fn of(fabric: &'a Fabric) -> Self {
        let both = fabric.links().iter().flat_map(|l| [1.0 / l.rate; 2]);
        Self {
            seconds: both.collect(),
            ways: HashMap::new(),
            source: Source::Fabric {
                fabric,
                routes: Routes::new(fabric),
            },
        }
    }

    /// Of what was measured: each pair of hosts has a way of its own.
    pub fn measured(matrix: &'a Matrix) -> Self {
        Self {
            seconds: matrix.rate.iter().flatten().map(|r| 1.0 / r).collect(),
            ways: HashMap::new(),
            source: Source::Matrix(matrix),
        }
    }

    /// How many hosts there are.
    pub const fn hosts(&self) -> usize {
        match &self.source {
            Source::Fabric { fabric, .. } => fabric.hosts(),
            Source::Matrix(matrix) => matrix.hosts(),
        }
    }

    /// By link, the seconds that it takes for each byte.
    pub(super) fn seconds(&self) -> &[f64] {
        &self.seconds
    }

    /// The way from one host to another.
    pub(super) fn way(&mut self, from: usize, to: usize) -> Rc<Way> {
        let key = (from as u32, to as u32);
        if let Some(way) = self.ways.get(&key) {
            return Rc::clone(way);
        }
        let links = match &self.source {
            Source::Matrix(matrix) => vec![((from * matrix.hosts() + to) as u32, 1.0)],
            Source::Fabric { fabric, routes } => {
                let ends = (Port { host: from, nic: 0 }, Port { host: to, nic: 0 });
                let spread = routes.spread(fabric, ends.0, ends.1).into_iter();
                spread
                    .map(|(hop, part)| (hop.index() as u32, part))
                    .collect()
            }
        };
        let hops = self.hops(from, to);
        let way = Rc::new(Way { links, hops });
        self.ways.insert(key, Rc::clone(&way));
        way
    }

    /// How far it is: links, or microseconds.
    fn hops(&self, from: usize, to: usize) -> f64 {
        match &self.source {
            Source::Matrix(matrix) => match &matrix.latency {
                Some(latency) => latency[from][to] * 1e6,
                // Without latencies, what is slow is far.
                None => 1e6 / matrix.rate[from][to],
            },
            Source::Fabric { fabric, routes } => {
                let ends = (Port { host: from, nic: 0 }, Port { host: to, nic: 0 });
                let hops = routes.hops(fabric, ends.0, ends.1);
                // Where there is no path, farther than any.
                hops.unwrap_or_else(|| 2 * fabric.nodes()) as f64
            }
        }
    }

    /// Two hosts of `order` that talk and have no path, by their numbers in the fabric.
    pub fn unreachable(&self, pattern: &Pattern, order: &[usize]) -> Option<(usize, usize)> {
        let Source::Fabric { fabric, routes } = &self.source else {
            return None;
        };
        let port = |host| Port { host, nic: 0 };
        let pairs = pattern.flows().iter().map(|f| (order[f.0], order[f.1]));
        let mut cut = pairs.filter(|&(a, b)| routes.hops(fabric, port(a), port(b)).is_none());
        cut.next()
    }

    /// How far hosts that talk are apart, on average: links, or microseconds of a matrix.
    pub fn mean_hops(&self, pattern: &Pattern, order: &[usize]) -> f64 {
        let flows = pattern.flows().iter();
        // From 0, as the sum of nothing is -0.
        let hops = flows.fold(0.0, |sum, f| sum + self.hops(order[f.0], order[f.1]));
        hops / pattern.flows().len().max(1) as f64
    }

    /// The hosts of `order`, each beside the nearest of those that are left.
    pub(super) fn chain(&self, order: &[usize]) -> Vec<usize> {
        let mut left: Vec<usize> = order.to_vec();
        left.sort_unstable();
        let mut chain = vec![left.remove(0)];
        while let Some(&last) = chain.last()
            && !left.is_empty()
        {
            let far = left.iter().map(|&host| self.hops(last, host));
            let nearest = far.enumerate().min_by(|a, b| a.1.total_cmp(&b.1));
            let next = nearest.map_or(0, |n| n.0);
            chain.push(left.remove(next));
        }
        chain
    }

    /// The name of a link.
    pub fn link_name(&self, link: usize) -> String {
        match &self.source {
            Source::Fabric { fabric, .. } => crate::Hop::of_index(link).name(fabric),
            Source::Matrix(matrix) => {
                let (from, to) = (link / matrix.hosts(), link % matrix.hosts());
                format!("{from}>{to}")
            }
        }
    }

    /// The name of a host.
    pub fn host_name(&self, host: usize) -> String {
        match &self.source {
            Source::Fabric { fabric, .. } => fabric.node_name(NodeId(host)),
            Source::Matrix(_) => host.to_string(),
        }
    }
}
