//! The layouts that this crate has written down, against the headers of rdma-core that the system has.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

use std::{env, fmt::Write as _, fs, process::Command};

/// Asks the C compiler: a layout that is wrong is a static assertion that fails, with the field's name.
#[test]
fn layouts_are_those_of_the_headers() {
    let mut program = String::from("#include <stddef.h>\n#include <rdma/rdma_cma.h>\n");
    for layout in ringway_verbs::ffi::layouts() {
        let name = layout.name;
        let checked: Vec<_> = layout
            .fields
            .iter()
            .filter(|(field, _)| *field != "rest")
            .collect();
        assert!(!checked.is_empty(), "{name}");
        for (field, offset) in checked {
            writeln!(
                program,
                "_Static_assert(offsetof(struct {name}, {field}) == {offset}, \"{name}.{field}\");"
            )
            .unwrap();
        }
        if let Some(size) = layout.size {
            writeln!(
                program,
                "_Static_assert(sizeof(struct {name}) == {size}, \"{name}\");"
            )
            .unwrap();
        }
    }
    let source = env::temp_dir().join(format!("ringway-layouts-{}.c", std::process::id()));
    fs::write(&source, program).unwrap();
    let output = Command::new("cc")
        .arg("-fsyntax-only")
        .arg(&source)
        .output()
        .expect("there is no C compiler; cargo xtask setup installs it");
    fs::remove_file(&source).unwrap();
    assert!(
        output.status.success(),
        "{}\n(cargo xtask setup installs libibverbs-dev and librdmacm-dev)",
        String::from_utf8_lossy(&output.stderr)
    );
}
