//! Ports, cables and ways through the fabric that are slow, lose packets or change them.

use std::collections::BTreeMap;

use super::{
    Aspect, Fleet, Host,
    blame::{Blame, Culprit, Directed, End, blame, directions},
    finding, median, work,
};
use crate::finding::{Confidence, Evidence, Finding, Severity, Step};

pub(super) const SLOW: Aspect = Aspect {
    id: "fleet.slow_wire",
    sign: "bytes per second of a port's best way, or of one way, beside those of the others",
    why: "a collective goes at the pace of its slowest link",
    source: "Ringway: TCP between pairs of hosts, in rounds in which no machine is in two pairs",
};

pub(super) const LOSS: Aspect = Aspect {
    id: "fleet.loss",
    sign: "numbered datagrams that do not arrive",
    why: "RoCE sends all again from a packet that is lost",
    source: "IBTA volume 1, 9.7.5: sequence errors; Ringway: numbered datagrams",
};

pub(super) const ORDER: Aspect = Aspect {
    id: "fleet.reordering",
    sign: "datagrams of one flow that arrive after later ones",
    why: "most NICs take a packet that is early for a loss of those before it",
    source: "IBTA volume 1, 9.7.5; RFC 4737",
};

pub(super) const MARK: Aspect = Aspect {
    id: "fleet.mark",
    sign: "the DSCP and ECN with which marked datagrams arrive, both ways",
    why: "data that loses its DSCP goes in a lossy priority from there on; without ECN congestion is not told",
    source: "RFC 2474, RFC 3168; ip(7): IP_RECVTOS; ipv6(7): IPV6_RECVTCLASS",
};

pub(super) const MTU: Aspect = Aspect {
    id: "fleet.path_mtu",
    sign: "the largest datagram that arrives without being cut, beside the interfaces' MTUs",
    why: "RoCE packets are never cut: what does not fit is dropped without a word",
    source: "RFC 8899; ip(7): IP_MTU_DISCOVER; IBTA annex A17",
};

pub(super) const RDMA: Aspect = Aspect {
    id: "fleet.rdma",
    sign: "RDMA WRITE and READ between the devices of two interfaces that reach each other: bytes per second beside the others'",
    why: "RDMA takes other ways through NIC and switch than TCP does: queue pairs, GIDs, the class of the data",
    source: "Ringway: ringway perf write bw, read bw and write lat, between pairs of hosts",
};

pub(super) const LATENCY: Aspect = Aspect {
    id: "fleet.latency",
    sign: "the quickest round trip of a port's best way, or of one way, beside those of the others",
    why: "small messages take as long as the slowest round trip",
    source: "Ringway: the quickest of several datagrams and their answers",
};

pub(super) const CLOCK: Aspect = Aspect {
    id: "fleet.clock",
    sign: "the time of day on both ends of the quickest round trip",
    why: "logs and traces of hosts whose clocks differ cannot be laid beside each other",
    source: "RFC 5905, 8: clock offset",
};

/// What a way may lose against the reference.
const PACE: f64 = 0.8;

/// Round trips may differ by this factor and this many seconds: hops, and the moment.
const ROUND_TRIP: (f64, f64) = (2.0, 50e-6);

/// Clocks that differ by less are as good as NTP gets.
const CLOCKS: f64 = 0.1;

/// A kind of fault.
struct Kind<'a> {
    of: &'a Aspect,
    severity: Severity,
    /// What is wrong with a way, in words that end `from A to B`.
    what: &'a dyn Fn(&Directed<'_>) -> String,
    /// How bad a way is; 0 is well.
    bad: &'a dyn Fn(&Directed<'_>) -> Option<f64>,
}

pub(super) fn judge(fleet: &Fleet) -> Vec<Finding> {
    let ways = directions(fleet);
    let rate = |way: &Directed<'_>| way.way.bandwidth;
    let rates = Usual::of(&ways, &|way| way.way.bandwidth.map(|it| -it));
    let reference = |way: &Directed<'_>| rates.on(way).map(|it| -it);
    let rdma = |way: &Directed<'_>| {
        let rdma = way.path.rdma.as_ref()?;
        Some(if way.there { rdma.there } else { rdma.back })
    };
    let rdma_rates = Usual::of(&ways, &|way| rdma(way).map(|it| -it));
    let rdma_reference = |way: &Directed<'_>| rdma_rates.on(way).map(|it| -it);
    let trip = |way: &Directed<'_>| way.path.round_trip.map(|it| it.0);
    let trips = Usual::of(&ways, &trip);
    let quickest = |way: &Directed<'_>| trips.on(way);
    let kinds = [
        Kind {
            of: &SLOW,
            severity: Severity::Warning,
            what: &|way| {
                let (got, usual) = (rate(way).unwrap_or(0.0), reference(way).unwrap_or(0.0));
                format!("{} where {} are usual", gigabytes(got), gigabytes(usual))
            },
            bad: &|way| Some(loss(rate(way)? / reference(way)?)),
        },
        Kind {
            of: &RDMA,
            severity: Severity::Warning,
            what: &|way| {
                let (got, usual) = (rdma(way), rdma_reference(way));
                let [got, usual] = [got, usual].map(|it| gigabytes(it.unwrap_or(0.0)));
                format!("{got} by RDMA where {usual} are usual")
            },
            bad: &|way| Some(loss(rdma(way)? / rdma_reference(way)?)),
        },
        Kind {
            of: &LOSS,
            severity: Severity::Error,
            what: &|way| {
                format!(
                    "{} of {} datagrams lost",
                    way.way.sent.saturating_sub(way.way.arrived),
                    way.way.sent
                )
            },
            bad: &|way| {
                (way.way.sent > 0).then(|| 1.0 - way.way.arrived as f64 / way.way.sent as f64)
            },
        },
        Kind {
            of: &ORDER,
            severity: Severity::Warning,
            what: &|way| {
                format!(
                    "{} of {} datagrams came after later ones",
                    way.way.reordered, way.way.arrived
                )
            },
            bad: &|way| {
                (way.way.arrived > 0).then(|| way.way.reordered as f64 / way.way.arrived as f64)
            },
        },
        Kind {
            of: &MARK,
            severity: Severity::Error,
            what: &|way| marks(way.way.marked, way.way.mark),
            bad: &|way| (way.way.sent > 0).then(|| fault(!kept(way.way.marked, way.way.mark))),
        },
        Kind {
            of: &MTU,
            severity: Severity::Error,
            what: &|way| {
                let words = |mtu: Option<u32>| {
                    mtu.map_or_else(|| "unknown".to_owned(), |it| it.to_string())
                };
                format!(
                    "packets of {} bytes arrive at most, where the sender's MTU is {} and the receiver's {}",
                    words(way.way.mtu),
                    words(way.from.port.mtu),
                    words(way.to.port.mtu)
                )
            },
            bad: &|way| Some(fault(way.way.mtu? < way.from.port.mtu?)),
        },
        Kind {
            of: &LATENCY,
            severity: Severity::Warning,
            what: &|way| {
                let micro = |seconds: Option<f64>| seconds.unwrap_or(0.0) * 1e6;
                format!(
                    "a round trip takes {:.0} us at best where {:.0} are usual",
                    micro(trip(way)),
                    micro(quickest(way))
                )
            },
            bad: &|way| {
                let (own, usual) = (trip(way)?, quickest(way)?);
                let long = own > ROUND_TRIP.0 * usual && own > usual + ROUND_TRIP.1;
                Some(if long { 1.0 - usual / own } else { 0.0 })
            },
        },
    ];
    let mut findings = Vec::new();
    for kind in kinds {
        for blame in blame(&ways, kind.bad) {
            findings.push(tell(fleet, &ways, &kind, &blame));
        }
    }
    findings.extend(broken_rdma(fleet));
    findings.extend(clocks(fleet));
    findings
}

/// What a way lacks of what is usual, if that is more than ways do that are alike.
fn loss(share: f64) -> f64 {
    if share < PACE { 1.0 - share } else { 0.0 }
}

fn fault(is: bool) -> f64 {
    if is { 1.0 } else { 0.0 }
}

/// The names of the two interfaces, in order.
type Network<'a> = (&'a str, &'a str);

/// The network of a way, by the names of its interfaces: hosts that are alike have a name for each network. One that is slower
/// than another is so by design.
fn network<'a>(way: &Directed<'a>) -> Network<'a> {
    let (a, b) = (&way.from.port.interface, &way.to.port.interface);
    (a.min(b), a.max(b))
}

/// What ports reach at best, in the median over those of a network; the less the better. The best way of a port tells what it can
/// do, whoever is slow at the other end.
struct Usual<'a>(BTreeMap<Network<'a>, f64>);

impl<'a> Usual<'a> {
    fn of(ways: &[Directed<'a>], of: &dyn Fn(&Directed<'_>) -> Option<f64>) -> Self {
        let mut best: BTreeMap<Network<'_>, BTreeMap<_, f64>> = BTreeMap::new();
        for way in ways {
            let Some(value) = of(way) else { continue };
            let ports = best.entry(network(way)).or_default();
            for key in [way.from.key(), way.to.key()] {
                let least = ports.entry(key).or_insert(value);
                *least = least.min(value);
            }
        }
        let medians = best
            .into_iter()
            .filter_map(|(network, ports)| Some((network, median(ports.into_values())?)));
        Self(medians.collect())
    }

    fn on(&self, way: &Directed<'_>) -> Option<f64> {
        self.0.get(&network(way)).copied()
    }
}

fn tell(fleet: &Fleet, ways: &[Directed<'_>], kind: &Kind<'_>, blame: &Blame) -> Finding {
    let name = |end: End<'_>| format!("{} {}", fleet.hosts[end.host].name, end.port.interface);
    let first = &ways[blame.ways[0]];
    let (subject, place) = match (blame.port(ways), blame.culprit) {
        (Some(port), Culprit::Port { sends, receives }) => {
            let way = match (sends, receives) {
                (true, true) => "both ways",
                (true, false) => "as a sender",
                _ => "as a receiver",
            };
            (name(port), format!("with all others, {way}"))
        }
        (_, Culprit::Between) => (
            format!("{} - {}", name(first.from), name(first.to)),
            "both ends are well with others".to_owned(),
        ),
        (_, Culprit::All) => (
            "all".to_owned(),
            format!("on all {} ways", blame.ways.len()),
        ),
        _ => (
            format!("{} - {}", name(first.from), name(first.to)),
            "one of both ends, or what is between".to_owned(),
        ),
    };
    let mut draft = finding(
        kind.of,
        kind.severity,
        &subject,
        format!("{}: {place}", (kind.what)(first)),
    );
    for &way in blame.ways.iter().take(6) {
        let way = &ways[way];
        draft = draft.saw(
            format!("probe {} to {}", name(way.from), name(way.to)),
            (kind.what)(way),
        );
    }
    let cause = cause(fleet, ways, kind, blame);
    draft.0.evidence.extend(cause.evidence);
    draft.0.remedy.push(Step::act(cause.words));
    draft.0.confidence = match blame.culprit {
        Culprit::Either => Confidence::Unverified,
        _ => Confidence::Likely,
    };
    // What is only busy has a finding of its own.
    if cause.busy {
        draft.0.severity = Severity::Note;
    }
    draft.0
}

/// Which part it is.
struct Cause {
    /// Its name, and what to do about it.
    words: String,
    evidence: Vec<Evidence>,
    /// It may be nothing but others that take the host's processors.
    busy: bool,
}

impl Cause {
    fn of(words: impl Into<String>, evidence: Vec<Evidence>) -> Self {
        Self {
            words: words.into(),
            evidence,
            busy: false,
        }
    }
}

/// A host on whose processors others were while the wires were measured, if that slows down what was measured.
fn busy(fleet: &Fleet, kind: &Kind<'_>, host: usize) -> Option<Cause> {
    let Host { name, wired, .. } = &fleet.hosts[host];
    let depends = [SLOW.id, RDMA.id, LATENCY.id].contains(&kind.of.id);
    let strain = wired.as_ref().filter(|strain| depends && strain.busy())?;
    let evidence = strain.evidence().into_iter();
    let evidence =
        evidence.map(|(source, value)| Evidence::new(format!("{source} on {name}"), value));
    let words = format!(
        "host: the processors of {name} were busy meanwhile, which slows down a probe as much as a bad wire would: end what \
         takes them, and measure again"
    );
    Some(Cause {
        busy: true,
        ..Cause::of(words, evidence.collect())
    })
}

/// Which part explains it, and what to do about it.
fn cause(fleet: &Fleet, ways: &[Directed<'_>], kind: &Kind<'_>, blame: &Blame) -> Cause {
    let Some(port) = blame.port(ways) else {
        let first = &ways[blame.ways[0]];
        let ends = [first.from.host, first.to.host];
        if let Some(busy) = ends.into_iter().find_map(|host| busy(fleet, kind, host)) {
            return busy;
        }
        let words = match blame.culprit {
            Culprit::Between => {
                "switch: see the counters, the maps and the queues of the switches between the two"
            }
            Culprit::All => {
                "fabric: see the settings that all switches have in common, and what hosts expect of them"
            }
            _ => "measure with a third host: it tells which end it is",
        };
        return Cause::of(words, Vec::new());
    };
    let host = &fleet.hosts[port.host].name;
    let interface = &port.port.interface;
    // Those of its network: others are as they are by design.
    let networks: Vec<_> = blame.ways.iter().map(|&way| network(&ways[way])).collect();
    let alike = |way: &&Directed<'_>| networks.contains(&network(way));
    let ends = || ways.iter().filter(alike).flat_map(|way| [way.from, way.to]);
    if kind.of.id == MTU.id {
        let others: Vec<f64> = ends()
            .filter(|end| end.host != port.host)
            .filter_map(|end| end.port.mtu)
            .map(f64::from)
            .collect();
        let usual = median(others);
        if let (Some(own), Some(usual)) = (port.port.mtu, usual)
            && f64::from(own) < usual
        {
            let evidence = Evidence::new(
                format!("/sys/class/net/{interface}/mtu on {host}"),
                own.to_string(),
            );
            return Cause::of(
                format!("host: ip link set dev {interface} mtu {usual}, as the others have it"),
                vec![evidence],
            );
        }
        return Cause::of(
            "switch: its port to this host takes less than the host sends; set it to the largest that it can",
            Vec::new(),
        );
    }
    if kind.of.id == MARK.id {
        return Cause::of(
            "switch: its port to this host, or the host's own rules, rewrite the mark; have it trust the DSCP (ringway fabric config)",
            Vec::new(),
        );
    }
    let errors: Vec<Evidence> = ends()
        .filter(|end| end.key() == port.key())
        .flat_map(|end| &end.port.errors)
        .map(|(counter, rise)| {
            Evidence::new(format!("{counter} on {host}"), format!("rose by {rise}"))
        })
        .collect();
    if !errors.is_empty() {
        return Cause::of(
            format!(
                "cable or module of {interface}: errors on the wire were counted; reseat or replace them"
            ),
            errors,
        );
    }
    let usual = median(ends().filter_map(|end| end.port.speed));
    if let (Some(own), Some(usual)) = (port.port.speed, usual)
        && own < usual
    {
        let evidence = Evidence::new(
            format!("/sys/class/net/{interface}/speed on {host}"),
            format!("{:.0} Gb/s", own / 1e9),
        );
        return Cause::of(
            format!(
                "NIC or cable: the link came up at {:.0} Gb/s in place of {:.0}",
                own / 1e9,
                usual / 1e9
            ),
            vec![evidence],
        );
    }
    if let Some(busy) = busy(fleet, kind, port.host) {
        return busy;
    }
    // A host explains as much as it is slower itself.
    let worst = blame.ways.iter().filter_map(|&way| (kind.bad)(&ways[way]));
    let worst = worst.fold(0.0, f64::max);
    if let Some(pace) = work::pace(&fleet.hosts, port.host)
        && loss(pace) > 0.0
        && 1.0 - worst > pace / 2.0
    {
        let share = format!("{:.0} % of what is usual", 100.0 * pace);
        return Cause::of(
            "host: its processor or memory is slow, too, and keeps the NIC waiting",
            vec![Evidence::new(
                format!("computation or copies on {host}"),
                share,
            )],
        );
    }
    Cause::of(
        "NIC, cable or the switch's port to it: no counter of the host tells which; swap its cable with that of a host that is well",
        Vec::new(),
    )
}

/// Whether a mark came as it was sent. A switch that sees congestion changes ECT into CE, as it should.
fn kept(sent: u8, came: Option<u8>) -> bool {
    came.is_some_and(|came| came == sent || came == sent | 3 && sent & 3 != 0)
}

fn marks(sent: u8, came: Option<u8>) -> String {
    let words = |tos: u8| format!("DSCP {} ECN {}", tos >> 2, tos & 3);
    let came = came.map_or_else(|| "not at all".to_owned(), words);
    format!("packets of {} arrive as {came}", words(sent))
}

fn gigabytes(rate: f64) -> String {
    format!("{:.3} GB/s", rate / 1e9)
}

/// RDMA that does not work where datagrams do.
fn broken_rdma(fleet: &Fleet) -> Vec<Finding> {
    let paths = fleet
        .pairs
        .iter()
        .flat_map(|pair| pair.paths.iter().map(move |path| (pair, path)));
    let broken = paths.filter_map(|(pair, path)| {
        let reason = path.rdma_trouble.as_ref()?;
        let (a, b) = (&fleet.hosts[pair.a].name, &fleet.hosts[pair.b].name);
        let subject = format!("{a} {} - {b} {}", path.at_a.interface, path.at_b.interface);
        let text = "datagrams are answered, and RDMA between the devices of both interfaces does not work";
        Some(
            finding(&RDMA, Severity::Error, &subject, text.to_owned())
                .saw(format!("ringway perf between {a} and {b}"), reason)
                .act(format!("see what ringway doctor says of both hosts, then try by hand: ringway perf write bw on {b}, and ringway perf write bw {} on {a}", path.at_b.address))
                .likely()
                .0,
        )
    });
    broken.collect()
}

fn clocks(fleet: &Fleet) -> Vec<Finding> {
    let pairs = fleet.pairs.iter().filter_map(|pair| {
        let offset = pair.paths.iter().find_map(|path| path.clock)?;
        Some((pair, offset)).filter(|_| offset.abs() > CLOCKS)
    });
    pairs
        .map(|(pair, offset)| {
            let (a, b) = (&fleet.hosts[pair.a].name, &fleet.hosts[pair.b].name);
            finding(
                &CLOCK,
                Severity::Note,
                &format!("{a} - {b}"),
                format!("the clock of {b} is {offset:+.3} s from that of {a}"),
            )
            .saw(format!("probe {a} to {b}"), format!("{offset:+.3} s"))
            .act("see chronyc tracking, or timedatectl, on both")
            .0
        })
        .collect()
}
