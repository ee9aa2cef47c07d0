//! Bandwidth and latency by size, as a picture.

use super::measure::Sample;
use crate::{
    size,
    svg::{Anchor, COLOURS, Svg},
};

const WIDTH: f64 = 760.0;
const PANEL: f64 = 260.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;

/// Two panels over one axis of sizes: bus bandwidth, and the time of one operation.
pub(crate) fn draw(rows: &[Sample]) -> String {
    let mut svg = Svg::new(WIDTH, 2.0 * PANEL + 60.0);
    let first = &rows[0];
    let title = format!(
        "{} on {} ranks over {}, {}",
        first.collective, first.ranks, first.transport, first.dtype
    );
    svg.text((LEFT, 20.0), Anchor::Start, "title", &title);
    let sizes: Vec<f64> = rows
        .iter()
        .map(|row| (row.bytes.max(1) as f64).log2())
        .collect();
    let across = Scale::over(&sizes, LEFT, WIDTH - RIGHT);
    let busbw: Vec<f64> = rows.iter().map(Sample::busbw).collect();
    panel(
        &mut svg,
        40.0,
        "bus bandwidth, GB/s",
        &across,
        &sizes,
        &[(&busbw, "median")],
        false,
    );
    let time = |q: f64| rows.iter().map(|row| row.percentile(q)).collect::<Vec<_>>();
    let (median, slow) = (time(0.5), time(0.99));
    let lines: [(&[f64], &str); 2] = [(&median, "median"), (&slow, "p99")];
    panel(
        &mut svg,
        40.0 + PANEL,
        "time, us",
        &across,
        &sizes,
        &lines,
        true,
    );
    let bottom = 40.0 + 2.0 * PANEL;
    for (row, &x) in rows.iter().zip(&sizes) {
        svg.text(
            (across.at(x), bottom),
            Anchor::Middle,
            "",
            &size::show(row.bytes),
        );
    }
    svg.finish()
}

/// From values to places.
struct Scale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Scale {
    fn over(values: &[f64], from: f64, to: f64) -> Self {
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Self {
            low,
            high: if high > low { high } else { low + 1.0 },
            from,
            to,
        }
    }

    fn at(&self, value: f64) -> f64 {
        self.from + (value - self.low) / (self.high - self.low) * (self.to - self.from)
    }
}

fn panel(
    svg: &mut Svg,
    top: f64,
    title: &str,
    across: &Scale,
    sizes: &[f64],
    lines: &[(&[f64], &str)],
    logarithmic: bool,
) {
    let (ceiling, floor) = (top + 24.0, top + PANEL - 30.0);
    let scaled = |v: f64| if logarithmic { v.max(1e-3).log10() } else { v };
    let mut all: Vec<f64> = lines
        .iter()
        .flat_map(|(l, _)| *l)
        .map(|&v| scaled(v))
        .collect();
    if logarithmic {
        // Whole decades.
        let (low, high) = all
            .iter()
            .fold((f64::MAX, f64::MIN), |(l, h), &v| (l.min(v), h.max(v)));
        all = vec![low.floor(), high.ceil()];
    } else {
        all.push(0.0);
    }
    let up = Scale::over(&all, floor, ceiling);
    svg.text((LEFT, top + 12.0), Anchor::Start, "", title);
    let ticks = if logarithmic {
        (up.high - up.low).round().max(1.0) as usize
    } else {
        4
    };
    for tick in 0..=ticks {
        let value = up.low + (up.high - up.low) * tick as f64 / ticks as f64;
        let label = if logarithmic {
            10_f64.powf(value)
        } else {
            value
        };
        let y = up.at(value);
        svg.axis((LEFT, y), (WIDTH - RIGHT, y));
        let label = if label >= 10.0 {
            format!("{label:.0}")
        } else {
            format!("{label:.2}")
        };
        svg.text((LEFT - 6.0, y + 4.0), Anchor::End, "", &label);
    }
    for (n, (values, name)) in lines.iter().enumerate() {
        let points: Vec<_> = sizes
            .iter()
            .zip(*values)
            .map(|(&x, &v)| (across.at(x), up.at(scaled(v))))
            .collect();
        svg.polyline(&points, COLOURS[n % COLOURS.len()]);
        if lines.len() > 1 {
            let place = (WIDTH - RIGHT - 60.0 * (lines.len() - n) as f64, top + 12.0);
            svg.text(place, Anchor::Start, "", &format!("● {name}"));
        }
    }
}
