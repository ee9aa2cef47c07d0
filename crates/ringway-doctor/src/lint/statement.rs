//! Configurations of every kind as one: statements, each some words on a line.

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, MapAccess, SeqAccess, Visitor},
};
use serde_saphyr::{Spanned, options::DuplicateKeyPolicy};

/// Some words on a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Statement {
    pub(super) words: Vec<String>,
    /// From 1.
    pub(super) line: u32,
    /// Spaces in front.
    pub(super) indent: usize,
}

fn number(line: usize) -> u32 {
    u32::try_from(line).unwrap_or(u32::MAX)
}

/// The lines of a command line's configuration; those that begin with one of `comments` are none.
pub(super) fn lines(text: &str, comments: &[char]) -> Vec<Statement> {
    let mut statements = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let body = line.trim();
        if body.is_empty() || body.starts_with(comments) {
            continue;
        }
        statements.push(Statement {
            words: words(body),
            line: number(index + 1),
            indent: line.len() - line.trim_start().len(),
        });
    }
    statements
}

/// Words, of which those in quotes are one.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let (word, after) = match first {
            '"' | '\'' => {
                let inner = &rest[1..];
                let end = inner.find(first).unwrap_or(inner.len());
                (&inner[..end], inner.get(end + 1..).unwrap_or(""))
            }
            _ => rest.split_at(rest.find(char::is_whitespace).unwrap_or(rest.len())),
        };
        words.push(word.to_owned());
        rest = after.trim_start();
    }
    words
}

/// Junos's braces as its `set` statements; `set` itself is left out, and so is it from lines that have it. What is
/// deleted, deactivated or marked `inactive:` is left out as well. Errors have the line.
pub(super) fn junos(text: &str) -> Result<Vec<Statement>, (u32, String)> {
    if !text.contains('{') {
        let mut inactive: Vec<Vec<String>> = Vec::new();
        let mut statements: Vec<Statement> = Vec::new();
        for statement in lines(text, &['#', '!']) {
            let Some((verb, path)) = statement.words.split_first() else {
                continue;
            };
            match verb.as_str() {
                "set" if !path.is_empty() => statements.push(Statement {
                    words: path.to_vec(),
                    indent: 0,
                    ..statement
                }),
                // What is set before, and all below it.
                "delete" => statements.retain(|it| !it.words.starts_with(path)),
                "deactivate" => inactive.push(path.to_vec()),
                "activate" => inactive.retain(|it| it != path),
                _ => {}
            }
        }
        statements.retain(|it| !inactive.iter().any(|path| it.words.starts_with(path)));
        return Ok(statements);
    }
    let (mut path, mut open): (Vec<String>, Vec<(usize, u32)>) = (Vec::new(), Vec::new());
    let (mut current, mut list): (Vec<String>, Option<Vec<String>>) = (Vec::new(), None);
    let mut statements = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let body = line.split(['#']).next().unwrap_or("");
        if body.trim_start().starts_with("/*") {
            continue;
        }
        let spaced = ['{', '}', ';', '[', ']']
            .iter()
            .fold(body.to_owned(), |text, mark| {
                text.replace(*mark, &format!(" {mark} "))
            });
        for word in words(&spaced) {
            match word.as_str() {
                "{" => {
                    open.push((path.len(), number(index + 1)));
                    path.append(&mut current);
                }
                "}" => match open.pop() {
                    Some((length, _)) => path.truncate(length),
                    None => return Err((number(index + 1), "`}` closes nothing".to_owned())),
                },
                "[" => list = Some(Vec::new()),
                "]" => {}
                ";" => {
                    let mut emit = |last: Option<String>| {
                        let whole = path.iter().chain(&current).cloned().chain(last);
                        let words: Vec<_> = whole.collect();
                        let active = !words.iter().any(|word| word == "inactive:");
                        if active && !words.is_empty() {
                            statements.push(Statement {
                                words,
                                line: number(index + 1),
                                indent: 0,
                            });
                        }
                    };
                    match list.take() {
                        None => emit(None),
                        Some(items) => items.into_iter().for_each(|item| emit(Some(item))),
                    }
                    current.clear();
                }
                _ => match &mut list {
                    Some(items) => items.push(word),
                    None => current.push(word),
                },
            }
        }
        // What is longer than any real path has braces that are never closed.
        if path.len() + current.len() > 64 {
            break;
        }
    }
    match open.last() {
        Some((_, line)) => Err((*line, "`{` is never closed".to_owned())),
        None => Ok(statements),
    }
}

/// A tree of YAML or JSON, one statement for each leaf: its path and its value. Errors have the line.
pub(super) fn tree(text: &str) -> Result<Vec<Statement>, (u32, String)> {
    Ok(leaves(&parse(text)?))
}

/// The objects of a document of Kubernetes, each as by [`tree`]: the document itself, or the items of a list, as
/// `kubectl get -o yaml` prints it. Errors have the line.
pub(super) fn objects(text: &str) -> Result<Vec<Vec<Statement>>, (u32, String)> {
    let root = parse(text)?;
    Ok(match items(&root.value) {
        Some(items) => items.iter().map(leaves).collect(),
        None => vec![leaves(&root)],
    })
}

/// The items of a list: its kind is `List`, or one such as `JobList`.
fn items(node: &Node) -> Option<&[Spanned<Node>]> {
    let Node::Map(pairs) = node else { return None };
    let of = |name: &str| {
        let pair = pairs.iter().find(|(key, _)| key.value == name)?;
        Some(&pair.1.value)
    };
    match (of("kind")?, of("items")?) {
        (Node::Leaf(kind), Node::List(items)) if kind.ends_with("List") => Some(items),
        _ => None,
    }
}

fn parse(text: &str) -> Result<Spanned<Node>, (u32, String)> {
    let options = serde_saphyr::options! {
        duplicate_keys: DuplicateKeyPolicy::PassThrough,
        with_snippet: false,
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|e| {
        let line = e.location().map_or(0, |location| location.line());
        (u32::try_from(line).unwrap_or(0), e.to_string())
    })
}

fn leaves(root: &Spanned<Node>) -> Vec<Statement> {
    let mut statements = Vec::new();
    let line = u32::try_from(root.referenced.line()).unwrap_or(0);
    flatten(&root.value, line, &mut Vec::new(), &mut statements);
    statements
}

enum Node {
    Leaf(String),
    Empty,
    List(Vec<Spanned<Self>>),
    Map(Vec<(Spanned<String>, Spanned<Self>)>),
}

fn flatten(node: &Node, line: u32, path: &mut Vec<String>, out: &mut Vec<Statement>) {
    let mut leaf = |value: Option<&String>| {
        out.push(Statement {
            words: path.iter().chain(value).cloned().collect(),
            line,
            indent: 0,
        });
    };
    match node {
        Node::Leaf(value) => leaf(Some(value)),
        Node::Empty => leaf(None),
        Node::List(items) if items.is_empty() => leaf(None),
        Node::Map(pairs) if pairs.is_empty() => leaf(None),
        Node::List(items) => {
            for item in items {
                let line = u32::try_from(item.referenced.line()).unwrap_or(0);
                flatten(&item.value, line, path, out);
            }
        }
        Node::Map(pairs) => {
            for (key, value) in pairs {
                path.push(key.value.clone());
                let line = u32::try_from(key.referenced.line()).unwrap_or(0);
                flatten(&value.value, line, path, out);
                path.pop();
            }
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a value, a list or a mapping")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Leaf(value.to_string()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Leaf(value.to_string()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(Node::Leaf(value.to_string()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
        Ok(Node::Leaf(value.to_string()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Node, E> {
        Ok(Node::Leaf(value.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Empty)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Node::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut pairs: A) -> Result<Node, A::Error> {
        let mut map = Vec::new();
        while let Some(key) = pairs.next_key::<Spanned<Node>>()? {
            let Node::Leaf(name) = key.value else {
                return Err(A::Error::custom("a key is no single value"));
            };
            let key = Spanned {
                value: name,
                referenced: key.referenced,
                defined: key.defined,
            };
            map.push((key, pairs.next_value()?));
        }
        Ok(Node::Map(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(statements: &[Statement]) -> Vec<String> {
        let show = |s: &Statement| format!("{}: {}", s.line, s.words.join(" "));
        statements.iter().map(show).collect()
    }

    #[test]
    fn braces_are_set_statements() {
        let text = "class-of-service {\n  classifiers { dscp A { code-points [ 1 0 ]; } }\n  shared; }\nx 1;\n";
        let expected = [
            "2: class-of-service classifiers dscp A code-points 1",
            "2: class-of-service classifiers dscp A code-points 0",
            "3: class-of-service shared",
            "4: x 1",
        ];
        assert_eq!(shown(&junos(text).unwrap()), expected);
        let text = "set a b\ndelete c\n# set d\n";
        assert_eq!(shown(&junos(text).unwrap()), ["1: a b"]);
        // What is deleted goes with all below it, and what is set again stays.
        let text = "set a b c\nset a b d\nset a bc\ndelete a b\nset a b d\n";
        assert_eq!(shown(&junos(text).unwrap()), ["3: a bc", "5: a b d"]);
    }

    #[test]
    fn what_is_inactive_in_junos_is_left_out() {
        let text = "a {\n  inactive: b { c; }\n  inactive: d 1;\n  e;\n}\n";
        assert_eq!(shown(&junos(text).unwrap()), ["4: a e"]);
        let text = "set a b c\nset a bc\nset d\ndeactivate a b\ndeactivate d\nactivate d\n";
        assert_eq!(shown(&junos(text).unwrap()), ["2: a bc", "3: d"]);
        assert_eq!(junos("a {\n b {\n c; }\n").unwrap_err().0, 1);
        assert_eq!(junos("a { b; }\n}\n").unwrap_err().0, 2);
    }

    #[test]
    fn leaves_have_their_lines() {
        let json =
            "{\n \"A\": {\n  \"b|1\": {\"c\": \"3\"},\n  \"d\": {}\n },\n \"E\": [1,\n 2]\n}\n";
        let expected = ["3: A b|1 c 3", "4: A d", "6: E 1", "7: E 2"];
        assert_eq!(shown(&tree(json).unwrap()), expected);
        assert_eq!(tree("{\n \"a\": [\n").unwrap_err().0, 2);
    }
}
