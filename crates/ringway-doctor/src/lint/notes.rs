//! What readers and rules have to say, gathered.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

use super::source::{At, Place, Sources};
use crate::{
    finding::{Confidence, Evidence, Finding, Severity, Step, Unjudged},
    report::{Report, UNREAD},
};

/// The check that a file is a configuration, and not what undoes or shows one.
pub(super) const PURPOSE: &str = "purpose";

/// A finding on its way: places in place of evidence.
#[derive(Debug)]
pub(super) struct Note {
    pub(super) check: &'static str,
    pub(super) severity: Severity,
    pub(super) confidence: Confidence,
    pub(super) subject: String,
    pub(super) problem: String,
    pub(super) why: &'static str,
    /// Lines that show it; for a contradiction, of both sides.
    pub(super) places: Vec<Place>,
    pub(super) remedy: String,
}

/// All notes of a run.
#[derive(Debug, Default)]
pub(super) struct Notes {
    notes: Vec<Note>,
    unjudged: Vec<(&'static str, String, String)>,
    judged: BTreeSet<&'static str>,
}

impl Notes {
    pub(super) fn add(&mut self, note: Note) {
        self.notes.push(note);
    }

    /// Something is wrong, for certain.
    pub(super) fn error(
        &mut self,
        check: &'static str,
        subject: impl Into<String>,
        problem: impl Into<String>,
        why: &'static str,
        places: impl Into<Vec<Place>>,
        remedy: impl Into<String>,
    ) {
        self.add(Note {
            check,
            severity: Severity::Error,
            confidence: Confidence::Certain,
            subject: subject.into(),
            problem: problem.into(),
            why,
            places: places.into(),
            remedy: remedy.into(),
        });
    }

    /// Something works less well than it could, or only by luck.
    pub(super) fn warning(
        &mut self,
        check: &'static str,
        subject: impl Into<String>,
        problem: impl Into<String>,
        why: &'static str,
        places: impl Into<Vec<Place>>,
        remedy: impl Into<String>,
    ) {
        self.error(check, subject, problem, why, places, remedy);
        if let Some(note) = self.notes.last_mut() {
            note.severity = Severity::Warning;
        }
    }

    /// A check had something to judge.
    pub(super) fn judged(&mut self, check: &'static str) {
        self.judged.insert(check);
    }

    /// Something could not be judged.
    pub(super) fn cannot(
        &mut self,
        check: &'static str,
        subject: impl Into<String>,
        reason: impl Into<String>,
    ) {
        self.unjudged.push((check, subject.into(), reason.into()));
    }

    /// Says so if all files were read, and no check had anything to judge.
    pub(super) fn nothing_judged(&mut self) {
        let mut unjudged = self.unjudged.iter();
        let told = unjudged.any(|(check, ..)| [UNREAD, PURPOSE].contains(check));
        if self.judged.is_empty() && self.notes.is_empty() && !told {
            self.cannot(
                "lint",
                "all files",
                "no check had anything to judge: expected ports of switches, NICs or settings of applications; give \
                 whole configurations, and those of both sides",
            );
        }
    }

    /// Code points whose class is said more than once.
    pub(super) fn twice(&mut self, twice: &[(u8, [At<u8>; 2])]) {
        for (dscp, [first, second]) in twice {
            self.warning(
                "map.twice",
                format!("DSCP {dscp}"),
                format!("DSCP {dscp} is mapped to {} and again to {}", first.value, second.value),
                "the last one counts, and whoever reads the first is misled; another code point may be missing",
                [first.place, second.place],
                "remove one; if it is a slip, correct the code point",
            );
        }
    }

    pub(super) fn unknown(&mut self, place: Place, words: &[String], mode: &str) {
        self.error(
            "command.unknown",
            mode_name(mode),
            format!("`{}` is no command that is known here", words.join(" ")),
            "a command that the system refuses leaves the rest of the configuration without it",
            [place],
            "correct it, or check it against the system's reference: not every command is known to this check",
        );
        if let Some(note) = self.notes.last_mut() {
            note.confidence = Confidence::Likely;
        }
    }

    pub(super) fn wrong_mode(&mut self, place: Place, words: &[String], mode: &str, right: &str) {
        self.error(
            "command.mode",
            mode_name(mode),
            format!(
                "`{}` stands in {}, and belongs into {}",
                words.join(" "),
                mode_name(mode),
                mode_name(right)
            ),
            "the system refuses it there, and the rest of the configuration goes without it",
            [place],
            format!("move it into {}", mode_name(right)),
        );
    }

    pub(super) fn out_of_range(&mut self, place: Place, word: &str, least: u32, most: u32) {
        self.error(
            "command.range",
            "number",
            format!("expected {least} to {most}, found {word}"),
            "the system refuses the command, and the rest of the configuration goes without it",
            [place],
            format!("take a number from {least} to {most}"),
        );
    }

    /// The findings, worst first and then by place, and what could not be judged. What is found at many ports in the
    /// same way is one finding with the places of the first.
    pub(super) fn report(self, sources: &Sources) -> Report {
        let mut groups: BTreeMap<_, (usize, Note)> = BTreeMap::new();
        for note in self.notes {
            let files: Vec<&str> = note
                .places
                .iter()
                .map(|place| sources.name(*place))
                .collect();
            let key = (
                std::cmp::Reverse(note.severity),
                files.join(" "),
                note.check,
                note.problem.clone(),
            );
            groups.entry(key).or_insert((0, note)).0 += 1;
        }
        let findings: Vec<Finding> = groups
            .into_values()
            .map(|(count, note)| Finding {
                check: Cow::Borrowed(note.check),
                severity: note.severity,
                confidence: note.confidence,
                subject: match count {
                    1 => note.subject,
                    _ => format!("{} and {} more", note.subject, count - 1),
                },
                problem: note.problem,
                why: Cow::Borrowed(note.why),
                evidence: evidence(&note.places, sources),
                remedy: vec![Step::act(note.remedy)],
                rollback: Vec::new(),
            })
            .collect();
        let mut unjudged = self.unjudged;
        unjudged.sort();
        unjudged.dedup();
        let unjudged: Vec<Unjudged> = unjudged
            .into_iter()
            .map(|(check, subject, reason)| Unjudged {
                check: Cow::Borrowed(check),
                subject,
                reason,
                ask: Vec::new(),
            })
            .collect();
        Report {
            findings,
            unjudged,
            checks: self.judged.len(),
        }
    }
}

fn evidence(places: &[Place], sources: &Sources) -> Vec<Evidence> {
    let mut seen: Vec<Place> = Vec::new();
    for place in places {
        if !seen.contains(place) {
            seen.push(*place);
        }
    }
    seen.into_iter()
        .map(|place| sources.evidence(place))
        .collect()
}

fn mode_name(mode: &str) -> String {
    match mode {
        "" => "the outermost mode".to_owned(),
        _ => format!("`{mode}`"),
    }
}

/// Things that are defined under a name and used by it.
#[derive(Debug)]
pub(super) struct Names<T> {
    /// What they are: "policy-map type qos".
    kind: &'static str,
    by_name: BTreeMap<String, (Place, T)>,
    used: Vec<At<String>>,
}

impl<T: Default> Names<T> {
    pub(super) const fn new(kind: &'static str) -> Self {
        Self {
            kind,
            by_name: BTreeMap::new(),
            used: Vec::new(),
        }
    }

    /// The thing of that name, new if there is none yet.
    pub(super) fn define(&mut self, name: &At<String>) -> &mut T {
        let entry = self.by_name.entry(name.value.clone());
        &mut entry.or_insert_with(|| (name.place, T::default())).1
    }

    /// Says that the name is used there.
    pub(super) fn uses(&mut self, name: &At<String>) {
        self.used.push(name.clone());
    }

    pub(super) fn get(&self, name: &str) -> Option<&T> {
        self.by_name.get(name).map(|(_, thing)| thing)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&String, Place, &T)> {
        self.by_name
            .iter()
            .map(|(name, (place, thing))| (name, *place, thing))
    }

    /// Notes names that are used and not defined, and those that are defined and not used. `builtin` are defined by
    /// the system itself.
    pub(super) fn check(&self, builtin: &[&str], notes: &mut Notes) {
        for name in &self.used {
            if !self.by_name.contains_key(&name.value) && !builtin.contains(&name.value.as_str()) {
                notes.error(
                    "reference.undefined",
                    name.value.clone(),
                    format!(
                        "{} `{}` is used, and defined nowhere",
                        self.kind, name.value
                    ),
                    "the system refuses the reference, or falls back on its default",
                    [name.place],
                    format!(
                        "define it, or correct the name; defined are {}",
                        self.known(builtin)
                    ),
                );
            }
        }
        for (name, (place, _)) in &self.by_name {
            if !self.used.iter().any(|used| used.value == *name)
                && !builtin.contains(&name.as_str())
            {
                notes.warning(
                    "reference.unused",
                    name.clone(),
                    format!("{} `{name}` is defined, and used nowhere", self.kind),
                    "what is not bound has no effect, however right it is",
                    [*place],
                    "bind it, or remove it",
                );
            }
        }
    }

    fn known(&self, builtin: &[&str]) -> String {
        let names = self.by_name.keys().map(String::as_str);
        let all: Vec<_> = names.chain(builtin.iter().copied()).take(8).collect();
        match all.is_empty() {
            true => "none".to_owned(),
            false => all.join(", "),
        }
    }
}
