//! Settings files, variables and flags: what they give, where each value is from, and what is wrong with bad ones.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that panics has failed, as it should"
)]

use std::{fs, path::Path, time::Duration};

use proptest::prelude::*;
use ringway::settings::{DEFINITIONS, Environment, Settings, Source, TransportKind, reference};

const FLOW: &str = "communication: {algorithm: hierarchical, hierarchy_levels: 2, ring_size: 16, buffer_size: 256MB}\n";
const BLOCK: &str = "\
# A file of row B5's kind.
communication:
  algorithm: hierarchical
  hierarchy_levels: 2
  ring_size: 16
  buffer_size: 256MB
";

fn yaml(text: &str) -> Result<Settings, String> {
    let mut settings = Settings::default();
    settings
        .apply_yaml(text, Path::new("ringway.yaml"))
        .map_err(|error| error.to_string())?;
    Ok(settings)
}

fn environment(text: &str) -> Environment {
    text.split_whitespace()
        .map(|pair| pair.split_once('=').unwrap())
        .collect()
}

#[test]
fn the_published_file_works_in_both_styles() {
    for (text, lines) in [(FLOW, [1, 1, 1, 1]), (BLOCK, [3, 4, 5, 6])] {
        let settings = yaml(text).unwrap();
        let values = settings.values();
        assert_eq!(values.algorithm, "hierarchical");
        assert_eq!(
            (values.hierarchy_levels, values.ring_size),
            (Some(2), Some(16))
        );
        assert_eq!(values.buffer_size, 256_000_000);
        let names = ["algorithm", "hierarchy_levels", "ring_size", "buffer_size"];
        for (name, line) in names.into_iter().zip(lines) {
            assert_eq!(
                settings.source(name).to_string(),
                format!("ringway.yaml:{line}")
            );
        }
        assert_eq!(settings.source("timeout"), &Source::Default);
        assert_eq!(values.timeout, Duration::from_secs(300));
    }
}

#[test]
fn empty_files_change_nothing() {
    for text in [
        "",
        "\n",
        "# nothing\n",
        "communication:\n",
        "communication: {}\n",
        "---\n",
    ] {
        assert_eq!(
            yaml(text).unwrap().values(),
            Settings::default().values(),
            "{text:?}"
        );
    }
}

#[test]
fn lists_may_be_written_as_lists() {
    let settings =
        yaml("communication:\n  transports: [tcp, shm]\n  interfaces: [eth*, ^docker0]\n").unwrap();
    assert!(settings.values().transports.allow(TransportKind::Tcp));
    assert_eq!(settings.values().interfaces.to_string(), "eth*,^docker0");
    let settings = yaml("communication: {transports: tcp, port: 29400-29499}").unwrap();
    assert!(!settings.values().transports.allow(TransportKind::Shm));
    assert_eq!(settings.values().port.to_string(), "29400-29499");
}

/// Every mistake is told with its line, and what would be right.
#[test]
fn mistakes_in_files_are_named() {
    for (text, parts) in [
        (
            "communication:\n  bufer_size: 1MB\n",
            ["yaml:2:", "`bufer_size`", "did you mean `buffer_size`"],
        ),
        (
            "communication:\n  colour: red\n",
            [
                "yaml:2:",
                "`colour`",
                "known are adapt_after, algorithm, arena_size",
            ],
        ),
        (
            "comunication: {}\n",
            ["yaml:1:", "`comunication`", "did you mean `communication`"],
        ),
        (
            "\n\nring_size: 2\n",
            ["yaml:3:", "`ring_size`", "communication"],
        ),
        (
            "communication:\n  ring_size: 2\n  ring_size: 3\n",
            ["yaml:3:", "`ring_size` is set again", "line 2"],
        ),
        (
            "communication: {}\ncommunication: {}\n",
            ["yaml:2:", "`communication` is set again", "line 1"],
        ),
        (
            "communication:\n  ring_size: many\n",
            ["yaml:2: ring_size:", "from 2 to 65536", "`many`"],
        ),
        (
            "communication:\n  ring_size: 1\n",
            ["yaml:2: ring_size:", "`1`", "below the least, 2"],
        ),
        (
            "communication:\n  ring_size: 2.5\n",
            ["yaml:2: ring_size:", "`2.5`", "no whole number"],
        ),
        (
            "communication:\n  buffer_size: 256XB\n",
            ["yaml:2: buffer_size:", "`256XB`", "such as 256MB"],
        ),
        (
            "communication:\n  buffer_size: 12\n",
            ["yaml:2: buffer_size:", "`12`", "below the least, 64KiB"],
        ),
        (
            "communication:\n  buffer_size: -1\n",
            ["yaml:2: buffer_size:", "`-1`", "begin with a number"],
        ),
        (
            "communication:\n  timeout: 300\n",
            ["yaml:2: timeout:", "`300`", "write 300s"],
        ),
        (
            "communication:\n  timeout: true\n",
            ["yaml:2: timeout:", "`true`", "duration"],
        ),
        (
            "communication:\n  timeout: {a: 1}\n",
            ["yaml:2:", "timeout", "single value, found a mapping"],
        ),
        (
            "communication:\n  timeout:\n",
            ["yaml:2:", "timeout", "single value, found nothing"],
        ),
        (
            "communication:\n  transports:\n    - tcp\n    - [x]\n",
            ["yaml:4:", "transports", "found a list"],
        ),
        (
            "communication: 3\n",
            [
                "yaml:1:",
                "communication",
                "mapping of settings, found a single value",
            ],
        ),
        (
            "- a\n",
            [
                "yaml:1:",
                "the file",
                "mapping `communication:`, found a list",
            ],
        ),
        (
            "communication:\n  transports: [shm, rdma2]\n",
            ["yaml:2: transports:", "`rdma2`", "`shm`, `tcp`"],
        ),
        (
            "communication:\n  transports: [shm, shm]\n",
            ["yaml:2: transports:", "twice", "`shm,shm`"],
        ),
        (
            "communication:\n  port: 0-5\n",
            ["yaml:2: port:", "`0-5`", "29400-29499"],
        ),
        (
            "communication:\n  interfaces: 10.0.0.0/99\n",
            ["yaml:2: interfaces:", "10.0.0.0/99", "bits"],
        ),
        (
            "communication:\n  log: loud\n",
            ["yaml:2: log:", "`loud`", "`debug`"],
        ),
        ("communication: {\n", ["yaml:", "no YAML", "ringway.yaml"]),
        (
            "communication:\n\tring_size: 2\n",
            ["yaml:2:", "no YAML", "ringway.yaml"],
        ),
    ] {
        let error = yaml(text).expect_err(text);
        for part in parts {
            assert!(error.contains(part), "{text:?}: {error:?} lacks {part:?}");
        }
    }
}

#[test]
fn a_bad_file_changes_nothing() {
    let mut settings = Settings::default();
    let bad = "communication:\n  ring_size: 4\n  colour: red\n";
    settings.apply_yaml(bad, Path::new("x")).unwrap_err();
    assert_eq!(settings.values(), Settings::default().values());
    assert_eq!(settings.source("ring_size"), &Source::Default);
}

#[test]
fn later_sources_overrule_earlier_ones() {
    let directory = std::env::temp_dir().join(format!("ringway-settings-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join("ringway.yaml"), BLOCK).unwrap();
    fs::write(
        directory.join("other.yaml"),
        "communication: {ring_size: 8}\n",
    )
    .unwrap();
    let load = |text: &str| Settings::load_from(&environment(text), &directory);

    let mut settings =
        load("RINGWAY_RING_SIZE=32 RINGWAY_TIMEOUT= RINGWAY_RANK=0 PATH=/bin").unwrap();
    assert_eq!(settings.values().ring_size, Some(32));
    assert_eq!(
        settings.source("ring_size").to_string(),
        "RINGWAY_RING_SIZE"
    );
    assert_eq!(settings.values().buffer_size, 256_000_000);
    assert_eq!(settings.source("timeout"), &Source::Default);
    settings
        .set(
            "ring_size",
            "auto",
            Source::Flag {
                name: "--ring-size".into(),
            },
        )
        .unwrap();
    assert_eq!(settings.values().ring_size, None);
    assert_eq!(settings.source("ring_size").to_string(), "--ring-size");

    let other = directory.join("other.yaml");
    let settings = load(&format!("RINGWAY_CONFIG={}", other.display())).unwrap();
    assert_eq!(
        (
            settings.values().ring_size,
            settings.values().algorithm.as_str()
        ),
        (Some(8), "auto")
    );

    let error = load("RINGWAY_CONFIG=/nowhere/x.yaml")
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("/nowhere/x.yaml") && error.contains("No such file"),
        "{error}"
    );
    fs::remove_dir_all(&directory).unwrap();
    let settings = load("").unwrap();
    assert_eq!(settings.values(), Settings::default().values());
}

#[test]
fn mistakes_in_variables_are_named() {
    for (text, parts) in [
        (
            "RINGWAY_BUFER_SIZE=1MB",
            ["`RINGWAY_BUFER_SIZE`", "`RINGWAY_BUFFER_SIZE`", "Unset it"],
        ),
        (
            "RINGWAY_WORLDSIZE=2",
            ["`RINGWAY_WORLDSIZE`", "`RINGWAY_WORLD_SIZE`", "Unset it"],
        ),
        (
            "RINGWAY_COLOUR=red",
            ["`RINGWAY_COLOUR`", "RINGWAY_TIMEOUT", "RINGWAY_RANK"],
        ),
        (
            "RINGWAY_TIMEOUT=soon",
            ["RINGWAY_TIMEOUT: timeout:", "`soon`", "10ms to 720h"],
        ),
        (
            "RINGWAY_FAILURE_AFTER=300ms",
            [
                "RINGWAY_FAILURE_AFTER",
                "three heartbeats",
                "heartbeat is 250ms (default)",
            ],
        ),
    ] {
        let error = Settings::load_from(&environment(text), Path::new("/nowhere"))
            .unwrap_err()
            .to_string();
        for part in parts {
            assert!(error.contains(part), "{text}: {error:?} lacks {part:?}");
        }
    }
    let tests_own = environment("RINGWAY_TEST_ANYTHING=1");
    assert!(Settings::load_from(&tests_own, Path::new("/nowhere")).is_ok());
}

/// What `config show` prints reads back as the same value, for every setting.
#[test]
fn rows_read_back() {
    let chosen = "adapt_after: 2s, algorithm: 'ring:0-max', arena_size: 1TiB, batch_max: 5MB, batch_min: 2MB, batch_window: 5ms, \
                  buffer_size: 100000, connect_timeout: 1.5s, \
                  fabric: net.yaml, failure_after: 4s, heartbeat: 1s, hierarchy_levels: 2, interfaces: '^lo', log: debug, \
                  memory_limit: 1GB, port: 1-2, probe_lifetime: 1h, probes: refresh, queue_pairs: 8, record: job.rec, registered_limit: 1GB, ring_size: 7, \
                  spin: 0s, streams: 64, timeout: 1h, transports: shm, wire_between_hosts: bf16";
    let settings = yaml(&format!("communication: {{{chosen}}}")).unwrap();
    assert_eq!(
        settings.rows().count(),
        chosen.split(", ").count(),
        "the list above is complete"
    );
    let mut again = Settings::default();
    for (definition, value, source) in settings.rows() {
        assert_ne!(source, &Source::Default, "{}", definition.name);
        again.set(definition.name, &value, Source::Default).unwrap();
    }
    assert_eq!(again.values(), settings.values());
}

#[test]
fn the_table_is_in_order_and_every_default_is_shown_as_written() {
    assert!(DEFINITIONS.is_sorted_by_key(|d| d.name));
    for (definition, value, _) in Settings::default().rows() {
        let mut again = Settings::default();
        again
            .set(definition.name, definition.default, Source::Default)
            .unwrap();
        assert_eq!(again.values(), Settings::default().values());
        again.set(definition.name, &value, Source::Default).unwrap();
        assert_eq!(
            again.values(),
            Settings::default().values(),
            "{}",
            definition.name
        );
    }
}

/// `RINGWAY_TEST_UPDATE=1` writes the tables anew.
#[test]
fn the_documents_tables_are_those_of_the_code() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/settings.md");
    let page = fs::read_to_string(&path).unwrap();
    let (begin, end) = ("<!-- tables -->\n", "<!-- end of tables -->");
    let (head, rest) = page.split_once(begin).expect("the page has a mark");
    let (_, tail) = rest.split_once(end).expect("and another");
    let wanted = format!("{head}{begin}{}{end}{tail}", reference());
    if std::env::var_os("RINGWAY_TEST_UPDATE").is_some() {
        fs::write(&path, &wanted).unwrap();
        return;
    }
    assert_eq!(
        page, wanted,
        "docs/settings.md: run this test with RINGWAY_TEST_UPDATE=1"
    );
}

proptest! {
    #[test]
    fn no_file_panics(text in "(?s).{0,200}") {
        let _ = yaml(&text);
    }

    #[test]
    fn no_near_file_panics(
        key in "[a-z_]{1,20}", value in "[-\\[\\]{}a-zA-Z0-9:,.*&^ ]{0,30}", indent in "[ \t]{0,3}",
    ) {
        if let Err(error) = yaml(&format!("communication:\n{indent}{key}: {value}\n")) {
            prop_assert!(error.contains("ringway.yaml:"), "{error}");
        }
    }

    #[test]
    fn no_value_panics(which in 0..DEFINITIONS.len(), value in ".{0,24}") {
        let _ = Settings::default().set(DEFINITIONS[which].name, &value, Source::Default);
    }
}
