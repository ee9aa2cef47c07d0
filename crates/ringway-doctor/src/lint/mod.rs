//! Contradictions between configurations: of switches, hosts and applications, along the way of a packet.
//!
//! Files of every system become statements (`statement`), a table of commands for each system (`grammar`, `read`) makes of
//! them one model (`model`), and `rules` judge that.
#![allow(
    clippy::or_fun_call,
    reason = "At::new only puts two values side by side"
)]

mod detect;
mod grammar;
mod manifests;
mod model;
mod notes;
mod read;
mod rules;
mod source;
mod statement;

use std::{collections::BTreeMap, path::Path, rc::Rc, sync::Arc};

pub use detect::{Kind, detect};

use crate::{
    config::Target,
    intent::Intent,
    report::{Report, UNREAD},
};
use model::{Fabric, Host, Switch};
use notes::{Notes, PURPOSE};
use read::host::TreeFile;
use source::{Place, Sources};
use statement::Statement;

/// A file to be looked at.
#[derive(Clone, Debug)]
pub struct Input {
    /// Its name in findings.
    pub name: String,
    /// What it says.
    pub text: Arc<str>,
    /// What it is; found out if it is none.
    pub kind: Option<Kind>,
    /// For a file of a recorded tree of a host: the tree's name, and the path in it.
    pub tree: Option<(String, String)>,
}

impl Input {
    /// A file by itself. A byte order mark in front, as some editors write it, is no part of the text.
    pub fn new(name: impl Into<String>, text: impl Into<Arc<str>>) -> Self {
        let text = text.into();
        Self {
            name: name.into(),
            text: text
                .strip_prefix('\u{feff}')
                .map_or(text.clone(), Arc::from),
            kind: None,
            tree: None,
        }
    }
}

/// Looks at all files together. A file that is of no known kind stays [unread](Report::unread).
pub fn lint(inputs: &[Input]) -> Report {
    let (mut sources, mut notes, mut fabric) =
        (Sources::default(), Notes::default(), Fabric::default());
    let mut trees: BTreeMap<&str, Vec<TreeFile<'_>>> = BTreeMap::new();
    for input in inputs {
        let place = Place::new(sources.add(&input.name, &input.text), 1);
        match &input.tree {
            Some((tree, path)) => trees.entry(tree).or_default().push(TreeFile {
                path,
                text: &input.text,
                place,
            }),
            None => one(input, place, &mut fabric, &mut notes),
        }
    }
    for files in trees.values() {
        if let Some(first) = files.first() {
            fabric.hosts.push(read::host::tree(files, first.place));
        }
    }
    rules::judge(&fabric, &sources, &mut notes);
    notes.nothing_judged();
    notes.report(&sources)
}

fn one(input: &Input, place: Place, fabric: &mut Fabric, notes: &mut Notes) {
    let text = &input.text;
    match input.kind.or_else(|| detect(text)) {
        Some(Kind::Switch(system)) => fabric.switches.extend(switch(text, system, place, notes)),
        Some(Kind::Host) => {
            let statements = statement::lines(text, &['#']);
            fabric.hosts.push(read::host::script(statements, place, notes));
        }
        Some(Kind::Application) => {
            let (needs, markings) = read::application::read(text, place, notes);
            fabric.needs.push(needs);
            fabric.markings.extend(markings);
        }
        Some(Kind::Manifest) => {
            let (needs, markings, manifests) = read::manifest::read(text, place, notes);
            fabric.needs.push(needs);
            fabric.markings.extend(markings);
            fabric.manifests.push(manifests);
        }
        Some(Kind::Unit) => fabric.needs.push(read::unit::read(text, place, notes)),
        Some(Kind::Aside) => notes.cannot(
            PURPOSE,
            input.name.clone(),
            "it undoes or shows what a configuration sets, and sets nothing itself: give the configuration",
        ),
        Some(Kind::Intent) => match Intent::parse(text, Path::new(&input.name)) {
            Ok(intent) => fabric.intents.push((place, Rc::new(intent))),
            Err(error) => notes.error(
                "file.syntax",
                input.name.clone(),
                error.to_string(),
                "nothing can be compared with an intent that cannot be read",
                [place.line(error.line().max(1))],
                "correct the intent: ringway fabric config says the same",
            ),
        },
        None if text.trim().is_empty() => {
            notes.cannot(UNREAD, input.name.clone(), "it is empty: did the command that wrote it fail?");
        }
        None => notes.cannot(
            UNREAD,
            input.name.clone(),
            "it is of no kind that is known; say which: nxos:FILE, sonic:, eos:, nvue:, onyx:, os10:, junos:, host:, \
             host-unit:, k8s:, slurm:, env: or intent:FILE",
        ),
    }
}

/// The switch that a configuration is of; none if it is no such text.
fn switch(text: &str, system: Target, place: Place, notes: &mut Notes) -> Option<Switch> {
    let parsed = |parsed: Result<Vec<Statement>, (u32, String)>, notes: &mut Notes| match parsed {
        Ok(statements) => Some(statements),
        Err((line, error)) => {
            notes.error(
                "file.syntax",
                system.name(),
                error,
                "the switch refuses the file",
                [place.line(line.max(1))],
                "correct the syntax",
            );
            None
        }
    };
    let tree = |notes: &mut Notes| parsed(statement::tree(text), notes);
    Some(match system {
        Target::Sonic => read::sonic::read(&tree(notes)?, place, notes),
        Target::Nvue => read::nvue::read(nvue(text, notes, tree)?, place, notes),
        Target::Junos => read::junos::read(&parsed(statement::junos(text), notes)?, place, notes),
        Target::Onyx => read::onyx::read(&statement::lines(text, &['#', '!']), place, notes),
        Target::Os10 => read::os10::read(&statement::lines(text, &['!', '#']), place, notes),
        Target::Eos => read::eos::read(&statement::lines(text, &['!', '#']), place, notes),
        _ => read::nxos::read(&statement::lines(text, &['!', '#']), place, notes),
    })
}

/// NVUE's statements, of `nv set` lines or of YAML, without what they begin with.
fn nvue(
    text: &str,
    notes: &mut Notes,
    tree: impl Fn(&mut Notes) -> Option<Vec<Statement>>,
) -> Option<Vec<Statement>> {
    let commands = text
        .lines()
        .any(|line| line.trim_start().starts_with("nv set "));
    let mut statements = if commands {
        statement::lines(text, &['#'])
    } else {
        tree(notes)?
    };
    let begin: &[&str] = if commands { &["nv", "set"] } else { &["set"] };
    statements.retain_mut(|statement| {
        let ours = statement.words.len() > begin.len()
            && statement.words.iter().zip(begin).all(|(a, b)| a == b);
        if ours {
            statement.words.drain(..begin.len());
            statement.indent = 0;
        }
        ours
    });
    Some(statements)
}

/// What the generator wrote, as the model has it.
fn read_back(text: &str, system: Target, place: Place) -> Option<Switch> {
    switch(text, system, place, &mut Notes::default())
}

/// The same for hosts.
fn read_back_host(text: &str, place: Place) -> Host {
    read::host::script(statement::lines(text, &['#']), place, &mut Notes::default())
}
