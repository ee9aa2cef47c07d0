//! The few SVG elements that this command's pictures consist of.

use std::fmt::Write as _;

/// A picture under construction. Light and dark come from the reader's settings.
pub(crate) struct Svg {
    width: f64,
    height: f64,
    body: String,
}

const STYLE: &str = "
  svg { font: 12px system-ui, sans-serif; background: #fff; color: #222 }
  text { fill: currentColor }
  .axis { stroke: currentColor; stroke-opacity: .35 }
  .line { fill: none; stroke-width: 2 }
  .title { font-size: 14px; font-weight: 600 }
  @media (prefers-color-scheme: dark) { svg { background: #16181c; color: #ddd } }
";

/// Colours that are told apart by most eyes (Okabe and Ito's).
pub(crate) const COLOURS: [&str; 7] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a7f00",
];

/// Which end of a text stands at its place.
#[derive(Clone, Copy)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

impl Svg {
    pub(crate) const fn new(width: f64, height: f64) -> Self {
        Self {
            width,
            height,
            body: String::new(),
        }
    }

    fn push(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.body, "  {element}");
    }

    pub(crate) fn axis(&mut self, from: (f64, f64), to: (f64, f64)) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.push(format_args!(
            r#"<line class="axis" x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}"/>"#
        ));
    }

    pub(crate) fn text(&mut self, (x, y): (f64, f64), anchor: Anchor, class: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        self.push(format_args!(
            r#"<text class="{class}" x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{text}</text>"#
        ));
    }

    pub(crate) fn polyline(&mut self, points: &[(f64, f64)], colour: &str) {
        let mut path = String::new();
        for (x, y) in points {
            let _ = write!(path, "{x:.1},{y:.1} ");
        }
        self.push(format_args!(
            r#"<polyline class="line" stroke="{colour}" points="{path}"/>"#
        ));
        for (x, y) in points {
            self.push(format_args!(
                r#"<circle cx="{x:.1}" cy="{y:.1}" r="3" fill="{colour}"/>"#
            ));
        }
    }

    /// A line with a head at its end, and what it means on hovering.
    pub(crate) fn arrow(&mut self, from: (f64, f64), to: (f64, f64), colour: &str, meaning: &str) {
        let ((x1, y1), (x2, y2)) = (from, to);
        let meaning = meaning.replace('&', "&amp;").replace('<', "&lt;");
        self.push(format_args!(
            r#"<g stroke="{colour}" fill="{colour}"><title>{meaning}</title><line stroke-width="1.5" x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}"/><circle cx="{x2:.1}" cy="{y2:.1}" r="3"/></g>"#
        ));
    }

    /// A line of a width, and what it means on hovering.
    pub(crate) fn line(
        &mut self,
        from: (f64, f64),
        to: (f64, f64),
        width: f64,
        colour: &str,
        meaning: &str,
    ) {
        let ((x1, y1), (x2, y2)) = (from, to);
        let meaning = meaning.replace('&', "&amp;").replace('<', "&lt;");
        self.push(format_args!(
            r#"<line stroke="{colour}" stroke-width="{width:.1}" x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}"><title>{meaning}</title></line>"#
        ));
    }

    /// A box with its upper left corner at `at`, and what it means on hovering.
    pub(crate) fn rect(&mut self, at: (f64, f64), size: (f64, f64), colour: &str, meaning: &str) {
        let ((x, y), (width, height)) = (at, size);
        let meaning = meaning.replace('&', "&amp;").replace('<', "&lt;");
        self.push(format_args!(
            r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" rx="3" fill="{colour}"><title>{meaning}</title></rect>"#
        ));
    }

    pub(crate) fn finish(self) -> String {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0} {1:.0}\" width=\"{0:.0}\" height=\"{1:.0}\">\n<style>{STYLE}</style>\n{2}</svg>\n",
            self.width, self.height, self.body
        )
    }
}
