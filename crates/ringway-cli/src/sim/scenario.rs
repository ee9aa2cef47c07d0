//! What happens to the fabric, from flags.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use ringway_fabric::{Fabric, NodeId, parse_latency, parse_rate};
use ringway_sim::{Background, Change, Scenario};

/// What happens to the fabric meanwhile.
#[derive(Debug, Args)]
pub(crate) struct Flags {
    /// A host that has a part of its rates only: HOST:PART, such as host3:0.5.
    #[arg(long, value_name = "HOST:PART")]
    slow: Vec<String>,
    /// Links between two nodes that go down: A-B@WHEN, until the end, or A-B@FROM-TO.
    #[arg(long, value_name = "A-B@FROM[-TO]")]
    down: Vec<String>,
    /// Links between two nodes that flap: first down, after a time up again, after another down ...
    #[arg(long, value_name = "A-B@FROM:DOWN:UP:COUNT")]
    flap: Vec<String>,
    /// Traffic of others, at a rate: HOST>HOST:RATE; `all>HOST:RATE` is an incast of all other hosts.
    #[arg(long, value_name = "HOST>HOST:RATE")]
    background: Vec<String>,
    /// How long switches take to route around what is down, and to use again what came up.
    #[arg(long, default_value = "10ms", value_parser = time)]
    reroute: Duration,
}

fn time(text: &str) -> Result<Duration, String> {
    parse_latency(text).map_err(|e| e.to_string())
}

impl Flags {
    pub(crate) fn scenario(&self, fabric: &Fabric) -> Result<Scenario> {
        let mut scenario = Scenario {
            reroute_after: self.reroute,
            ..Scenario::default()
        };
        for text in &self.slow {
            let slow = slow(fabric, text).with_context(|| format!("--slow {text}"))?;
            scenario.slow.push(slow);
        }
        for text in &self.down {
            let changes = down(fabric, text).with_context(|| format!("--down {text}"))?;
            scenario.changes.extend(changes);
        }
        for text in &self.flap {
            let changes = flap(fabric, text).with_context(|| format!("--flap {text}"))?;
            scenario.changes.extend(changes);
        }
        for text in &self.background {
            let traffic = background(fabric, text);
            let traffic = traffic.with_context(|| format!("--background {text}"))?;
            scenario.background.extend(traffic);
        }
        Ok(scenario)
    }
}

fn host(fabric: &Fabric, name: &str) -> Result<usize> {
    let node = fabric.node(name).filter(|n| n.0 < fabric.hosts());
    let last = fabric.node_name(NodeId(fabric.hosts() - 1));
    let node =
        node.with_context(|| format!("`{name}` is no host of the fabric; the last is {last}"))?;
    Ok(node.0)
}

/// The links of `A-B`.
fn links(fabric: &Fabric, text: &str) -> Result<Vec<usize>> {
    let (a, b) = text
        .split_once('-')
        .context("expected two nodes as A-B, such as leaf0-spine1")?;
    let node = |name: &str| {
        let found = fabric.node(name);
        found.with_context(|| {
            format!("there is no `{name}` in the fabric; `ringway fabric show` lists its groups")
        })
    };
    let links = fabric.between(node(a)?, node(b)?);
    if links.is_empty() {
        bail!("there is no link between {a} and {b}");
    }
    Ok(links)
}

/// Of a host's rates: less is a host that has failed.
const SMALLEST_PART: f64 = 1e-3;

fn slow(fabric: &Fabric, text: &str) -> Result<(usize, f64)> {
    let (name, part) = text
        .split_once(':')
        .context("expected HOST:PART, such as host3:0.5")?;
    let part: f64 = part.parse().context("expected a part such as 0.5")?;
    if !(SMALLEST_PART..=1.0).contains(&part) {
        bail!("{part}: expected a part from {SMALLEST_PART} to 1; `--down` takes links away");
    }
    Ok((host(fabric, name)?, part))
}

fn down(fabric: &Fabric, text: &str) -> Result<Vec<Change>> {
    let (ends, times) = text
        .split_once('@')
        .context("expected A-B@WHEN, such as leaf0-spine1@1ms")?;
    let (from, to) = match times.split_once('-') {
        None => (parse_latency(times)?, None),
        Some((from, to)) => (parse_latency(from)?, Some(parse_latency(to)?)),
    };
    if let Some(to) = to.filter(|&to| to <= from) {
        bail!("up at {to:?} but down only at {from:?}; expected FROM before TO");
    }
    let mut changes = Vec::new();
    for link in links(fabric, ends)? {
        let change = |at, share| Change { at, link, share };
        changes.push(change(from, 0.0));
        changes.extend(to.map(|to| change(to, 1.0)));
    }
    Ok(changes)
}

fn flap(fabric: &Fabric, text: &str) -> Result<Vec<Change>> {
    let shape = "expected A-B@FROM:DOWN:UP:COUNT, such as leaf0-spine1@1ms:100us:400us:5";
    let (ends, times) = text.split_once('@').context(shape)?;
    let times: Vec<&str> = times.split(':').collect();
    let [from, down, up, count] = times[..] else {
        bail!("{shape}");
    };
    let (from, down, up) = (
        parse_latency(from)?,
        parse_latency(down)?,
        parse_latency(up)?,
    );
    let count: u32 = count.parse().context(shape)?;
    if count > 10_000 {
        bail!("{count} times; expected 10000 at most");
    }
    let links = links(fabric, ends)?;
    let mut changes = Vec::new();
    for turn in 0..count {
        let at = from + (down + up) * turn;
        for &link in &links {
            changes.push(Change {
                at,
                link,
                share: 0.0,
            });
            let (at, share) = (at + down, 1.0);
            changes.push(Change { at, link, share });
        }
    }
    Ok(changes)
}

fn background(fabric: &Fabric, text: &str) -> Result<Vec<Background>> {
    let shape = "expected HOST>HOST:RATE, such as 'host1>host2:10Gbit/s'";
    let (ends, rate) = text.split_once(':').context(shape)?;
    let (from, to) = ends.split_once('>').context(shape)?;
    let (rate, to) = (parse_rate(rate)?, host(fabric, to)?);
    let from = match from {
        "all" => (0..fabric.hosts()).filter(|&h| h != to).collect(),
        name => vec![host(fabric, name)?],
    };
    if from == [to] {
        bail!("a host does not send to itself over the network");
    }
    Ok(from
        .into_iter()
        .map(|from| Background { from, to, rate })
        .collect())
}

#[cfg(test)]
mod tests {
    use ringway_fabric::Shape;

    use super::*;

    fn fabric() -> Fabric {
        let shape = Shape::LeafSpine {
            hosts: 4,
            leaves: 2,
            spines: 2,
            gpus: 1,
        };
        Fabric::parse(&shape.file().unwrap()).unwrap()
    }

    #[test]
    fn flags_become_what_they_say() {
        let fabric = fabric();
        assert_eq!(slow(&fabric, "host3:0.5").unwrap(), (3, 0.5));
        let changes = down(&fabric, "leaf0-spine1@1ms-2ms").unwrap();
        let times: Vec<_> = changes
            .iter()
            .map(|c| (c.at.as_micros(), c.share))
            .collect();
        assert_eq!(times, [(1000, 0.0), (2000, 1.0)]);
        assert_eq!(fabric.link_name(changes[0].link), "leaf0-spine1");
        let changes = flap(&fabric, "leaf0-spine1@1ms:100us:400us:2").unwrap();
        let times: Vec<_> = changes
            .iter()
            .map(|c| (c.at.as_micros(), c.share))
            .collect();
        assert_eq!(times, [(1000, 0.0), (1100, 1.0), (1500, 0.0), (1600, 1.0)]);
        let traffic = background(&fabric, "all>host1:10Gbit/s").unwrap();
        let from: Vec<_> = traffic.iter().map(|b| b.from).collect();
        assert_eq!((from, traffic[0].rate), (vec![0, 2, 3], 1.25e9));
    }

    #[test]
    fn what_is_wrong_is_told() {
        let fabric = fabric();
        for (error, says) in [
            (
                slow(&fabric, "host9:0.5").err(),
                "no host of the fabric; the last is host3",
            ),
            (slow(&fabric, "host1:2").err(), "from 0.001 to 1"),
            (slow(&fabric, "host1:1e-300").err(), "from 0.001 to 1"),
            (
                down(&fabric, "leaf0-spine1@2ms-1ms").err(),
                "FROM before TO",
            ),
            (
                down(&fabric, "leaf0-leaf1@1ms").err(),
                "no link between leaf0 and leaf1",
            ),
            (down(&fabric, "leaf0-spine1@soon").err(), "no latency"),
            (
                flap(&fabric, "leaf0-spine1@1ms").err(),
                "FROM:DOWN:UP:COUNT",
            ),
            (background(&fabric, "host1>host1:1GB/s").err(), "itself"),
            (background(&fabric, "host1>host2:10").err(), "no rate"),
        ] {
            let error = format!("{:#}", error.unwrap());
            assert!(error.contains(says), "{error}");
        }
    }
}
