//! Trees: binomial ones of ranks in hosts and of hosts, and the two binary ones of `double_tree`.

use super::{
    Algorithm, Topology, barrier,
    flow::{Flow, Move},
};
use crate::schedule::{Collective, Rank, Schedule};

/// For each rank its children, those with the largest subtrees first.
struct Tree {
    root: Rank,
    children: Vec<Vec<Rank>>,
}

impl Tree {
    /// A binomial tree of hosts' leaders, and one in each host. The root leads its host, others' lowest ranks theirs.
    fn binomial(topology: &Topology, root: Rank) -> Self {
        let mut children = vec![Vec::new(); topology.ranks()];
        let leader_first = |mut host: Vec<Rank>| {
            if let Some(at) = host.iter().position(|&r| r == root) {
                host[..=at].rotate_right(1);
            }
            host
        };
        let mut hosts: Vec<_> = topology.hosts().into_iter().map(leader_first).collect();
        if let Some(at) = hosts.iter().position(|h| h[0] == root) {
            hosts.rotate_left(at);
        }
        let leaders: Vec<_> = hosts.iter().map(|h| h[0]).collect();
        for members in std::iter::once(&leaders).chain(&hosts) {
            join_binomial(members, &mut children);
        }
        Self { root, children }
    }

    /// One of two binary trees of `members`; who has children in one is a leaf of the other. `root` is
    /// not a member, and stands above both.
    fn binary(members: &[Rank], root: Option<Rank>, ranks: usize, second: bool) -> Self {
        let n = members.len();
        // Members at odd places have children; in the second tree all places are mirrored or shifted by one.
        let seat = |i: usize| match (second, n % 2) {
            (false, _) => members[i],
            (true, 0) => members[n - 1 - i],
            (true, _) => members[(i + 1) % n],
        };
        let members: Vec<_> = (0..n).map(seat).collect();
        let mut children = vec![Vec::new(); ranks];
        let top = join_binary(&members, 0..n, &mut children);
        if let Some(root) = root {
            children[root].extend(top);
        }
        Self {
            root: root.or(top).unwrap_or(0),
            children,
        }
    }

    /// Parents before children.
    fn order(&self) -> Vec<Rank> {
        let mut order = vec![self.root];
        let mut next = 0;
        while let Some(&rank) = order.get(next) {
            order.extend(&self.children[rank]);
            next += 1;
        }
        order
    }

    /// Moves that take `chunk` from the root to everyone.
    fn moves(&self, chunk: usize, lane: usize) -> Vec<Move> {
        let order = self.order();
        let below = |&rank: &Rank| {
            let children = self.children[rank].iter();
            children.map(move |&child| Move {
                lane,
                ..Move::new(rank, child, chunk..chunk + 1)
            })
        };
        order.iter().flat_map(below).collect()
    }

    /// Who signals whom when everyone reports to the root, and then the root to everyone.
    fn rounds(&self) -> Vec<Vec<(Rank, Rank)>> {
        let mut down = Vec::new();
        let mut level = vec![self.root];
        while !level.is_empty() {
            let below = level
                .iter()
                .flat_map(|&r| self.children[r].iter().map(move |&c| (r, c)));
            let below: Vec<_> = below.collect();
            level = below.iter().map(|&(_, child)| child).collect();
            down.push(below);
        }
        let turned = |round: &Vec<(Rank, Rank)>| round.iter().map(|&(a, b)| (b, a)).collect();
        let up: Vec<_> = down.iter().rev().map(turned).collect();
        [up, down].concat()
    }

    /// Moves that take to each rank its own chunk.
    fn parts(&self) -> Vec<Move> {
        let order = self.order();
        let mut below: Vec<Vec<usize>> = (0..self.children.len()).map(|r| vec![r]).collect();
        for &rank in order.iter().rev() {
            for &child in &self.children[rank] {
                let grand = below[child].clone();
                below[rank].extend(grand);
            }
            below[rank].sort_unstable();
        }
        let mut moves = Vec::new();
        for &rank in &order {
            for &child in &self.children[rank] {
                moves.extend(Move::of(rank, child, &below[child]));
            }
        }
        moves
    }
}

fn join_binomial(members: &[Rank], children: &mut [Vec<Rank>]) {
    for distance in (0..usize::BITS).rev().map(|bit| 1 << bit) {
        for at in (0..members.len()).step_by(distance) {
            if at / distance % 2 == 1 {
                children[members[at - distance]].push(members[at]);
            }
        }
    }
}

/// Joins a range of members as a binary tree in which those at even places are leaves; returns its top.
fn join_binary(
    members: &[Rank],
    range: std::ops::Range<usize>,
    children: &mut [Vec<Rank>],
) -> Option<Rank> {
    let (start, len) = (range.start, range.len());
    match len {
        0 => return None,
        1 => return Some(members[start]),
        _ => {}
    }
    // The largest power of two that leaves both sides non-empty where it can: in-order numbering.
    let middle = start + (len + 1).next_power_of_two() / 2 - 1;
    let top = members[middle];
    let left = join_binary(members, start..middle, children);
    let right = join_binary(members, middle + 1..range.end, children);
    children[top].extend(left.into_iter().chain(right));
    Some(top)
}

pub(super) fn generate(collective: Collective, topology: &Topology) -> Schedule {
    let n = topology.ranks();
    let root = collective.root().unwrap_or_else(|| topology.line()[0]);
    let tree = Tree::binomial(topology, root);
    let flow = |chunks| Flow::new(collective, Algorithm::Tree, n, chunks);
    match collective {
        Collective::Barrier => barrier::generate(Algorithm::Tree, n, &tree.rounds()),
        Collective::Gather { .. } => flow(n).run_back(&tree.parts()),
        Collective::Scatter { .. } => flow(n).run(&tree.parts()),
        _ => flow(1).run(&tree.moves(0, 0)),
    }
}

pub(super) fn double(collective: Collective, topology: &Topology) -> Schedule {
    let (n, root) = (topology.ranks(), collective.root());
    let mut moves = Vec::new();
    for lane in 0..2 {
        let (upper, hosts) = levels(topology, root, lane);
        let members: Vec<_> = upper.into_iter().filter(|&r| Some(r) != root).collect();
        let mut tree = Tree::binary(&members, root, n, lane == 1);
        for host in &hosts {
            join_binomial(host, &mut tree.children);
        }
        moves.extend(tree.moves(lane, lane));
    }
    Flow::new(collective, Algorithm::DoubleTree, n, 2).run(&moves)
}

/// Who stands in binary tree `lane`, and the groups, each led by one who does, of those who do not: with several
/// hosts one rank of each stands for it (another in each tree, or the root), so that each half of the vector
/// crosses between hosts as often as there are hosts.
fn levels(topology: &Topology, root: Option<Rank>, lane: usize) -> (Vec<Rank>, Vec<Vec<Rank>>) {
    let mut hosts = topology.hosts();
    if hosts.len() == 1 {
        return (topology.line(), Vec::new());
    }
    for host in &mut hosts {
        let leader = host
            .iter()
            .position(|&r| Some(r) == root)
            .unwrap_or(lane % host.len());
        host[..=leader].rotate_right(1);
    }
    (hosts.iter().map(|h| h[0]).collect(), hosts)
}
