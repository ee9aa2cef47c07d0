//! How many tests passed and failed, from what test runners print.

use std::fmt;
use std::ops::Add;

/// Numbers of tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) passed: u64,
    pub(super) failed: u64,
    pub(super) skipped: u64,
}

impl Counts {
    pub(super) fn one_passed() -> Self {
        Self {
            passed: 1,
            ..Self::default()
        }
    }

    pub(super) fn skipped(number: u64) -> Self {
        Self {
            skipped: number,
            ..Self::default()
        }
    }

    pub(super) fn one_failed() -> Self {
        Self {
            failed: 1,
            ..Self::default()
        }
    }

    /// Reads "3 passed, 1 failed, 2 skipped" and its like. Words that mean neither are passed over.
    fn from_list(list: &str) -> Self {
        let mut counts = Self::default();
        for item in list.split([',', ';']) {
            let mut words = item
                .split_whitespace()
                .skip_while(|word| word.parse::<u64>().is_err());
            let (Some(Ok(number)), Some(kind)) =
                (words.next().map(str::parse::<u64>), words.next())
            else {
                continue;
            };
            match kind {
                "passed" | "xfailed" => counts.passed += number,
                "failed" | "error" | "errors" | "xpassed" | "timed" | "exec" => {
                    counts.failed += number
                }
                "skipped" | "ignored" => counts.skipped += number,
                _ => {}
            }
        }
        counts
    }
}

impl Add for Counts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            passed: self.passed + other.passed,
            failed: self.failed + other.failed,
            skipped: self.skipped + other.skipped,
        }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:5} passed {:3} failed {:3} skipped",
            self.passed, self.failed, self.skipped
        )
    }
}

/// nextest: `Summary [ 0.1s] 9 tests run: 7 passed (1 slow), 1 failed, 1 timed out, 2 skipped`, or
/// `7/9 tests run:`.
pub(super) fn nextest(text: &str) -> Option<Counts> {
    let line = text
        .lines()
        .rev()
        .find(|line| line.trim_start().starts_with("Summary ["))?;
    let (_, list) = line.split_once(" run: ")?;
    Some(Counts::from_list(list))
}

/// libtest, once per test binary: `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0
/// filtered out; ...`.
pub(super) fn libtest(text: &str) -> Option<Counts> {
    text.lines()
        .filter_map(|line| line.trim_start().strip_prefix("test result: "))
        .map(Counts::from_list)
        .reduce(Add::add)
}

/// pytest's last line: `2 failed, 12 passed, 1 skipped in 3.21s`, perhaps between `=`.
pub(super) fn pytest(text: &str) -> Option<Counts> {
    text.lines().rev().find_map(|line| {
        let (list, time) = line.trim_matches(['=', ' ']).rsplit_once(" in ")?;
        let counted = list
            .split(", ")
            .all(|item| item.starts_with(|c: char| c.is_ascii_digit()));
        (counted && time.starts_with(|c: char| c.is_ascii_digit())).then(|| Counts::from_list(list))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(passed: u64, failed: u64, skipped: u64) -> Option<Counts> {
        Some(Counts {
            passed,
            failed,
            skipped,
        })
    }

    #[test]
    fn nextest_summaries() {
        let plain =
            "    PASS [ 0.1s] a b\n     Summary [   0.021s] 10 tests run: 10 passed, 0 skipped\n";
        assert_eq!(nextest(plain), counts(10, 0, 0));
        let mixed = " Summary [  12.3s] 9/12 tests run: 6 passed (1 slow, 1 leaky), 1 failed, 2 timed out, 3 skipped\nx\n";
        assert_eq!(nextest(mixed), counts(6, 3, 3));
        assert_eq!(
            nextest("   Summary [ 0.1s] 1 test run: 0 passed, 1 exec failed, 0 skipped"),
            counts(0, 1, 0)
        );
        assert_eq!(nextest("error: could not compile"), None);
    }

    #[test]
    fn libtest_results_are_summed() {
        let text = "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s\n\
                    test result: FAILED. 2 passed; 4 failed; 0 ignored; 0 measured; 0 filtered out; finished in 2s\n";
        assert_eq!(libtest(text), counts(5, 4, 1));
        assert_eq!(libtest("running 0 tests"), None);
    }

    #[test]
    fn pytest_last_lines() {
        assert_eq!(pytest("....\n12 passed in 3.2s\n"), counts(12, 0, 0));
        let long = "== 1 failed, 2 passed, 1 skipped, 3 warnings, 1 error in 63.21s (0:01:03) ==\n";
        assert_eq!(pytest(long), counts(2, 2, 1));
        assert_eq!(pytest("it broke in 3 places\nno tests ran in 0.01s"), None);
    }
}
