//! `docs/doctor.md` shows every check, as the tables have it. `BLESS=1 cargo nextest run -p ringway-doctor documents` writes it
//! anew.

use std::{fmt::Write as _, fs, path::Path};

use ringway_doctor::{
    fleet,
    host::{self, Group, watch},
};

fn tables() -> String {
    let mut out = String::new();
    for group in Group::ALL {
        let _ = write!(
            out,
            "### {group}\n\n| check | expects | why | source |\n|---|---|---|---|\n"
        );
        for check in host::checks().filter(|check| check.group == group) {
            let _ = writeln!(
                out,
                "| `{}` | {} | {} | {} |",
                check.id, check.expects, check.why, check.source
            );
        }
        out.push('\n');
    }
    out.push_str(
        "### watch\n\n| cause | what rises | what it means | source |\n|---|---|---|---|\n",
    );
    for cause in watch::CAUSES {
        let _ = writeln!(
            out,
            "| `{}` | {} | {} | {} |",
            cause.id, cause.sign, cause.why, cause.source
        );
    }
    out.push_str("\n### fleet\n\n| check | what shows it | why | source |\n|---|---|---|---|\n");
    for aspect in fleet::ASPECTS {
        let _ = writeln!(
            out,
            "| `{}` | {} | {} | {} |",
            aspect.id, aspect.sign, aspect.why, aspect.source
        );
    }
    out
}

#[test]
fn the_documents_show_every_check() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/doctor.md");
    let text = fs::read_to_string(&file).unwrap();
    let (start, end) = ("<!-- checks -->\n", "<!-- end of checks -->");
    let (before, rest) = text.split_once(start).unwrap();
    let (shown, after) = rest.split_once(end).unwrap();
    let tables = tables();
    if std::env::var_os("BLESS").is_some() {
        fs::write(file, format!("{before}{start}{tables}{end}{after}")).unwrap();
    } else {
        assert!(
            shown == tables,
            "docs/doctor.md differs from the tables of the checks: BLESS=1 cargo nextest run -p ringway-doctor the_documents"
        );
    }
}
