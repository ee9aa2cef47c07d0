//! Hosts side by side: what differs between them, which of them is slow, and whether it is the host, its NIC or cable, or a
//! switch.
//!
//! Nothing is measured here: whoever has measured hands in a [`Fleet`].

mod blame;
mod common;
pub mod datagram;
mod differ;
mod flows;
mod strain;
mod wires;
mod work;

use serde::{Deserialize, Serialize};

use crate::{
    finding::{Confidence, Evidence, Finding, Severity, Step, Unjudged},
    host::Item,
    report::Report,
};

pub use common::{Common, common};
pub use differ::{Difference, differences};
pub use strain::{Burner, Strain};

/// What all ranks have said and measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Fleet {
    /// The hosts, in the order of their first ranks.
    pub hosts: Vec<Host>,
    /// What was measured between two hosts.
    pub pairs: Vec<Pair>,
    /// Ranks that have said nothing, or no more.
    pub missing: Vec<Missing>,
}

/// A host and its ranks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// Its name, which no other host of the fleet has.
    pub name: String,
    /// The ranks that run there.
    pub ranks: Vec<usize>,
    /// What the doctor has found, and what the host is made of; none if its first rank has not said it.
    pub look: Option<Look>,
    /// What each of its ranks has computed, as far as they have said it.
    pub work: Vec<(usize, Work)>,
    /// What others took of its processors while the wires were measured; none if they were not.
    pub wired: Option<Strain>,
}

/// What a rank has seen of its host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Look {
    /// The findings.
    pub report: Report,
    /// What it is made of.
    pub items: Vec<Item>,
}

/// The rates of a rank's processor and memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// Floating-point operations per second.
    pub compute: Rate,
    /// Bytes copied per second.
    pub memory: Rate,
    /// What others took of the processors meanwhile.
    pub strain: Strain,
}

/// Of several runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// The quickest, per second that the rank had a CPU: what the hardware does.
    pub best: f64,
    /// The median, per second of the clock: what is left of it when others want it, too.
    pub typical: f64,
}

/// Two hosts, by their place in [`Fleet::hosts`], and the ways between them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    /// One.
    pub a: usize,
    /// The other.
    pub b: usize,
    /// One for each network that both are on.
    pub paths: Vec<Path>,
    /// Why there is none, or not all of it was measured.
    pub trouble: Option<String>,
}

/// A way between two hosts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Path {
    /// The interface and address of `a`.
    pub at_a: Port,
    /// The interface and address of `b`.
    pub at_b: Port,
    /// From `a` to `b`.
    pub there: Way,
    /// From `b` to `a`.
    pub back: Way,
    /// Seconds from `a` to `b` and back, at best and typically; none if nothing came back.
    pub round_trip: Option<(f64, f64)>,
    /// Datagrams sent and answered by source port: routers that have several ways choose by it.
    pub flows: Vec<Flow>,
    /// By how many seconds the clock of `b` is ahead of that of `a`.
    pub clock: Option<f64>,
    /// RDMA between the devices of both interfaces; none if there is none at either end, or it was not asked for.
    pub rdma: Option<Rdma>,
    /// Why RDMA between them does not work.
    pub rdma_trouble: Option<String>,
}

/// RDMA on a way.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rdma {
    /// The devices of `a` and `b`.
    pub devices: [String; 2],
    /// Bytes per second from `a` to `b`, by RDMA WRITE.
    pub there: f64,
    /// Bytes per second from `b` to `a`, by RDMA READ.
    pub back: f64,
    /// Seconds from `a` to `b` at best: half a round trip of RDMA WRITE.
    pub latency: f64,
}

/// A network interface, as its host has it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Port {
    /// Its name.
    pub interface: String,
    /// The address that was used.
    pub address: String,
    /// The largest packet that it takes, in bytes.
    pub mtu: Option<u32>,
    /// Bits per second, if it is a card's.
    pub speed: Option<f64>,
    /// Errors on the wire that it counted while this was measured, by counter.
    pub errors: Vec<(String, u64)>,
}

/// One direction.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Way {
    /// Bytes per second, by TCP; none if it was not measured.
    pub bandwidth: Option<f64>,
    /// Datagrams sent, those that arrived, and those that arrived after a later one.
    pub sent: u64,
    /// Those that arrived.
    pub arrived: u64,
    /// Those that arrived after one that was sent later.
    pub reordered: u64,
    /// The type of service that marked packets were sent with.
    pub marked: u8,
    /// That with which they arrived; none if none did.
    pub mark: Option<u8>,
    /// The largest packet that arrived, in bytes; none if it was not measured.
    pub mtu: Option<u32>,
}

/// A source port.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Flow {
    /// The port.
    pub port: u16,
    /// Datagrams sent.
    pub sent: u64,
    /// Answers.
    pub answered: u64,
    /// Seconds of the quickest round trip.
    pub best: Option<f64>,
    /// The addresses of the routers on the way, the first one's first, as far as they have said them.
    pub hops: Vec<Option<String>>,
}

/// A rank that is not heard of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// Its number.
    pub rank: usize,
    /// Where it runs: the name of [`Host::name`].
    pub host: String,
    /// What it was asked for.
    pub during: String,
    /// What is known of it.
    pub reason: String,
}

/// Something that a fleet is looked at for: an entry of the table that `docs/doctor.md` shows.
pub struct Aspect {
    /// `fleet.name`.
    pub id: &'static str,
    /// What shows it.
    pub sign: &'static str,
    /// Why it matters, in one line.
    pub why: &'static str,
    /// Where that is from.
    pub source: &'static str,
}

/// All of them.
pub const ASPECTS: &[Aspect] = &[
    MISSING,
    differ::DIFFERS,
    work::SLOW,
    work::BUSY,
    wires::SLOW,
    wires::LOSS,
    wires::ORDER,
    wires::MARK,
    wires::MTU,
    flows::FLOWS,
    flows::SPREAD,
    wires::RDMA,
    wires::LATENCY,
    wires::CLOCK,
];

const MISSING: Aspect = Aspect {
    id: "fleet.missing",
    sign: "a rank that says nothing until its deadline, or whose connection ends",
    why: "a job waits for all of its ranks",
    source: "Ringway, docs/settings.md: failure_after",
};

/// What is wrong with the fleet as a whole, the worst first. What each host has by itself is in [`common()`].
pub fn judge(fleet: &Fleet) -> Report {
    let mut findings: Vec<Finding> = fleet.missing.iter().map(missing).collect();
    findings.extend(differ::judge(&fleet.hosts));
    findings.extend(wires::judge(fleet));
    findings.extend(flows::judge(fleet));
    findings.extend(work::judge(&fleet.hosts));
    let silent = fleet.pairs.iter().filter_map(|pair| {
        let (a, b) = (&fleet.hosts[pair.a].name, &fleet.hosts[pair.b].name);
        Some(Unjudged {
            check: wires::SLOW.id.into(),
            subject: format!("{a} - {b}"),
            reason: pair.trouble.clone()?,
            ask: vec![Step::act(format!(
                "see the addresses and routes of both (ip address; ip route get ADDRESS), and what may keep UDP from {b}: a firewall"
            ))],
        })
    });
    let mut report = Report {
        findings,
        unjudged: silent.collect(),
        checks: ASPECTS.len(),
    };
    report.sort();
    report
}

fn missing(missing: &Missing) -> Finding {
    let text = format!(
        "rank {} (host {}) said nothing when asked for {}",
        missing.rank, missing.host, missing.during
    );
    let subject = format!("rank {} of {}", missing.rank, missing.host);
    finding(&MISSING, Severity::Error, &subject, text)
        .saw(format!("rank {}", missing.rank), &missing.reason)
        .act("see its output and its host's log; then run this again")
        .0
}

/// A finding that is being told.
struct Draft(Finding);

fn finding(of: &Aspect, severity: Severity, subject: &str, problem: String) -> Draft {
    Draft(Finding {
        check: of.id.into(),
        severity,
        confidence: Confidence::Certain,
        subject: subject.to_owned(),
        problem,
        why: of.why.into(),
        evidence: Vec::new(),
        remedy: Vec::new(),
        rollback: Vec::new(),
    })
}

impl Draft {
    fn saw(mut self, source: impl Into<String>, value: impl Into<String>) -> Self {
        self.0.evidence.push(Evidence::new(source, value));
        self
    }

    fn act(mut self, text: impl Into<String>) -> Self {
        self.0.remedy.push(Step::act(text));
        self
    }

    fn likely(mut self) -> Self {
        self.0.confidence = Confidence::Likely;
        self
    }
}

/// `a, b, c and 7 more`.
fn few(names: &[&str]) -> String {
    const MOST: usize = 4;
    let mut text = names[..names.len().min(MOST)].join(", ");
    if names.len() > MOST {
        text += &format!(" and {} more", names.len() - MOST);
    }
    text
}

/// The median; the lower of two in the middle. None of nothing.
fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().filter(|it| it.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied()
}
