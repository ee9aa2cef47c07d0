//! Files as they were read, and places in them.

use std::sync::Arc;

use crate::finding::Evidence;

/// Characters of a line that are shown.
const WIDEST: usize = 300;

/// Of so many lines one has its place kept: of short ones all places would take more memory than the text.
const STRIDE: usize = 64;

/// A line of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Place {
    file: u32,
    /// From 1.
    line: u32,
}

/// A value with the line that says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct At<T> {
    pub(super) value: T,
    pub(super) place: Place,
}

impl<T> At<T> {
    pub(super) const fn new(value: T, place: Place) -> Self {
        Self { value, place }
    }
}

/// The files of a run.
#[derive(Debug, Default)]
pub(super) struct Sources(Vec<Source>);

#[derive(Debug)]
struct Source {
    name: String,
    text: Arc<str>,
    /// Where every line of [`STRIDE`] begins, in bytes.
    lines: Vec<usize>,
}

impl Sources {
    /// Adds a file; the result is its number.
    pub(super) fn add(&mut self, name: &str, text: &Arc<str>) -> u32 {
        let begins = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1));
        self.0.push(Source {
            name: name.to_owned(),
            text: Arc::clone(text),
            lines: begins.step_by(STRIDE).collect(),
        });
        u32::try_from(self.0.len() - 1).unwrap_or(u32::MAX)
    }

    pub(super) fn name(&self, place: Place) -> &str {
        self.0
            .get(place.file as usize)
            .map_or("", |source| &source.name)
    }

    /// What the line says.
    pub(super) fn evidence(&self, place: Place) -> Evidence {
        let Some(source) = self.0.get(place.file as usize) else {
            return Evidence::new("", "");
        };
        let index = (place.line as usize).saturating_sub(1);
        let begin = source.lines.get(index / STRIDE);
        let line = begin
            .and_then(|begin| source.text[*begin..].lines().nth(index % STRIDE))
            .unwrap_or("");
        // A line of a file that is none would fill the screen.
        let line: String = line.trim().chars().take(WIDEST).collect();
        Evidence::line(&source.name, place.line as usize, line)
    }
}

impl Place {
    pub(super) const fn new(file: u32, line: u32) -> Self {
        Self { file, line }
    }

    /// Another line of the same file.
    pub(super) const fn line(self, line: u32) -> Self {
        Self { line, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_found() {
        let lines: Vec<String> = (1..=3 * STRIDE)
            .map(|line| format!("  line {line}"))
            .collect();
        for end in ["", "\n", "\r\n"] {
            let mut sources = Sources::default();
            let file = sources.add("some", &Arc::from(lines.join("\n") + end));
            let of = |line: usize| sources.evidence(Place::new(file, line as u32)).value;
            for line in 1..=lines.len() {
                assert_eq!(of(line), format!("line {line}"));
            }
            assert_eq!(of(0), "line 1");
            assert_eq!(of(lines.len() + 2), "");
        }
    }
}
