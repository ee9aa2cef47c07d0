//! The demo's results as a page, a picture and a text.

use std::fmt::Write as _;

use super::chart::{self, Scale, Series};
use super::record::Records;

const DESCRIPTION: &str =
    "Loss and held-out accuracy by epoch and the time of a step, for each backend";
const COLUMNS: [&str; 6] = [
    "backend",
    "held-out accuracy",
    "step",
    "communication",
    "share",
    "whole run",
];

/// One file that needs nothing else.
pub(super) fn html(all: &[Records]) -> String {
    let mut figures = String::new();
    for chart in charts(all) {
        let svg = chart::document(&[chart], DESCRIPTION);
        let _ = write!(figures, "<figure>{svg}</figure>");
    }
    let head: String = COLUMNS
        .iter()
        .map(|column| format!("<th>{column}</th>"))
        .collect();
    let rows: String = all
        .iter()
        .map(|records| {
            let cells: String = cells(records)
                .iter()
                .map(|cell| format!("<td>{cell}</td>"))
                .collect();
            format!("<tr>{cells}</tr>")
        })
        .collect();
    let setting = all.first().map(setting).unwrap_or_default();
    format!(
        "<!doctype html>
<html lang='en'><head><meta charset='utf-8'><meta name='viewport' content='width=device-width, initial-scale=1'>
<meta name='color-scheme' content='light dark'><title>Ringway: training on handwritten digits</title>
<style>{}
body {{ background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; max-width: 70rem;
margin: 2rem auto; padding: 0 1rem; }}
.charts {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(19rem, 1fr)); gap: 1rem; }}
figure {{ margin: 0; }} h1 {{ font-size: 1.5rem; }} p {{ max-width: 50rem; }}
table {{ border-collapse: collapse; }}
th, td {{ padding: .35rem 1rem .35rem 0; text-align: right; border-bottom: 1px solid var(--line); }}
th:first-child, td:first-child {{ text-align: left; }} th {{ color: var(--soft); font-weight: 500; }}
</style></head><body>
<h1>Training on handwritten digits</h1>
<p>{setting}</p>
<div class='charts'>{figures}</div>
<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>
<p>A step is forward, backward with its all-reduce, and optimizer. After each epoch, steps with and without gradient
exchange alternate on one batch, timed on the slowest rank. A step's time is the median of those with, over the run;
communication, which is what the step waits for, is the difference of the two medians: both come from the same steps.
What hides behind the backward pass is not in it, waiting for a slower rank is. One run of each
backend, one after the other, on the machine as it was.</p>
</body></html>
",
        chart::STYLE
    )
}

/// The charts in a row, for a page that shows pictures.
pub(super) fn svg(all: &[Records]) -> String {
    chart::document(&charts(all), DESCRIPTION)
}

/// The table for a terminal.
pub(super) fn text(all: &[Records]) -> String {
    let mut rows = vec![COLUMNS.map(str::to_owned)];
    rows.extend(all.iter().map(cells));
    let mut text = String::new();
    for row in rows {
        let line: String = row
            .iter()
            .zip(COLUMNS)
            .map(|(cell, column)| format!("{cell:>w$}", w = column.len().max(9) + 2))
            .collect();
        let _ = writeln!(text, "{line}");
    }
    text
}

fn setting(records: &Records) -> String {
    let run = &records.run;
    format!(
        "A convolutional network of {} parameters on the 1,797 digits that come with scikit-learn, a fifth of them held \
         out; PyTorch {}, DistributedDataParallel on {} ranks of this machine, {} images per rank and step. The script \
         differs in the backend's name only.",
        thousands(run.parameters),
        run.torch,
        run.ranks,
        run.batch
    )
}

/// 151306 as 151,306.
fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn cells(records: &Records) -> [String; 6] {
    let run = &records.run;
    [
        run.backend.clone(),
        format!("{:.2} %", run.accuracy * 100.0),
        format!("{:.2} ms", run.step_ms),
        format!("{:.2} ms", run.comm_ms),
        format!("{:.1} %", run.comm_share * 100.0),
        format!("{:.1} s", run.seconds),
    ]
}

fn charts(all: &[Records]) -> Vec<String> {
    let by_epoch = |value: fn(&super::record::Epoch) -> f64| -> Vec<Series<'_>> {
        all.iter()
            .map(|records| Series {
                name: &records.run.backend,
                values: records.epochs.iter().map(value).collect(),
            })
            .collect()
    };
    let steps: Vec<Series<'_>> = all
        .iter()
        .map(|records| Series {
            name: &records.run.backend,
            values: vec![records.run.step_ms, records.run.comm_ms],
        })
        .collect();
    vec![
        chart::curves(
            "Training loss",
            &by_epoch(|epoch| epoch.loss),
            &Scale::Log,
            |value| value.to_string(),
        ),
        chart::curves(
            "Held-out accuracy",
            &by_epoch(|epoch| epoch.accuracy),
            &Scale::Linear(0.75, 1.0, 0.05),
            |value| format!("{:.0} %", value * 100.0),
        ),
        chart::bars("Time of a step", &steps, "ms"),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::SAMPLE;
    use super::*;

    #[test]
    fn page_picture_and_text_show_both_backends() {
        let other = SAMPLE.replace("gloo", "ringway").replace("0.98", "0.99");
        let all = [
            Records::parse(&other).unwrap(),
            Records::parse(SAMPLE).unwrap(),
        ];
        let html = html(&all);
        assert!(
            !html.contains("src=") && !html.contains("href="),
            "the page must need nothing else"
        );
        assert_eq!(html.matches("<svg").count(), html.matches("</svg>").count());
        assert_eq!(svg(&all).matches("<polyline").count(), 4);
        for page in [html, svg(&all), text(&all)] {
            assert!(page.contains("ringway") && page.contains("gloo"));
        }
        assert!(text(&all).lines().nth(1).unwrap().contains("99.00 %"));
    }

    #[test]
    fn thousands_are_set_apart() {
        let written = [0, 999, 1000, 151_306, 11_000_000].map(thousands);
        assert_eq!(written, ["0", "999", "1,000", "151,306", "11,000,000"]);
    }
}
