//! A page of HTML.

use minijinja::{AutoEscape, Environment, Value, context, value::Serde};

use super::Report;

pub(super) fn render(report: &Report, title: &str) -> Result<String, minijinja::Error> {
    let mut environment = Environment::new();
    // Names of devices and contents of files are whatever the host has.
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    environment.set_undefined_behavior(minijinja::UndefinedBehavior::Strict);
    environment.add_template("page", include_str!("page.html"))?;
    environment.get_template("page")?.render(context! {
        title,
        summary => report.summary(),
        findings => Value::from(Serde(&report.findings)),
        unjudged => Value::from(Serde(&report.unjudged)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::{Confidence, Evidence, Finding, Severity, Step, Unjudged};

    #[test]
    fn what_a_host_says_is_text_and_not_markup() {
        let report = Report {
            findings: vec![Finding {
                check: "links.state".into(),
                severity: Severity::Warning,
                confidence: Confidence::Likely,
                subject: "<script>alert(1)</script>".to_owned(),
                problem: "down & out".to_owned(),
                why: "none".into(),
                evidence: vec![Evidence::line("/etc/x", 3, "<b>")],
                remedy: vec![Step::run("ip link set dev \"x\" up"), Step::act("wait")],
                rollback: Vec::new(),
            }],
            unjudged: vec![Unjudged {
                check: "pcie.acs".into(),
                subject: "bridges".to_owned(),
                reason: "for root".to_owned(),
                ask: vec![Step::run("lspci -vv")],
            }],
            checks: 1,
        };
        let page = render(&report, "host & co").unwrap();
        assert!(!page.contains("<script") && !page.contains("<b>"), "{page}");
        for part in [
            "&lt;script&gt;",
            "down &amp; out",
            "host &amp; co",
            "1 warning",
            "&#x2f;etc&#x2f;x:3",
            "lspci -vv",
        ] {
            assert!(page.contains(part), "{part}: {page}");
        }
    }
}
