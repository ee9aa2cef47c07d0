//! What generators know of the machines: which ranks share a host.

use std::collections::HashMap;

use crate::schedule::Rank;

/// The ranks and their hosts, and what a generator may be told beyond that.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Topology {
    hosts: Vec<usize>,
    /// Hosts as they stand side by side; those that are missing come after these.
    order: Vec<usize>,
    /// Groups above hosts by rank, the lowest level first.
    levels: Vec<Vec<usize>>,
    channels: usize,
    group: Option<usize>,
    torus_width: Option<usize>,
}

/// Part of a hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Node {
    Rank(Rank),
    Group(Vec<Self>),
}

impl Node {
    /// The members of the largest group at each level, from the whole down to hosts.
    pub(super) fn widest(&self) -> Vec<usize> {
        let mut most = Vec::new();
        self.widen(0, &mut most);
        most
    }

    fn widen(&self, level: usize, most: &mut Vec<usize>) {
        if let Self::Group(members) = self {
            if most.len() == level {
                most.push(0);
            }
            most[level] = most[level].max(members.len());
            members.iter().for_each(|m| m.widen(level + 1, most));
        }
    }
}

impl Topology {
    /// Ranks by host: `hosts[r]` is any number that ranks of rank r's host share. Hosts may hold different
    /// numbers of ranks, in any order.
    pub const fn new(hosts: Vec<usize>) -> Self {
        Self {
            hosts,
            order: Vec::new(),
            levels: Vec::new(),
            channels: 1,
            group: None,
            torus_width: None,
        }
    }

    /// Hosts side by side in this order, by the numbers that [`Self::new`] was given, rather than in the order of their
    /// lowest rank: neighbours in it exchange the most.
    pub fn with_order(self, order: Vec<usize>) -> Self {
        Self { order, ..self }
    }

    /// Levels above hosts for `hierarchical`, the lowest first: `levels[l][r]` is any number that ranks of rank r's group share,
    /// such as its rack's. Hosts whose ranks differ belong to the group of their first.
    ///
    /// # Panics
    /// A level has another number of ranks.
    pub fn with_levels(self, levels: Vec<Vec<usize>>) -> Self {
        for level in &levels {
            assert_eq!(level.len(), self.ranks(), "a group for each rank");
        }
        Self { levels, ..self }
    }

    /// `ranks` ranks of one host.
    pub fn single_host(ranks: usize) -> Self {
        Self::new(vec![0; ranks])
    }

    /// `hosts` hosts of `ranks` ranks each, numbered host by host.
    pub fn uniform(hosts: usize, ranks: usize) -> Self {
        Self::new((0..hosts * ranks).map(|r| r / ranks).collect())
    }

    /// How many rings share the work of `ring`, odd ones running backwards; 1 unless set. 0 counts as 1.
    pub fn with_channels(self, channels: usize) -> Self {
        Self {
            channels: channels.max(1),
            ..self
        }
    }

    /// Groups of this many neighbouring ranks, in place of hosts, for `hierarchical`. 0 counts as 1.
    pub fn with_group(self, ranks: usize) -> Self {
        Self {
            group: Some(ranks.max(1)),
            ..self
        }
    }

    /// The width of the grid of `torus`; ranks beyond the last full row join a rank of the grid.
    /// 0 counts as 1, more than there are ranks as one row.
    pub fn with_torus_width(self, width: usize) -> Self {
        Self {
            torus_width: Some(width.max(1)),
            ..self
        }
    }

    /// The number of ranks.
    pub const fn ranks(&self) -> usize {
        self.hosts.len()
    }

    /// The ranks of each host, ascending; hosts in the order that was given, else in that of their lowest rank.
    pub fn hosts(&self) -> Vec<Vec<Rank>> {
        let mut at: HashMap<usize, usize> = self.order.iter().copied().zip(0..).collect();
        let mut members: Vec<Vec<Rank>> = vec![Vec::new(); at.len()];
        for (rank, &host) in self.hosts.iter().enumerate() {
            let at = *at.entry(host).or_insert(members.len());
            match members.get_mut(at) {
                Some(m) => m.push(rank),
                None => members.push(vec![rank]),
            }
        }
        members.retain(|m| !m.is_empty());
        members
    }

    pub(super) const fn channels(&self) -> usize {
        self.channels
    }

    /// All ranks, those of a host side by side.
    pub(super) fn line(&self) -> Vec<Rank> {
        self.hosts().concat()
    }

    /// The lower level of a hierarchy.
    pub(super) fn groups(&self) -> Vec<Vec<Rank>> {
        match self.group {
            Some(size) => self.line().chunks(size).map(<[Rank]>::to_vec).collect(),
            None => self.hosts(),
        }
    }

    /// The hierarchy: the whole, its groups, and so on to hosts, the members of which are ranks.
    pub(super) fn tree(&self) -> Node {
        self.tree_over(self.groups())
    }

    fn tree_over(&self, lowest: Vec<Vec<Rank>>) -> Node {
        let host = |ranks: Vec<Rank>| {
            let first = ranks[0];
            (
                first,
                Node::Group(ranks.into_iter().map(Node::Rank).collect()),
            )
        };
        let mut nodes: Vec<(Rank, Node)> = lowest.into_iter().map(host).collect();
        for level in &self.levels {
            let mut at = HashMap::new();
            let mut groups: Vec<(Rank, Vec<Node>)> = Vec::new();
            for (first, node) in nodes {
                let at = *at.entry(level[first]).or_insert(groups.len());
                match groups.get_mut(at) {
                    Some((_, members)) => members.push(node),
                    None => groups.push((first, vec![node])),
                }
            }
            nodes = groups
                .into_iter()
                .map(|(first, members)| (first, Node::Group(members)))
                .collect();
        }
        Node::Group(nodes.into_iter().map(|(_, node)| node).collect())
    }

    /// The members of the largest group of each level above hosts, the lowest first, the whole last.
    pub(crate) fn level_sizes(&self) -> Vec<usize> {
        let mut sizes = self.tree_over(self.hosts()).widest();
        // Hosts, of ranks.
        sizes.pop();
        sizes.reverse();
        sizes
    }

    /// Width and height of the grid: as wide as the hosts where these are equal, else as square as divides
    /// the number of ranks, else as square as fits.
    pub(crate) fn grid(&self) -> (usize, usize) {
        let n = self.ranks();
        let hosts = self.hosts();
        let per_host = hosts[0].len();
        let equal = hosts.iter().all(|h| h.len() == per_host);
        let square = n.isqrt();
        let divisor = (2..=square).rev().find(|&d| n.is_multiple_of(d));
        let width = match (self.torus_width, divisor) {
            (Some(width), _) => width.min(n),
            (None, _) if equal && hosts.len() > 1 && per_host > 1 => per_host,
            (None, Some(divisor)) => divisor,
            (None, None) => square,
        };
        (width, n / width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_stand_side_by_side() {
        let topology = Topology::new(vec![7, 3, 7, 3, 3]);
        assert_eq!(topology.hosts(), [vec![0, 2], vec![1, 3, 4]]);
        assert_eq!(topology.line(), [0, 2, 1, 3, 4]);
        let ordered = topology.clone().with_order(vec![1, 3]);
        assert_eq!(ordered.hosts(), [vec![1, 3, 4], vec![0, 2]]);
        assert_eq!(topology.with_group(4).groups(), [vec![0, 2, 1, 3], vec![4]]);
    }

    #[test]
    fn grids_are_square_where_they_can_be() {
        let grid = |n| Topology::single_host(n).grid();
        assert_eq!(
            [2, 3, 12, 13, 16, 17].map(grid),
            [(1, 2), (1, 3), (3, 4), (3, 4), (4, 4), (4, 4)]
        );
        assert_eq!(Topology::uniform(2, 8).grid(), (8, 2));
        assert_eq!(Topology::single_host(5).with_torus_width(9).grid(), (5, 1));
    }
}
