//! Which hosts are near each other: racks, pods ...

use std::collections::BTreeSet;

use crate::{
    model::Fabric,
    routes::{Port, Routes},
};

/// Groups of hosts that are nearer to each other than to others, level by level, the nearest first: `levels[l][host]` is the
/// first host of the group that the host belongs to. On a leaf-spine fabric one level, of the hosts of each leaf; on a
/// three-tier one two. Levels that would be the whole, or single hosts, are left out. Of several NICs the first stands for
/// all.
pub fn levels(fabric: &Fabric) -> Vec<Vec<usize>> {
    let routes = Routes::new(fabric);
    let hosts = fabric.hosts();
    let port = |host| Port { host, nic: 0 };
    let hops = |a, b| routes.hops(fabric, port(a), port(b));
    let from_first: BTreeSet<usize> = (1..hosts).filter_map(|host| hops(0, host)).collect();
    let mut levels: Vec<Vec<usize>> = Vec::new();
    for &far in &from_first {
        // Nearness is the same seen from any host of a group, where switches stand in tiers.
        let mut group: Vec<usize> = vec![usize::MAX; hosts];
        let mut count = 0;
        for host in 0..hosts {
            if group[host] == usize::MAX {
                count += 1;
                let near = |&other: &usize| {
                    group[other] == usize::MAX
                        && (other == host || hops(host, other).is_some_and(|h| h <= far))
                };
                let members: Vec<usize> = (host..hosts).filter(near).collect();
                for member in members {
                    group[member] = host;
                }
            }
        }
        if count > 1 && count < hosts && levels.last() != Some(&group) {
            levels.push(group);
        }
    }
    levels
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Shape;

    fn of(shape: &Shape) -> Vec<Vec<usize>> {
        levels(&Fabric::parse(&shape.file().unwrap()).unwrap())
    }

    #[test]
    fn leaves_and_pods_are_levels() {
        let leaf_spine = Shape::LeafSpine {
            hosts: 6,
            leaves: 3,
            spines: 2,
            gpus: 1,
        };
        assert_eq!(of(&leaf_spine), [[0, 0, 2, 2, 4, 4]]);
        let one_leaf = Shape::LeafSpine {
            hosts: 4,
            leaves: 1,
            spines: 1,
            gpus: 1,
        };
        assert!(of(&one_leaf).is_empty());
        let three_tier = Shape::ThreeTier {
            hosts: 8,
            pods: 2,
            leaves: 2,
            oversubscription: 1,
            gpus: 1,
        };
        assert_eq!(
            of(&three_tier),
            [[0, 0, 2, 2, 4, 4, 6, 6], [0, 0, 0, 0, 4, 4, 4, 4]]
        );
    }
}
