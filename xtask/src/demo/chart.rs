//! Small SVG charts that follow the reader's light or dark scheme.

use std::fmt::Write as _;

/// Width and height of a chart in SVG units.
pub(super) const WIDTH: f64 = 330.0;
pub(super) const HEIGHT: f64 = 250.0;

const LEFT: f64 = 46.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 52.0;
const BOTTOM: f64 = 36.0;

/// Colours by role; the page shares them.
pub(super) const STYLE: &str = "
:root { --paper: #ffffff; --ink: #1f2328; --soft: #656d76; --line: #d8dee4; --one: #0b62d6; --two: #c2410c; }
@media (prefers-color-scheme: dark) {
:root { --paper: #0d1117; --ink: #e6edf3; --soft: #8d96a0; --line: #30363d; --one: #58a6ff; --two: #f0883e; } }
svg text { font: 11px system-ui, sans-serif; fill: var(--soft); }
svg .title { font-size: 13px; font-weight: 600; fill: var(--ink); }
svg .value { fill: var(--ink); }
svg .grid { stroke: var(--line); }
svg .curve { fill: none; stroke-width: 2.2; stroke-linejoin: round; }
svg .s0 { stroke: var(--one); } svg .s1 { stroke: var(--two); stroke-dasharray: 5 4; }
svg .b0 { fill: var(--one); } svg .b1 { fill: var(--two); }
svg .rest { opacity: 0.35; }
";

/// A named row of values.
pub(super) struct Series<'a> {
    pub(super) name: &'a str,
    pub(super) values: Vec<f64>,
}

/// How a vertical axis is divided.
pub(super) enum Scale {
    /// From the first to the second value, with a line at every third.
    Linear(f64, f64, f64),
    /// Powers of ten that enclose the values.
    Log,
}

/// Curves over epochs, the first at the left edge. At most two series: the first drawn solid, the
/// second dashed above it, so that both are seen where they coincide.
pub(super) fn curves(
    title: &str,
    series: &[Series<'_>],
    scale: &Scale,
    label: fn(f64) -> String,
) -> String {
    let steps = series
        .iter()
        .map(|series| series.values.len())
        .max()
        .unwrap_or(1)
        .max(2);
    let (low, high, ticks) = range(series, scale);
    let to_unit = |value: f64| match scale {
        Scale::Linear(..) => (value.clamp(low, high) - low) / (high - low),
        Scale::Log => (value.max(low).log10() - low.log10()) / (high.log10() - low.log10()),
    };
    let x = |step: usize| LEFT + (WIDTH - LEFT - RIGHT) * step as f64 / (steps - 1) as f64;
    let y = |value: f64| HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * to_unit(value);

    let mut svg = heading(title, series.iter().map(|series| series.name));
    for tick in ticks {
        horizontal(&mut svg, y(tick), &label(tick));
    }
    for step in (0..steps).filter(|step| *step == 0 || (step + 1) % 5 == 0) {
        let _ = write!(
            svg,
            "<text x='{:.1}' y='{:.1}' text-anchor='middle'>{}</text>",
            x(step),
            HEIGHT - BOTTOM + 15.0,
            step + 1
        );
    }
    let _ = write!(
        svg,
        "<text x='{:.1}' y='{:.1}' text-anchor='end'>epoch</text>",
        WIDTH - RIGHT,
        HEIGHT - 6.0
    );
    for (number, series) in series.iter().enumerate() {
        let points: Vec<String> = series
            .values
            .iter()
            .enumerate()
            .map(|(step, v)| format!("{:.1},{:.1}", x(step), y(*v)))
            .collect();
        let _ = write!(
            svg,
            "<polyline class='curve s{number}' points='{}'/>",
            points.join(" ")
        );
    }
    svg
}

/// One bar a series: its first value is the whole height, its second the part at the top drawn in
/// full colour.
pub(super) fn bars(title: &str, series: &[Series<'_>], unit: &str) -> String {
    let most = series
        .iter()
        .filter_map(|series| series.values.first())
        .fold(0.0, |a: f64, b| a.max(*b));
    let step = nice_step(most);
    let high = (most / step).ceil().max(1.0) * step;
    let y = |value: f64| HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / high;
    let mut svg = heading(title, std::iter::empty());
    let _ = write!(
        svg,
        "<text x='{LEFT}' y='38'>full colour: waiting for communication</text>"
    );
    let mut tick = 0.0;
    while tick <= high + step / 2.0 {
        horizontal(&mut svg, y(tick), &format!("{tick} {unit}"));
        tick += step;
    }
    let slot = (WIDTH - LEFT - RIGHT) / series.len() as f64;
    for (number, series) in series.iter().enumerate() {
        let (whole, part) = (
            series.values[0],
            series.values[1].clamp(0.0, series.values[0]),
        );
        let (x, width) = (LEFT + slot * (number as f64 + 0.28), slot * 0.44);
        let middle = x + width / 2.0;
        let _ = write!(
            svg,
            "<rect class='b{number} rest' x='{x:.1}' y='{:.1}' width='{width:.1}' height='{:.1}'/>\
             <rect class='b{number}' x='{x:.1}' y='{:.1}' width='{width:.1}' height='{:.1}'/>\
             <text class='value' x='{middle:.1}' y='{:.1}' text-anchor='middle'>{whole:.2} {unit}</text>\
             <text class='value' x='{middle:.1}' y='{:.1}' text-anchor='middle'>{}</text>",
            y(whole - part),
            y(0.0) - y(whole - part),
            y(whole),
            y(whole - part) - y(whole),
            y(whole) - 5.0,
            HEIGHT - BOTTOM + 15.0,
            series.name,
        );
    }
    svg
}

/// Wraps chart bodies, side by side, in one SVG document.
pub(super) fn document(charts: &[String], description: &str) -> String {
    let mut svg = format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {} {HEIGHT}' role='img' aria-label='{description}'>\
         <style>{STYLE}</style><rect width='100%' height='100%' style='fill: var(--paper)'/>",
        WIDTH * charts.len() as f64
    );
    for (number, chart) in charts.iter().enumerate() {
        let _ = write!(
            svg,
            "<g transform='translate({} 0)'>{chart}</g>",
            WIDTH * number as f64
        );
    }
    svg + "</svg>\n"
}

/// Title and legend.
fn heading<'a>(title: &str, names: impl Iterator<Item = &'a str>) -> String {
    let mut svg = format!("<text class='title' x='{LEFT}' y='20'>{title}</text>");
    for (number, name) in names.enumerate() {
        let x = LEFT + 90.0 * number as f64;
        let _ = write!(
            svg,
            "<line class='curve s{number}' x1='{x}' y1='34' x2='{}' y2='34'/><text x='{}' y='38'>{name}</text>",
            x + 22.0,
            x + 28.0
        );
    }
    svg
}

fn horizontal(svg: &mut String, y: f64, label: &str) {
    let _ = write!(
        svg,
        "<line class='grid' x1='{LEFT}' y1='{y:.1}' x2='{:.1}' y2='{y:.1}'/>\
         <text x='{:.1}' y='{:.1}' text-anchor='end'>{label}</text>",
        WIDTH - RIGHT,
        LEFT - 6.0,
        y + 4.0
    );
}

/// The axis' ends and the values that get a line.
fn range(series: &[Series<'_>], scale: &Scale) -> (f64, f64, Vec<f64>) {
    match *scale {
        Scale::Linear(low, high, step) => {
            let count = ((high - low) / step).round() as u32;
            (
                low,
                high,
                (0..=count)
                    .map(|tick| low + f64::from(tick) * step)
                    .collect(),
            )
        }
        Scale::Log => {
            let positive = || {
                series
                    .iter()
                    .flat_map(|series| &series.values)
                    .copied()
                    .filter(|value| *value > 0.0)
            };
            let low = positive().fold(1.0, f64::min).log10().floor() as i32;
            let high =
                (positive().fold(f64::MIN_POSITIVE, f64::max).log10().ceil() as i32).max(low + 1);
            (
                10f64.powi(low),
                10f64.powi(high),
                (low..=high).map(|power| 10f64.powi(power)).collect(),
            )
        }
    }
}

/// 1, 2 or 5 times a power of ten, so that three to six steps reach `most`.
fn nice_step(most: f64) -> f64 {
    let rough = (most / 5.0).max(1e-6);
    let power = 10f64.powf(rough.log10().floor());
    let factor = [1.0, 2.0, 5.0]
        .into_iter()
        .find(|factor| factor * power >= rough)
        .unwrap_or(10.0);
    factor * power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_enclose_the_values() {
        let series = [Series {
            name: "a",
            values: vec![1.7, 0.3, 0.004],
        }];
        assert_eq!(
            range(&series, &Scale::Log),
            (0.001, 10.0, vec![0.001, 0.01, 0.1, 1.0, 10.0])
        );
        let (low, high, ticks) = range(&series, &Scale::Linear(0.8, 1.0, 0.05));
        assert_eq!((low, high, ticks.len()), (0.8, 1.0, 5));
        for (most, step) in [(6.2, 2.0), (0.9, 0.2), (48.0, 10.0), (20.0, 5.0)] {
            assert!((nice_step(most) - step).abs() < 1e-9, "{most}");
        }
    }

    #[test]
    fn bars_show_no_negative_part() {
        let svg = bars(
            "t",
            &[Series {
                name: "a",
                values: vec![5.0, -0.3],
            }],
            "ms",
        );
        assert!(svg.contains("height='0.0'") && !svg.contains("height='-"));
    }
}
