//! What rising counters mean.

use std::{borrow::Cow, time::Duration};

use super::counters::{PortCounters, Sample};
use crate::finding::{Confidence, Evidence, Finding, Severity, Step};

/// What may be behind rising counters: an entry of the table that `docs/doctor.md` shows.
pub struct Cause {
    /// `watch.cause`.
    pub id: &'static str,
    /// What rises, in a few words.
    pub sign: &'static str,
    /// What it means, in one line.
    pub why: &'static str,
    /// Where that is from.
    pub source: &'static str,
    look: fn(&Rises<'_>) -> Option<Told>,
}

/// All of them, the worst first.
pub const CAUSES: &[Cause] = &[
    Cause {
        id: "watch.dropping_fabric",
        sign: "sequence errors, acknowledgements that do not come, retransmissions",
        why: "packets are lost on the way: a switch drops the class that RDMA is in, or a link is bad",
        source: "Linux, drivers/infiniband: hw/mlx5/counters.c, hw/bnxt_re/hw_counters.c, sw/rxe/rxe_hw_counters.c",
        look: dropping_fabric,
    },
    Cause {
        id: "watch.headroom",
        sign: "discards of a lossless priority in this card",
        why: "a lossless priority must never be discarded: the buffer is too small, or PFC is not answered",
        source: "Linux, Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst: rx_prioN_discards",
        look: headroom,
    },
    Cause {
        id: "watch.bad_link",
        sign: "ICRC, CRC and symbol errors",
        why: "what arrives is damaged: a cable, a module, or for ICRC errors alone a box that rewrites packets",
        source: "Linux, mlx5/counters.rst: rx_crc_errors_phy, rx_symbol_err_phy; IBTA annex A17: ICRC",
        look: bad_link,
    },
    Cause {
        id: "watch.wrong_class",
        sign: "bytes of RDMA in a lossy priority",
        why: "data is not marked, or mapped to another priority than the one that PFC protects",
        source: "Linux, mlx5/counters.rst: tx_prioN_bytes, tx_vport_rdma_unicast_bytes",
        look: wrong_class,
    },
    Cause {
        id: "watch.slow_receiver",
        sign: "pauses sent, receive requests that are missing",
        why: "this host takes data more slowly than it arrives, and stops the fabric: PCIe, NUMA, C-states, or the program",
        source: "Linux, mlx5/counters.rst: tx_prioN_pause, rx_out_of_buffer; IBTA volume 1, 9.7.5.2.8: RNR NAK",
        look: slow_receiver,
    },
    Cause {
        id: "watch.incast",
        sign: "packets marked for congestion that arrive here, CNPs sent",
        why: "many send to this host at once, and the switch's port to it is full",
        source: "Zhu and others, DCQCN, SIGCOMM 2015; mlx5: np_ecn_marked_roce_packets, np_cnp_sent",
        look: incast,
    },
    Cause {
        id: "watch.congested_path",
        sign: "CNPs received",
        why: "others say that what this host sends meets congestion: its rate is cut",
        source: "mlx5: rp_cnp_handled, rp_cnp_ignored; DCQCN, SIGCOMM 2015",
        look: congested_path,
    },
    Cause {
        id: "watch.paused",
        sign: "pauses received, without marks or CNPs",
        why: "the fabric stops this host and does not mark: ECN is off on the switch, or its threshold is above that of PFC",
        source: "IEEE 802.1Qbb; mlx5/counters.rst: rx_prioN_pause",
        look: paused,
    },
];

/// How much counters of a port have risen.
struct Rises<'a> {
    before: &'a PortCounters,
    after: &'a PortCounters,
}

/// What a cause was seen by.
struct Told {
    severity: Severity,
    confidence: Confidence,
    problem: String,
    seen: Vec<(String, u64)>,
    remedy: Vec<Step>,
}

impl Rises<'_> {
    fn of(&self, name: &str) -> u64 {
        self.after.rise(self.before, name)
    }

    /// Those of `names` that have risen.
    fn risen(&self, names: &[&str]) -> Vec<(String, u64)> {
        names
            .iter()
            .map(|name| ((*name).to_owned(), self.of(name)))
            .filter(|(_, rise)| *rise > 0)
            .collect()
    }

    /// The same for counters of priorities, where `#` stands for the priority.
    fn risen_by_priority(&self, name: &str) -> Vec<(String, u64)> {
        let names: Vec<String> = self
            .lossless()
            .iter()
            .map(|priority| name.replace('#', &priority.to_string()))
            .collect();
        self.risen(&names.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// The lossless priorities; all but 0 where they are not known.
    fn lossless(&self) -> Vec<u8> {
        if self.after.lossless.is_empty() {
            (1..8).collect()
        } else {
            self.after.lossless.clone()
        }
    }
}

/// What the counters say that rose between two samples, `elapsed` apart.
pub fn explain(before: &Sample, after: &Sample, elapsed: Duration) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (port, after) in after {
        let Some(before) = before.get(port) else {
            continue;
        };
        let rises = Rises { before, after };
        for cause in CAUSES {
            let Some(told) = (cause.look)(&rises) else {
                continue;
            };
            let seconds = elapsed.as_secs_f64().max(1e-3);
            let evidence = told.seen.iter().map(|(name, rise)| {
                let rate = *rise as f64 / seconds;
                Evidence::new(
                    after.source(name),
                    format!("{name} +{rise} ({rate:.0} a second)"),
                )
            });
            findings.push(Finding {
                check: Cow::Borrowed(cause.id),
                severity: told.severity,
                confidence: told.confidence,
                subject: port.clone(),
                problem: told.problem,
                why: Cow::Borrowed(cause.why),
                evidence: evidence.collect(),
                remedy: told.remedy,
                rollback: Vec::new(),
            });
        }
    }
    findings
}

const LOST: [&str; 13] = [
    "out_of_sequence",
    "packet_seq_err",
    "implied_nak_seq_err",
    "local_ack_timeout_err",
    "req_transport_retries_exceeded",
    "roce_adp_retrans_to",
    "to_retransmits",
    "seq_err_naks_rcvd",
    "oos_drop_count",
    "rx_roce_discards",
    // Soft RoCE's words.
    "out_of_seq_request",
    "rcvd_seq_err",
    "retry_exceeded_err",
];

const DAMAGED: [&str; 5] = [
    "rx_icrc_encapsulated",
    "rx_crc_errors_phy",
    "rx_symbol_err_phy",
    "symbol_error",
    "port_rcv_errors",
];

fn dropping_fabric(rises: &Rises<'_>) -> Option<Told> {
    let seen = rises.risen(&LOST);
    if seen.is_empty() {
        return None;
    }
    let at_home = !rises.risen(&DAMAGED).is_empty()
        || !rises.risen_by_priority("rx_prio#_discards").is_empty();
    Some(Told {
        severity: Severity::Error,
        confidence: if at_home {
            Confidence::Likely
        } else {
            Confidence::Certain
        },
        problem: "packets of RDMA are lost on the way".to_owned(),
        seen,
        remedy: vec![
            Step::run("ringway doctor --only qos"),
            Step::act(
                "see the switch's drops by queue; the class that data is marked for has to be no-drop on every hop",
            ),
        ],
    })
}

fn headroom(rises: &Rises<'_>) -> Option<Told> {
    let seen = rises.risen_by_priority("rx_prio#_discards");
    (!seen.is_empty()).then(|| Told {
        severity: Severity::Error,
        confidence: if rises.after.lossless.is_empty() {
            Confidence::Likely
        } else {
            Confidence::Certain
        },
        problem: "this card discards packets of a lossless priority".to_owned(),
        seen,
        remedy: vec![
            Step::act(
                "see that the switch has PFC on for it, and give the card the cable's length:",
            ),
            Step::run(format!(
                "mlnx_qos -i {} --cable_len METRES",
                rises.after.interface.as_deref().unwrap_or("INTERFACE")
            )),
        ],
    })
}

fn bad_link(rises: &Rises<'_>) -> Option<Told> {
    let seen = rises.risen(&DAMAGED);
    (!seen.is_empty()).then(|| Told {
        severity: Severity::Error,
        confidence: Confidence::Likely,
        problem: "packets arrive damaged".to_owned(),
        seen,
        remedy: vec![Step::act("clean or replace cable and module, on both ends")],
    })
}

fn wrong_class(rises: &Rises<'_>) -> Option<Told> {
    let rdma = rises.of("tx_vport_rdma_unicast_bytes");
    // Less than that is management.
    if rdma < 1 << 20 || rises.after.lossless.is_empty() {
        return None;
    }
    let bytes = |priority: u8| rises.of(&format!("tx_prio{priority}_bytes"));
    let lossless: u64 = rises.after.lossless.iter().map(|&it| bytes(it)).sum();
    let lossy = (0..8).filter(|it| !rises.after.lossless.contains(it));
    let (most, priority) = lossy.map(|it| (bytes(it), it)).max()?;
    if lossless * 2 > rdma || most * 2 < rdma {
        return None;
    }
    Some(Told {
        severity: Severity::Error,
        confidence: Confidence::Likely,
        problem: format!(
            "RDMA leaves in lossy priority {priority}: {:?} is lossless",
            rises.after.lossless
        ),
        seen: vec![
            ("tx_vport_rdma_unicast_bytes".to_owned(), rdma),
            (format!("tx_prio{priority}_bytes"), most),
        ],
        remedy: vec![Step::run("ringway doctor --only qos")],
    })
}

fn slow_receiver(rises: &Rises<'_>) -> Option<Told> {
    let mut seen = rises.risen_by_priority("tx_prio#_pause");
    let paused = !seen.is_empty();
    let starved = rises.risen(&[
        "out_of_buffer",
        "rx_out_of_buffer",
        "rnr_nak_retry_err",
        "req_rnr_retries_exceeded",
        "rnr_naks_rcvd",
        "rcvd_rnr_err",
        "send_rnr_err",
        "outbound_pci_stalled_wr",
    ]);
    let missing = !starved.is_empty();
    seen.extend(starved);
    let problem = match (paused, missing) {
        (false, false) => return None,
        (true, false) => "this host stops the fabric: it takes data too slowly",
        (false, true) => "the program has no receive request where data arrives",
        (true, true) => "this host stops the fabric, and the program lacks receive requests",
    };
    Some(Told {
        severity: Severity::Warning,
        confidence: Confidence::Likely,
        problem: problem.to_owned(),
        seen,
        remedy: vec![
            Step::run("ringway doctor --only pcie && ringway doctor --only cpu"),
            Step::act("if the program lacks requests: see whether it is held up by something else"),
        ],
    })
}

fn incast(rises: &Rises<'_>) -> Option<Told> {
    let seen = rises.risen(&["np_ecn_marked_roce_packets", "np_cnp_sent"]);
    (!seen.is_empty()).then(|| Told {
        severity: Severity::Note,
        confidence: Confidence::Likely,
        problem: "more arrives for this host than its port carries".to_owned(),
        seen,
        remedy: vec![Step::act(
            "this is what ECN is for; if it costs too much: fewer senders at once (another algorithm), or spread flows over more source ports",
        )],
    })
}

fn congested_path(rises: &Rises<'_>) -> Option<Told> {
    let ignored = rises.of("rp_cnp_ignored");
    if ignored > 0 {
        return Some(Told {
            severity: Severity::Warning,
            confidence: Confidence::Likely,
            problem: "this host gets CNPs and ignores them: DCQCN is off for the priority"
                .to_owned(),
            seen: rises.risen(&["rp_cnp_ignored", "rp_cnp_handled"]),
            remedy: vec![Step::run("ringway doctor --only qos")],
        });
    }
    let seen = rises.risen(&["rp_cnp_handled"]);
    (!seen.is_empty()).then(|| Told {
        severity: Severity::Note,
        confidence: Confidence::Certain,
        problem: "what this host sends meets congestion".to_owned(),
        seen,
        remedy: vec![Step::act(
            "watch the receivers: one of them will show incast, or be slow",
        )],
    })
}

fn paused(rises: &Rises<'_>) -> Option<Told> {
    let mut seen = rises.risen_by_priority("rx_prio#_pause");
    let marks = rises.risen(&[
        "np_ecn_marked_roce_packets",
        "rp_cnp_handled",
        "rp_cnp_ignored",
    ]);
    if seen.is_empty() || !marks.is_empty() {
        return None;
    }
    seen.extend(rises.risen_by_priority("rx_prio#_pause_duration"));
    Some(Told {
        severity: Severity::Warning,
        confidence: Confidence::Likely,
        problem: "the fabric pauses this host and marks nothing".to_owned(),
        seen,
        remedy: vec![
            Step::act(
                "see ECN on the switch: on the queue of the lossless class, with a threshold below the one that fires PFC",
            ),
            Step::act("and watch the receivers: a slow one stops all others"),
        ],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(counters: &[(&str, u64)]) -> Sample {
        let mut port = PortCounters {
            dir: "sys/class/infiniband/mlx5_0/ports/1".to_owned(),
            interface: Some("eth2".to_owned()),
            lossless: vec![3],
            ..PortCounters::default()
        };
        for (name, value) in counters {
            let ethernet = ["prio", "vport", "phy"].iter().any(|it| name.contains(it));
            let all = if ethernet {
                &mut port.ethernet
            } else {
                &mut port.rdma
            };
            all.insert((*name).to_owned(), *value);
        }
        Sample::from([("mlx5_0 port 1".to_owned(), port)])
    }

    /// The causes of counters that were 10 before.
    fn causes(counters: &[(&str, u64)]) -> Vec<String> {
        let before: Vec<_> = counters.iter().map(|(name, _)| (*name, 10)).collect();
        let after: Vec<_> = counters
            .iter()
            .map(|(name, rise)| (*name, 10 + rise))
            .collect();
        let found = explain(&sample(&before), &sample(&after), Duration::from_secs(2));
        found.into_iter().map(|it| it.check.into_owned()).collect()
    }

    #[test]
    fn each_counter_alone_has_its_cause() {
        for name in LOST {
            assert_eq!(causes(&[(name, 3)]), ["watch.dropping_fabric"], "{name}");
        }
        for name in DAMAGED {
            assert_eq!(causes(&[(name, 3)]), ["watch.bad_link"], "{name}");
        }
        for name in [
            "out_of_buffer",
            "rnr_nak_retry_err",
            "rcvd_rnr_err",
            "tx_prio3_pause",
        ] {
            assert_eq!(causes(&[(name, 3)]), ["watch.slow_receiver"], "{name}");
        }
        assert_eq!(causes(&[("rx_prio3_discards", 1)]), ["watch.headroom"]);
        assert_eq!(causes(&[("np_cnp_sent", 1)]), ["watch.incast"]);
        assert_eq!(causes(&[("rp_cnp_handled", 1)]), ["watch.congested_path"]);
        assert_eq!(causes(&[("rp_cnp_ignored", 1)]), ["watch.congested_path"]);
        assert_eq!(causes(&[("rx_prio3_pause", 1)]), ["watch.paused"]);
    }

    #[test]
    fn what_does_not_rise_or_is_lossy_means_nothing() {
        assert!(causes(&[("out_of_sequence", 0), ("np_cnp_sent", 0)]).is_empty());
        assert!(causes(&[("rx_prio0_discards", 5), ("tx_prio0_pause", 5)]).is_empty());
        assert!(causes(&[("port_xmit_data", 1 << 40)]).is_empty());
    }

    #[test]
    fn data_in_a_lossy_priority_is_the_wrong_class() {
        let with = |prio0, prio3| {
            causes(&[
                ("tx_vport_rdma_unicast_bytes", 1 << 30),
                ("tx_prio0_bytes", prio0),
                ("tx_prio3_bytes", prio3),
            ])
        };
        assert_eq!(with(1 << 30, 0), ["watch.wrong_class"]);
        assert!(with(1 << 20, 1 << 30).is_empty());
        // As much TCP beside it.
        assert!(with(1 << 30, 1 << 30).is_empty());
    }

    #[test]
    fn pauses_with_marks_are_congestion_and_not_a_fault() {
        let found = causes(&[("rx_prio3_pause", 9), ("rp_cnp_handled", 4)]);
        assert_eq!(found, ["watch.congested_path"]);
    }

    #[test]
    fn evidence_has_source_rise_and_rate() {
        let before = sample(&[("tx_prio3_pause", 0)]);
        let after = sample(&[("tx_prio3_pause", 100)]);
        let found = explain(&before, &after, Duration::from_secs(4));
        assert_eq!(
            found[0].evidence[0].to_string(),
            "ethtool -S eth2: tx_prio3_pause +100 (25 a second)"
        );
    }
}
