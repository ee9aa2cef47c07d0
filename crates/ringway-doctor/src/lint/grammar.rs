//! What a system understands: a table of commands, each with the mode it belongs to and what it says to the model.
//!
//! A pattern is words. `a|b` is one of several, `<name>` any word, `<0-63>` a number in that range, `<dscp>` code
//! points (numbers, names such as `af31`, lists), `<rest>` all that follows, `[...]` what may be left out. What is in
//! angle brackets or has bars is captured, in order.

use std::str::FromStr;

use super::{
    notes::Notes,
    source::{At, Place},
    statement::Statement,
};

/// A command.
pub(super) struct Rule<S> {
    /// The mode that it belongs to; the outermost is "". Bars separate several.
    pub(super) mode: &'static str,
    pub(super) pattern: &'static str,
    /// The mode that it opens.
    pub(super) opens: Option<&'static str>,
    /// What it says.
    pub(super) apply: fn(&mut S, &Captured<'_>),
}

/// A command that opens no mode.
pub(super) const fn command<S>(
    mode: &'static str,
    pattern: &'static str,
    apply: fn(&mut S, &Captured<'_>),
) -> Rule<S> {
    Rule {
        mode,
        pattern,
        opens: None,
        apply,
    }
}

/// A command that opens a mode.
pub(super) const fn opening<S>(
    mode: &'static str,
    pattern: &'static str,
    opens: &'static str,
    apply: fn(&mut S, &Captured<'_>),
) -> Rule<S> {
    Rule {
        mode,
        pattern,
        opens: Some(opens),
        apply,
    }
}

/// For commands that are known and say nothing of interest.
pub(super) fn nothing<S>(_: &mut S, _: &Captured<'_>) {}

/// What a pattern has captured.
#[derive(Debug)]
pub(super) struct Captured<'t> {
    words: Vec<Option<&'t str>>,
    rest: &'t [String],
    /// Numbers that are out of their range: the word, the least and the most.
    wrong: Vec<(&'t str, u32, u32)>,
    pub(super) place: Place,
}

impl<'t> Captured<'t> {
    /// The word captured as the `index`-th; empty if it was left out.
    pub(super) fn word(&self, index: usize) -> &'t str {
        self.words.get(index).copied().flatten().unwrap_or("")
    }

    /// The word captured as the `index`-th, with its place.
    pub(super) fn name(&self, index: usize) -> At<String> {
        At::new(self.word(index).to_owned(), self.place)
    }

    /// The number captured as the `index`-th, if there is one.
    pub(super) fn number<T: FromStr>(&self, index: usize) -> Option<At<T>> {
        let value = self.word(index).parse().ok()?;
        Some(At::new(value, self.place))
    }

    /// Bytes, if that number is captured with its unit, the word captured as the `unit`-th.
    pub(super) fn bytes(&self, number: usize, unit: usize) -> Option<At<u64>> {
        let scale = match self.word(unit) {
            "bytes" => 1,
            "kbytes" => 1000,
            "mbytes" => 1_000_000,
            _ => return None,
        };
        let number: At<u64> = self.number(number)?;
        Some(self.at(number.value.saturating_mul(scale)))
    }

    /// A value of this place.
    pub(super) const fn at<T>(&self, value: T) -> At<T> {
        At::new(value, self.place)
    }

    /// What `<rest>` captured.
    pub(super) const fn rest(&self) -> &'t [String] {
        self.rest
    }
}

#[derive(Debug)]
enum Token {
    Choice(Vec<&'static str>),
    Dscp,
    Literal(&'static str),
    Number(u32, u32),
    Optional(Vec<Self>),
    Rest,
    Word,
}

/// All commands of a system.
pub(super) struct Grammar<S: 'static> {
    rules: Vec<(&'static Rule<S>, Vec<Token>)>,
    /// How commands begin that are judged: what begins otherwise belongs to other parts of the configuration.
    territory: &'static [&'static str],
}

/// The mode of sections that belong to other parts of the configuration.
const ELSEWHERE: &str = "elsewhere";

impl<S> Grammar<S> {
    pub(super) fn new(rules: &'static [Rule<S>], territory: &'static [&'static str]) -> Self {
        let compile = |rule: &'static Rule<S>| (rule, tokens(rule.pattern));
        Self {
            rules: rules.iter().map(compile).collect(),
            territory,
        }
    }

    /// Reads statements into `state`. Unknown commands, commands in the wrong mode and numbers out of range are noted.
    pub(super) fn read(
        &self,
        statements: &[Statement],
        file: Place,
        state: &mut S,
        notes: &mut Notes,
    ) {
        // Configurations that systems show are indented; what people type may be not.
        let indented = statements.iter().any(|statement| statement.indent > 0);
        let mut modes: Vec<&'static str> = vec![""];
        for statement in statements {
            let place = file.line(statement.line);
            if indented && statement.indent == 0 {
                modes.truncate(1);
            }
            if modes.last() == Some(&ELSEWHERE) {
                continue;
            }
            let found = (0..modes.len()).rev().find_map(|depth| {
                let (rule, captured) = self.find(Some(modes[depth]), &statement.words, place)?;
                Some((depth, rule, captured))
            });
            if let Some((depth, rule, captured)) = found {
                modes.truncate(depth + 1);
                modes.extend(rule.opens);
                for (word, least, most) in &captured.wrong {
                    notes.out_of_range(place, word, *least, *most);
                }
                (rule.apply)(state, &captured);
                continue;
            }
            let known = self.judge(statement, place, &modes, notes);
            if indented && statement.indent == 0 && !known {
                modes.push(ELSEWHERE);
            }
        }
    }

    /// Notes what is wrong with a statement that the open modes do not know. The result says whether it is any of
    /// this configuration's business.
    fn judge(
        &self,
        statement: &Statement,
        place: Place,
        modes: &[&'static str],
        notes: &mut Notes,
    ) -> bool {
        let taken_back = match statement.words.split_first() {
            Some((first, rest)) if first == "no" || first == "default" => rest,
            _ => &statement.words[..],
        };
        let begins = |prefix: &&&str| {
            prefix
                .split(' ')
                .zip(taken_back)
                .filter(|(wanted, word)| wanted == word)
                .count()
                == prefix.split(' ').count()
        };
        if !self.territory.iter().any(|prefix| begins(&prefix)) {
            return false;
        }
        if taken_back.len() < statement.words.len() {
            // What is taken back changes nothing that anything here looks at.
            return true;
        }
        let mode = modes.last().copied().unwrap_or("");
        match self.find(None, &statement.words, place) {
            Some((rule, _)) => notes.wrong_mode(place, &statement.words, mode, rule.mode),
            None => notes.unknown(place, &statement.words, mode),
        }
        true
    }

    fn find<'t>(
        &self,
        mode: Option<&str>,
        words: &'t [String],
        place: Place,
    ) -> Option<(&'static Rule<S>, Captured<'t>)> {
        self.rules
            .iter()
            .filter(|(rule, _)| mode.is_none_or(|mode| rule.mode.split('|').any(|its| its == mode)))
            .find_map(|(rule, tokens)| {
                let mut captured = Captured {
                    words: Vec::new(),
                    rest: &[],
                    wrong: Vec::new(),
                    place,
                };
                fits(tokens, words, &mut captured).then_some((*rule, captured))
            })
    }
}

/// Whether the words are what the tokens say, no less and no more.
fn fits<'t>(tokens: &[Token], words: &'t [String], captured: &mut Captured<'t>) -> bool {
    let Some((token, tokens)) = tokens.split_first() else {
        return words.is_empty();
    };
    match token {
        Token::Rest => {
            captured.rest = words;
            return true;
        }
        Token::Optional(inner) => {
            let before = (captured.words.len(), captured.wrong.len());
            // The rest is matched in the same breath, so that an option taken in vain is given back.
            if let Some(after) = prefix(inner, words, captured)
                && fits(tokens, after, captured)
            {
                return true;
            }
            captured.words.truncate(before.0);
            captured.wrong.truncate(before.1);
            captured
                .words
                .extend(std::iter::repeat_n(None, captures(inner)));
            return fits(tokens, words, captured);
        }
        _ => {}
    }
    let Some((word, rest)) = words.split_first() else {
        return false;
    };
    one(token, word, captured) && fits(tokens, rest, captured)
}

/// The words after those that the tokens say.
fn prefix<'t>(
    tokens: &[Token],
    words: &'t [String],
    captured: &mut Captured<'t>,
) -> Option<&'t [String]> {
    let (head, rest) = words.split_at_checked(tokens.len())?;
    let all = tokens
        .iter()
        .zip(head)
        .all(|(token, word)| one(token, word, captured));
    all.then_some(rest)
}

fn one<'t>(token: &Token, word: &'t str, captured: &mut Captured<'t>) -> bool {
    match token {
        Token::Literal(literal) => return *literal == word,
        Token::Choice(choices) if !choices.contains(&word) => return false,
        Token::Dscp if code_points(word).is_none() => {
            if !word.starts_with(|c: char| c.is_ascii_digit()) {
                return false;
            }
            captured.wrong.push((word, 0, 63));
        }
        Token::Number(least, most) => {
            if word.is_empty() || !word.bytes().all(|byte| byte.is_ascii_digit()) {
                return false;
            }
            if !word
                .parse()
                .is_ok_and(|number| (*least..=*most).contains(&number))
            {
                captured.wrong.push((word, *least, *most));
            }
        }
        Token::Optional(_) | Token::Rest => return false,
        _ => {}
    }
    captured.words.push(Some(word));
    true
}

/// How many words the tokens capture.
fn captures(tokens: &[Token]) -> usize {
    tokens
        .iter()
        .filter(|token| !matches!(token, Token::Literal(_)))
        .count()
}

fn tokens(pattern: &'static str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = pattern.trim_start();
    while !rest.is_empty() {
        if let Some(inner) = rest.strip_prefix('[') {
            let (inner, after) = inner.split_once(']').unwrap_or((inner, ""));
            tokens.push(Token::Optional(self::tokens(inner)));
            rest = after.trim_start();
            continue;
        }
        let (word, after) = rest.split_once(' ').unwrap_or((rest, ""));
        let named = word
            .strip_prefix('<')
            .and_then(|word| word.strip_suffix('>'));
        let range = named
            .and_then(|name| name.split_once('-'))
            .and_then(|(least, most)| Some((least.parse().ok()?, most.parse().ok()?)));
        tokens.push(match (named, range) {
            (_, Some((least, most))) => Token::Number(least, most),
            (Some("dscp"), _) => Token::Dscp,
            (Some("rest"), _) => Token::Rest,
            (Some(_), _) => Token::Word,
            (None, _) if word.contains('|') => Token::Choice(word.split('|').collect()),
            (None, _) => Token::Literal(word),
        });
        rest = after.trim_start();
    }
    tokens
}

/// Code points: numbers, ranges and lists of them, and the names of RFC 2474, 2597 and 3246.
pub(super) fn code_points(text: &str) -> Option<Vec<u8>> {
    let mut all = Vec::new();
    for part in text.split(',') {
        if let Some((first, last)) = part.split_once('-') {
            let (first, last) = (first.parse::<u8>().ok()?, last.parse::<u8>().ok()?);
            if first > last || last > 63 {
                return None;
            }
            all.extend(first..=last);
        } else {
            all.push(code_point(part)?);
        }
    }
    Some(all)
}

fn code_point(text: &str) -> Option<u8> {
    if text.starts_with(|c: char| c.is_ascii_digit()) {
        return text.parse().ok().filter(|dscp| *dscp < 64);
    }
    let name = text.to_ascii_lowercase();
    let digit = |text: &str, most: u8| text.parse::<u8>().ok().filter(|n| (1..=most).contains(n));
    match name.as_str() {
        "default" | "be" => Some(0),
        "ef" => Some(46),
        _ => {
            if let Some(class) = name.strip_prefix("cs") {
                return digit(class, 7).map(|class| class * 8);
            }
            let (class, drop) = name.strip_prefix("af")?.split_at_checked(1)?;
            Some(digit(class, 4)? * 8 + digit(drop, 3)? * 2)
        }
    }
}

/// Numbers of a list such as `0,3-5`; none if it is no such list, or of more than 8 bits.
pub(super) fn numbers(text: &str) -> Option<Vec<u8>> {
    let mut all = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        all.extend(first.parse::<u8>().ok()?..=last.parse::<u8>().ok()?);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matched<'t>(pattern: &'static str, words: &'t [String]) -> Option<Captured<'t>> {
        let mut captured = Captured {
            words: Vec::new(),
            rest: &[],
            wrong: Vec::new(),
            place: Place::new(0, 0),
        };
        fits(&tokens(pattern), words, &mut captured).then_some(captured)
    }

    fn split(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn patterns() {
        let pattern = "random-detect minimum <0-100> kbytes|bytes [drop-probability <0-100>] [weight <0-15>] [ecn]";
        let words = split("random-detect minimum 150 kbytes weight 3 ecn");
        let found = matched(pattern, &words).unwrap();
        assert_eq!(found.words, [Some("150"), Some("kbytes"), None, Some("3")]);
        assert_eq!(found.wrong, [("150", 0, 100)]);
        for wrong in [
            "random-detect minimum 1 packets",
            "random-detect minimum 1 bytes ecn ecn",
            "random-detect",
        ] {
            assert!(matched(pattern, &split(wrong)).is_none(), "{wrong}");
        }
        assert_eq!(
            matched("a <rest>", &split("a b c")).unwrap().rest,
            ["b", "c"]
        );
    }

    #[test]
    fn code_points_have_names() {
        assert_eq!(
            code_points("af31,cs6,46,8-10"),
            Some(vec![26, 48, 46, 8, 9, 10])
        );
        for wrong in ["64", "af51", "cs8", "af", "", "3-1", "x"] {
            assert_eq!(code_points(wrong), None, "{wrong}");
        }
        assert_eq!(numbers("0,3-5"), Some(vec![0, 3, 4, 5]));
        assert_eq!(numbers("0-x"), None);
    }
}
