//! What came of a replay.

use std::{collections::BTreeMap, time::Duration};

use ringway::{Form, Recording};

use super::program::{Played, Program};
use crate::{
    size,
    table::{Side, table},
};

pub(super) struct Report<'a> {
    pub(super) recording: &'a Recording,
    pub(super) played: &'a [Played],
    pub(super) program: Program,
    pub(super) fabric: &'a str,
    pub(super) ranks: usize,
    pub(super) hosts: usize,
    pub(super) steps: Option<usize>,
}

/// Operations that are alike.
#[derive(Default)]
struct Kind {
    times: u32,
    /// That ended, and how long they took together.
    ended: u32,
    recorded: Duration,
    replayed: Duration,
}

/// What they do, bytes, the algorithms of both, and whether they keep their time.
type Key = (String, usize, &'static str, &'static str, bool);

impl Report<'_> {
    fn kinds(&self) -> BTreeMap<Key, Kind> {
        let mut kinds: BTreeMap<Key, Kind> = BTreeMap::new();
        for (call, played) in self.recording.calls.iter().zip(self.played) {
            let what = match call.form {
                Form::Pair => "message".to_owned(),
                Form::Uneven => format!("{} (v form)", call.collective.name()),
                Form::Even => call.collective.name().to_owned(),
            };
            let key = (
                what,
                call.bytes,
                call.algorithm.name(),
                played.algorithm.name(),
                played.is_kept,
            );
            let kind = kinds.entry(key).or_default();
            kind.times += 1;
            kind.replayed += played.time;
            if let Some(end) = call.end {
                kind.ended += 1;
                kind.recorded += end.saturating_sub(call.begin);
            }
        }
        kinds
    }

    fn bytes(&self) -> u64 {
        let bytes = self.recording.calls.iter().map(|c| c.bytes as u64);
        bytes.fold(0, u64::saturating_add)
    }

    pub(super) fn as_text(&self) -> String {
        let recording = self.recording;
        let mut text = format!(
            "recorded: {} operations, {} bytes, by {} ranks on {} hosts{}\nreplayed: on {}, {} ranks on {} hosts\n\n",
            recording.calls.len(),
            self.bytes(),
            recording.ranks,
            recording.hosts,
            match recording.is_whole {
                true => "",
                false => "; the recording has no end: the job died, or the file was full",
            },
            self.fabric,
            self.ranks,
            self.hosts,
        );
        let micros = |time: Duration| format!("{:.1}", time.as_secs_f64() * 1e6);
        let kinds = self.kinds();
        let rows: Vec<Vec<String>> = kinds
            .iter()
            .map(|((what, bytes, before, now, is_kept), kind)| {
                let recorded = kind.recorded / kind.ended.max(1);
                vec![
                    what.clone(),
                    size::show(*bytes),
                    kind.times.to_string(),
                    (*before).to_owned(),
                    micros(recorded),
                    match is_kept {
                        true => "(kept)".to_owned(),
                        false => (*now).to_owned(),
                    },
                    micros(kind.replayed / kind.times.max(1)),
                ]
            })
            .collect();
        text += &table(
            &[
                ("operation", Side::Left),
                ("size", Side::Right),
                ("times", Side::Right),
                ("recorded by", Side::Left),
                ("us each", Side::Right),
                ("replayed by", Side::Left),
                ("us each", Side::Right),
            ],
            &rows,
        );
        text.push('\n');
        let rows: Vec<Vec<String>> = self
            .totals()
            .into_iter()
            .map(|(what, before, now)| {
                let ratio = now.as_secs_f64() / before.as_secs_f64().max(1e-12);
                let millis = |time: Duration| format!("{:.3}", time.as_secs_f64() * 1e3);
                vec![
                    what.to_owned(),
                    millis(before),
                    millis(now),
                    format!("{ratio:.2}"),
                ]
            })
            .collect();
        text + &table(
            &[
                ("", Side::Left),
                ("recorded ms", Side::Right),
                ("replayed ms", Side::Right),
                ("ratio", Side::Right),
            ],
            &rows,
        )
    }

    fn totals(&self) -> Vec<(&'static str, Duration, Duration)> {
        let (before, now) = (Program::recorded(self.recording), self.program);
        let mut totals = vec![("whole", before.whole, now.whole)];
        if let Some(steps) = self.steps {
            let step = |whole: Duration| whole.div_f64(steps as f64);
            totals.push(("step", step(before.whole), step(now.whole)));
        }
        totals.extend([
            ("program's own", before.own, now.own),
            ("exposed communication", before.exposed, now.exposed),
            ("communication", before.communication, now.communication),
        ]);
        totals
    }

    pub(super) fn as_json(&self) -> serde_json::Value {
        let kinds = self.kinds();
        let operations: Vec<_> = kinds
            .iter()
            .map(|((what, bytes, before, now, is_kept), kind)| {
                serde_json::json!({
                    "operation": what,
                    "bytes": bytes,
                    "times": kind.times,
                    "recorded_algorithm": before,
                    "recorded_seconds": (kind.recorded / kind.ended.max(1)).as_secs_f64(),
                    "replayed_algorithm": now,
                    "replayed_seconds": (kind.replayed / kind.times.max(1)).as_secs_f64(),
                    "kept": is_kept,
                })
            })
            .collect();
        let program = |p: Program| {
            serde_json::json!({
                "seconds": p.whole.as_secs_f64(),
                "step_seconds": self.steps.map(|steps| p.whole.as_secs_f64() / steps as f64),
                "own_seconds": p.own.as_secs_f64(),
                "exposed_seconds": p.exposed.as_secs_f64(),
                "communication_seconds": p.communication.as_secs_f64(),
            })
        };
        serde_json::json!({
            "fabric": self.fabric,
            "ranks": self.ranks,
            "hosts": self.hosts,
            "recorded_ranks": self.recording.ranks,
            "recorded_hosts": self.recording.hosts,
            "whole": self.recording.is_whole,
            "calls": self.recording.calls.len(),
            "bytes": self.bytes(),
            "operations": operations,
            "recorded": program(Program::recorded(self.recording)),
            "replayed": program(self.program),
        })
    }
}
