//! What data is marked with, so that it goes in a lossless priority.

use std::collections::BTreeSet;

use super::{Advice, ports::Rail, seen};
use crate::{
    finding::{Evidence, Step},
    host::{
        checks::RINGWAY,
        facts::{Device, Host, Mark, Quality},
        parse::Trust,
    },
};

/// Where a mark comes from that no host tells.
const INTENDED: &str = "take the DSCP of the fabric's intent, times 4, plus 2 for ECT(0)";

/// Why no mark follows from the host.
struct Unknown {
    reason: String,
    evidence: Vec<Evidence>,
    ask: Vec<Step>,
}

pub(super) fn mark(host: &Host<'_>, rails: &[Rail<'_>], advice: &mut Advice) {
    match choose(host, rails) {
        Ok((tos, why, evidence)) => {
            let value = tos.to_string();
            advice
                .set("NCCL_IB_TC", &value, why)
                .all(evidence.clone())
                .likely();
            let why = "queue pairs that GPUs drive themselves have a setting of their own: they go where the others go";
            advice
                .set("NCCL_GIN_IB_TC", &value, why)
                .all(evidence)
                .likely();
        }
        Err(unknown) => advice.leave("NCCL_IB_TC", unknown.reason, unknown.evidence, unknown.ask),
    }
}

fn choose(host: &Host<'_>, rails: &[Rail<'_>]) -> Result<(u8, String, Vec<Evidence>), Unknown> {
    let qualities = rails
        .iter()
        .map(|rail| quality(host, rail))
        .collect::<Result<Vec<&Quality>, Unknown>>()?;
    let fits = |dscp: u8| {
        let lossless = |it: &&Quality| it.qos.lossless().contains(&it.qos.priority(dscp));
        qualities.iter().all(lossless)
    };
    let maps = |dscp: u8| {
        qualities.iter().map(move |it| {
            let (priority, lossless) = (it.qos.priority(dscp), it.qos.lossless());
            seen(
                it.source("app"),
                format!("DSCP {dscp} to priority {priority}; PFC on {lossless:?}"),
            )
        })
    };
    // What is stamped on data already is what the fabric was made for.
    let of_rails = |knob: &dyn Fn(&Device) -> Option<Mark>| -> Vec<Mark> {
        rails.iter().filter_map(|rail| knob(rail.device)).collect()
    };
    for (marks, words) in [
        (of_rails(&|device| host.global_mark(device)), "the driver"),
        (
            of_rails(&|device| host.connection_mark(device)),
            "connection management",
        ),
    ] {
        let tos: BTreeSet<u8> = marks.iter().map(|mark| mark.tos).collect();
        let Some(&tos) = tos.first().filter(|&&it| tos.len() == 1 && it != 0) else {
            continue;
        };
        if marks.len() == rails.len() && fits(tos >> 2) {
            let seen_marks = marks.iter().map(|mark| seen(&mark.source, &mark.value));
            let why = format!(
                "{words} marks data with it: DSCP {}, whose priority is lossless",
                tos >> 2
            );
            return Ok((tos, why, seen_marks.chain(maps(tos >> 2)).collect()));
        }
    }
    if fits(RINGWAY) {
        let why = format!(
            "DSCP {RINGWAY}, as RoCE is marked by custom, with ECT(0): its priority is lossless here; switches have to map it alike"
        );
        return Ok((RINGWAY << 2 | 2, why, maps(RINGWAY).collect()));
    }
    let fitting: Vec<u8> = (0..64).filter(|&dscp| fits(dscp)).collect();
    let evidence = maps(RINGWAY).collect();
    match fitting[..] {
        [] => Err(Unknown {
            reason: "no DSCP is lossless on all of these ports".to_owned(),
            evidence,
            ask: vec![Step::run("ringway doctor --only qos")],
        }),
        [dscp] => {
            let why = format!(
                "DSCP {dscp} with ECT(0): the only one whose priority is lossless on all of these ports"
            );
            Ok((dscp << 2 | 2, why, maps(dscp).collect()))
        }
        _ => Err(Unknown {
            reason: format!(
                "several DSCPs are lossless here ({}): which of them is so on the switches is not to be seen",
                list(&fitting)
            ),
            evidence,
            ask: vec![Step::act(INTENDED)],
        }),
    }
}

/// The quality of service of a port that priorities are taken from DSCPs at, some of them lossless.
fn quality<'a>(host: &'a Host<'_>, rail: &Rail<'_>) -> Result<&'a Quality, Unknown> {
    let name = &rail.device.name;
    let of_rail = |interface: &str| rail.port.netdevs.iter().any(|it| it == interface);
    let Some((interface, quality)) = host.quality().find(|(it, _)| of_rail(it)) else {
        let unread = host.unknown_quality().find(|(it, _)| of_rail(it));
        let reason = match unread {
            Some((interface, reason)) => {
                format!("the quality of service of {interface} cannot be read: {reason}")
            }
            None if rail.device.software => {
                format!("{name} is RDMA in software, which has no priorities")
            }
            None => format!("the priorities of {name} are its host's: they are not seen from here"),
        };
        let ask = match rail.port.netdevs.first() {
            Some(interface) if unread.is_some() => vec![
                Step::run(format!("mlnx_qos -i {interface}")),
                Step::run(format!(
                    "dcb app show dev {interface}; dcb pfc show dev {interface}"
                )),
            ],
            _ => vec![Step::act(INTENDED)],
        };
        return Err(Unknown {
            reason,
            evidence: Vec::new(),
            ask,
        });
    };
    let fault = if quality.qos.trust == Some(Trust::Pcp) {
        format!(
            "{interface} takes priorities from VLAN tags: what data is marked with changes nothing"
        )
    } else if quality.qos.lossless().is_empty() {
        format!("no priority of {interface} is lossless: a mark would lead nowhere")
    } else {
        return Ok(quality);
    };
    Err(Unknown {
        reason: fault,
        evidence: vec![seen(
            quality.source("pfc"),
            format!("PFC on {:?}", quality.qos.lossless()),
        )],
        ask: vec![Step::run("ringway doctor --only qos")],
    })
}

fn list(numbers: &[u8]) -> String {
    let words: Vec<String> = numbers.iter().map(u8::to_string).collect();
    words.join(", ")
}
