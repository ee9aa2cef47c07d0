//! A recording that is read again.

use std::{collections::HashMap, time::Duration};

use ringway_plan::{Algorithm, Collective, DataType, ReduceOp};

use crate::Form;

/// An operation of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// What it did.
    pub collective: Collective,
    /// On what.
    pub dtype: DataType,
    /// How elements were reduced.
    pub op: Option<ReduceOp>,
    /// Of the vector; of a single message, its own.
    pub bytes: usize,
    /// How it was carried out.
    pub algorithm: Algorithm,
    /// In which form it was called.
    pub form: Form,
    /// How many ranks its group had.
    pub ranks: usize,
    /// Whether these were all of the job, in order.
    pub is_world: bool,
    /// When it was called, since the recording began.
    pub begin: Duration,
    /// When it ended; none if the recording ended before.
    pub end: Option<Duration>,
}

/// A time in which the program did nothing but wait for an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The operation, by its place in [`Recording::calls`].
    pub call: usize,
    /// Since the recording began.
    pub from: Duration,
    /// Since the recording began.
    pub to: Duration,
}

/// What rank 0 of a job did, see the module's description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recording {
    /// Of the job.
    pub ranks: usize,
    /// Of the job.
    pub hosts: usize,
    /// By when they began.
    pub calls: Vec<Recorded>,
    /// By when they ended.
    pub waits: Vec<Wait>,
    /// When the last event was.
    pub end: Duration,
    /// Whether rank 0 left in good order; otherwise the job died or the file was full.
    pub is_whole: bool,
}

/// What is wrong with a recording.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} (byte {offset}): {problem}; expected a file as the setting `record` makes")]
pub struct BadRecording {
    /// Which line, from 1.
    pub line: usize,
    /// Where it begins.
    pub offset: usize,
    /// What is wrong with it.
    pub problem: String,
}

/// More ranks than any job has.
const MOST_RANKS: usize = 1 << 20;

/// Bytes of a word; names of algorithms have 18. Errors repeat words.
const MOST_WORD: usize = 64;

/// 200 days: sums of times stay within 64 bits.
const LATEST: u64 = 1 << 54;

#[derive(Default)]
struct Reading {
    groups: HashMap<u64, (usize, bool)>,
    calls: Vec<Recorded>,
    waits: Vec<Wait>,
    end: Duration,
    is_closed: bool,
    is_whole: bool,
}

impl Recording {
    /// Reads a recording. A last line that is cut off, as in a job that was killed, is left out.
    ///
    /// # Errors
    /// The first line that is none of a recording's, with its place.
    pub fn parse(text: &str) -> Result<Self, BadRecording> {
        let mut reading = Reading::default();
        let mut world = None;
        let mut offset = 0;
        for (at, whole) in text.split_inclusive('\n').enumerate() {
            let Some(line) = whole.strip_suffix('\n') else {
                break;
            };
            let mut words = Words(line.split(' '));
            let read = match world {
                None => heading(&mut words).map(|found| world = Some(found)),
                Some((ranks, _)) => reading.line(&mut words, ranks),
            };
            read.and_then(|()| words.end())
                .map_err(|problem| BadRecording {
                    line: at + 1,
                    offset,
                    problem,
                })?;
            offset += whole.len();
        }
        let Some((ranks, hosts)) = world else {
            return Err(BadRecording {
                line: 1,
                offset: 0,
                problem: "there is no heading `ringway record 1 ...`".to_owned(),
            });
        };
        Ok(Self {
            ranks,
            hosts,
            calls: reading.calls,
            waits: reading.waits,
            end: reading.end,
            is_whole: reading.is_whole,
        })
    }

    /// The time in which the program waited for operations.
    pub fn exposed(&self) -> Duration {
        let waits = self.waits.iter();
        waits.map(|wait| wait.to.saturating_sub(wait.from)).sum()
    }
}

fn heading(words: &mut Words<'_>) -> Result<(usize, usize), String> {
    words.word("ringway")?;
    words.word("record")?;
    words.word("1")?;
    words.word("ranks")?;
    let ranks = words.count(MOST_RANKS)?;
    words.word("hosts")?;
    let hosts = words.count(ranks)?;
    Ok((ranks, hosts))
}

impl Reading {
    fn line(&mut self, words: &mut Words<'_>, ranks: usize) -> Result<(), String> {
        if self.is_closed {
            return Err("nothing follows `done` or `full`".to_owned());
        }
        match words.next()? {
            "group" => {
                let id = words.number()?;
                let members = words.count(ranks)?;
                let is_world = words.one_of(&["part", "world"])? == 1;
                if is_world && members != ranks {
                    return Err(format!("a world of {members} ranks in a job of {ranks}"));
                }
                match self.groups.insert(id, (members, is_world)) {
                    None => Ok(()),
                    Some(_) => Err(format!("group {id} is there already")),
                }
            }
            "call" => self.call(words),
            "wait" => {
                let call = self.known(words)?;
                let (from, to) = (words.time()?, words.time()?);
                if from > to || from < self.calls[call].begin {
                    return Err(
                        "the wait ends before it begins, or begins before its call".to_owned()
                    );
                }
                self.waits.push(Wait { call, from, to });
                self.end = self.end.max(to);
                Ok(())
            }
            "end" => {
                let call = self.known(words)?;
                let at = words.time()?;
                let recorded = &mut self.calls[call];
                if at < recorded.begin || recorded.end.is_some() {
                    return Err(format!("call {call} has ended already, or begins later"));
                }
                recorded.end = Some(at);
                self.end = self.end.max(at);
                Ok(())
            }
            last @ ("done" | "full") => {
                self.end = self.end.max(words.time()?);
                self.is_closed = true;
                self.is_whole = last == "done";
                Ok(())
            }
            other => Err(format!(
                "`{}` is no event: expected group, call, wait, end, done or full",
                other.escape_debug()
            )),
        }
    }

    fn call(&mut self, words: &mut Words<'_>) -> Result<(), String> {
        let number = words.number()?;
        if number != self.calls.len() as u64 {
            return Err(format!(
                "call {number} where {} is the next",
                self.calls.len()
            ));
        }
        let begin = words.time()?;
        let name = words.next()?;
        let root = words.count_from(0, MOST_RANKS)?;
        let collective = Collective::parse(name, root).map_err(|e| e.to_string())?;
        let dtype = words
            .next()?
            .parse::<DataType>()
            .map_err(|e| e.to_string())?;
        let op = match words.next()? {
            "-" => None,
            op => Some(op.parse::<ReduceOp>().map_err(|e| e.to_string())?),
        };
        let bytes = words.count_from(0, 1 << 50)?;
        let algorithm = words
            .next()?
            .parse::<Algorithm>()
            .map_err(|e| e.to_string())?;
        let forms = [Form::Even, Form::Pair, Form::Uneven];
        let form = forms[words.one_of(&forms.map(Form::name))?];
        let group = words.number()?;
        let Some(&(ranks, is_world)) = self.groups.get(&group) else {
            return Err(format!("there is no group {group} so far"));
        };
        if root >= ranks {
            return Err(format!("root {root} in a group of {ranks} ranks"));
        }
        self.calls.push(Recorded {
            collective,
            dtype,
            op,
            bytes,
            algorithm,
            form,
            ranks,
            is_world,
            begin,
            end: None,
        });
        self.end = self.end.max(begin);
        Ok(())
    }

    fn known(&self, words: &mut Words<'_>) -> Result<usize, String> {
        let call = words.number()?;
        usize::try_from(call)
            .ok()
            .filter(|&call| call < self.calls.len())
            .ok_or_else(|| format!("there is no call {call} so far"))
    }
}

/// What is between the spaces of a line.
struct Words<'a>(std::str::Split<'a, char>);

impl<'a> Words<'a> {
    fn next(&mut self) -> Result<&'a str, String> {
        match self.0.next() {
            None => Err("the line ends early".to_owned()),
            Some(word) if word.len() > MOST_WORD => Err(format!(
                "a word of {} bytes where {MOST_WORD} at most were expected",
                word.len()
            )),
            Some(word) => Ok(word),
        }
    }

    fn word(&mut self, wanted: &str) -> Result<(), String> {
        match self.next()? {
            word if word == wanted => Ok(()),
            word => Err(format!(
                "`{}` where `{wanted}` was expected",
                word.escape_debug()
            )),
        }
    }

    fn one_of(&mut self, words: &[&str]) -> Result<usize, String> {
        let word = self.next()?;
        words.iter().position(|w| *w == word).ok_or_else(|| {
            format!(
                "`{}` where one of {} was expected",
                word.escape_debug(),
                words.join(", ")
            )
        })
    }

    fn number(&mut self) -> Result<u64, String> {
        let word = self.next()?;
        word.parse()
            .map_err(|_| format!("`{}` is no number", word.escape_debug()))
    }

    fn count(&mut self, most: usize) -> Result<usize, String> {
        self.count_from(1, most)
    }

    fn count_from(&mut self, least: usize, most: usize) -> Result<usize, String> {
        let number = self.number()?;
        usize::try_from(number)
            .ok()
            .filter(|count| (least..=most).contains(count))
            .ok_or_else(|| format!("{number} where a number from {least} to {most} was expected"))
    }

    fn time(&mut self) -> Result<Duration, String> {
        match self.number()? {
            nanos if nanos <= LATEST => Ok(Duration::from_nanos(nanos)),
            nanos => Err(format!("{nanos} ns is later than any job ends")),
        }
    }

    fn end(&mut self) -> Result<(), String> {
        if self.0.clone().next().is_none() {
            return Ok(());
        }
        Err(format!(
            "`{}` after the end of the line",
            self.next()?.escape_debug()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "ringway record 1 ranks 4 hosts 2
group 0 4 world
group 77 2 part
call 0 100 all_reduce 0 f32 sum 4096 ring even 0
wait 0 110 900
end 0 900
call 1 1000 broadcast 1 u8 - 12 direct pair 77
end 1 1500
call 2 1600 all_gather 0 bf16 - 64 tree even 0
done 2000
";

    #[test]
    fn calls_waits_and_ends_are_read() {
        let recording = Recording::parse(&GOOD.replace("tree", "direct")).unwrap();
        assert_eq!((recording.ranks, recording.hosts), (4, 2));
        assert_eq!(recording.calls.len(), 3);
        let nanos = |d: Duration| d.as_nanos();
        assert_eq!(nanos(recording.exposed()), 790);
        assert_eq!((nanos(recording.end), recording.is_whole), (2000, true));
        let [first, second, third] = &recording.calls[..] else {
            panic!("three calls");
        };
        assert!(first.is_world && !second.is_world);
        assert_eq!(second.collective, Collective::Broadcast { root: 1 });
        assert_eq!((second.form, second.ranks), (Form::Pair, 2));
        assert_eq!((third.end, third.dtype), (None, DataType::Bf16));
    }

    #[test]
    fn a_job_that_died_leaves_all_but_the_last_line() {
        let at = GOOD.find("end 1 15").unwrap();
        let recording = Recording::parse(&GOOD[..at + "end 1 15".len()]).unwrap();
        assert_eq!(recording.calls.len(), 2);
        assert_eq!(recording.calls[1].end, None);
        assert!(!recording.is_whole);
    }

    #[test]
    fn what_is_damaged_is_named_with_its_place() {
        for (from, to, line, says) in [
            ("record 1", "record 2", 1, "`2` where `1` was expected"),
            ("hosts 2", "hosts 5", 1, "5 where a number from 1 to 4"),
            ("4 world", "3 world", 2, "a world of 3 ranks in a job of 4"),
            ("group 77 2", "group 0 2", 3, "group 0 is there already"),
            ("call 0", "call 7", 4, "call 7 where 0 is the next"),
            ("sum", "sun", 4, "sun"),
            ("all_reduce 0", "all_reduce 0 0", 4, "0"),
            ("ring even", "rung even", 4, "unknown algorithm 'rung'"),
            (
                "even 0\nwait",
                "odd 0\nwait",
                4,
                "one of even, pair, uneven",
            ),
            (
                "wait 0 110 900",
                "wait 0 910 900",
                5,
                "ends before it begins",
            ),
            ("end 0 900", "end 0 900 1", 6, "`1` after the end"),
            ("end 0 900", "end 9 900", 6, "no call 9 so far"),
            ("broadcast 1", "broadcast 2", 7, "root 2 in a group of 2"),
            ("pair 77", "pair 78", 7, "no group 78"),
            ("end 1 1500", "end 0 1500", 8, "has ended already"),
            (
                "done 2000",
                "done 99999999999999999",
                10,
                "later than any job",
            ),
            ("done 2000", "done 2000\ndone 2000", 11, "nothing follows"),
            ("end 1", "\u{7}\n", 8, "`\\u{7}` is no event"),
            (
                "end 1",
                "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
                8,
                "a word of 65 bytes",
            ),
        ] {
            let bad = GOOD.replacen(from, to, 1);
            let error = Recording::parse(&bad).unwrap_err();
            assert!(error.problem.contains(says), "{from}: {error}");
            assert_eq!(error.line, line, "{error}");
            let before: usize = bad.split_inclusive('\n').take(line - 1).map(str::len).sum();
            assert_eq!(error.offset, before);
        }
        let error = Recording::parse("").unwrap_err();
        assert!(
            error
                .to_string()
                .contains("line 1 (byte 0): there is no heading"),
            "{error}"
        );
    }
}
