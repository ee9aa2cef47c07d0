//! Which tests failed, from what test runners print, and their output cut to what tells why.

/// Lines of a failed test's output that are shown from its beginning, and from its end.
const SHOWN: (usize, usize) = (10, 30);

/// nextest's status lines: `FAIL [   0.1s] (1/9) crate::binary module::test`; `TIMEOUT`, `SIGABRT`
/// and the like are failures, too.
pub(super) fn nextest(text: &str) -> Vec<String> {
    let failed = |line: &str| {
        let (status, rest) = line.trim_start().split_once(" [")?;
        let bad = status.starts_with("FAIL")
            || status.starts_with("TIMEOUT")
            || status.starts_with("SIG")
            || status.starts_with("ABORT")
            || status.starts_with("XFAIL")
            || status.starts_with("LEAK-FAIL");
        let (_, name) = rest.split_once(']')?;
        let name = name.trim_start();
        let name = match name.split_once(") ") {
            Some((count, name)) if count.starts_with('(') => name,
            _ => name,
        };
        bad.then(|| name.trim().to_owned())
    };
    unique(text.lines().filter_map(failed))
}

/// libtest's lines: `test src/lib.rs - name (line 3) ... FAILED`.
pub(super) fn libtest(text: &str) -> Vec<String> {
    unique(text.lines().filter_map(|line| {
        let name = line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?;
        Some(name.to_owned())
    }))
}

/// pytest's short summary (`-ra`): `FAILED tests/test_x.py::test_y - AssertionError`.
pub(super) fn pytest(text: &str) -> Vec<String> {
    unique(text.lines().filter_map(|line| {
        let name = line
            .strip_prefix("FAILED ")
            .or_else(|| line.strip_prefix("ERROR "))?;
        Some(name.split(" - ").next().unwrap_or(name).to_owned())
    }))
}

fn unique(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for name in names {
        if !all.contains(&name) {
            all.push(name);
        }
    }
    all
}

/// Prints lines as they come, but of what nextest shows of a failed test only beginning and end.
#[derive(Debug, Default)]
pub(super) struct Shortener {
    /// Whether the lines are a test's output, and how many of them there were.
    within: Option<usize>,
    /// The last ones, which are not printed yet.
    held: std::collections::VecDeque<String>,
}

impl Shortener {
    /// Takes a line; returns those to print now.
    pub(super) fn line(&mut self, line: &str) -> Vec<String> {
        let begins = line == "  stdout ───" || line == "  stderr ───" || line == "  output ───";
        let goes_on = self.within.is_some() && (line.is_empty() || line.starts_with("    "));
        // A status line is indented, too, but says its time.
        let status = line.contains(" [") && line.trim_start().starts_with(char::is_uppercase);
        if goes_on && !begins && !(status && line.contains("s] ")) {
            let seen = self.within.get_or_insert(0);
            *seen += 1;
            if *seen <= SHOWN.0 {
                return vec![line.to_owned()];
            }
            self.held.push_back(line.to_owned());
            if self.held.len() > SHOWN.1 {
                self.held.pop_front();
            }
            return Vec::new();
        }
        let mut lines = self.end();
        self.within = begins.then_some(0);
        lines.push(line.to_owned());
        lines
    }

    /// The lines held back, at the end of a test's output or of all.
    pub(super) fn end(&mut self) -> Vec<String> {
        let seen = self.within.take().unwrap_or(0);
        let mut lines = Vec::new();
        let left_out = seen.saturating_sub(SHOWN.0 + self.held.len());
        if left_out > 0 {
            lines.push(format!("    ... {left_out} lines left out ..."));
        }
        lines.extend(self.held.drain(..));
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_tests_are_named_once() {
        let text = "        PASS [   0.003s] (1/4) a::b good\n\
                    \x20       FAIL [   0.003s] (2/4) ringway-link::tcp faults::a_cut\n\
                    \x20 stderr ───\n    FAIL: no status line\n\
                    \x20    SIGABRT [   0.3s] ringway bad\n\
                    \x20    TIMEOUT [ 120.003s] (3/4) ringway slow\n\
                    \x20       FAIL [   0.003s] (2/4) ringway-link::tcp faults::a_cut\n";
        assert_eq!(
            nextest(text),
            [
                "ringway-link::tcp faults::a_cut",
                "ringway bad",
                "ringway slow"
            ]
        );
        let doc = "test src/lib.rs - a (line 3) ... ok\ntest src/lib.rs - b (line 9) ... FAILED\n";
        assert_eq!(libtest(doc), ["src/lib.rs - b (line 9)"]);
        let python = "FAILED tests/test_x.py::test_y[a - b] - AssertionError\nERROR tests/test_z.py\n1 failed";
        assert_eq!(pytest(python).len(), 2);
        assert_eq!(pytest(python)[1], "tests/test_z.py");
    }

    #[test]
    fn long_output_of_a_test_is_cut_in_its_middle() {
        let mut shortener = Shortener::default();
        let mut shown = Vec::new();
        let output = (0..500).map(|n| format!("    line {n}"));
        let head = ["        FAIL [ 0.1s] a b", "  stdout ───"].map(str::to_owned);
        let tail = ["        FAIL [ 0.1s] a c", "error: test run failed"].map(str::to_owned);
        for line in head.into_iter().chain(output).chain(tail.clone()) {
            shown.extend(shortener.line(&line));
        }
        shown.extend(shortener.end());
        assert_eq!(shown.len(), 2 + SHOWN.0 + 1 + SHOWN.1 + 2);
        assert!(shown[2 + SHOWN.0].contains("460 lines left out"));
        assert_eq!(shown[shown.len() - 3], "    line 499");
        assert_eq!(shown[shown.len() - 2..], tail);
    }
}
