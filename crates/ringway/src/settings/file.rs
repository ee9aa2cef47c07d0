//! The settings file: YAML to names and values, with the line of each.

use std::{fmt, fs, io::Read, path::Path};

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, MapAccess, SeqAccess, Visitor},
};
use serde_saphyr::{Spanned, options::DuplicateKeyPolicy};

use super::{SettingsError, Source, nearest};

/// The one section of the file.
const SECTION: &str = "communication";

/// Bytes of a settings file, at most: what is longer is not one.
const LONGEST: u64 = 1 << 20;

/// One setting as the file has it.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) value: String,
    pub(super) line: u64,
}

/// A YAML node, without what settings never need.
enum Node {
    Empty,
    List(Vec<Spanned<Self>>),
    Map(Vec<(Spanned<String>, Spanned<Self>)>),
    Scalar(String),
}

impl Node {
    const fn shape(&self) -> &'static str {
        match self {
            Self::Empty => "nothing",
            Self::List(_) => "a list",
            Self::Map(_) => "a mapping",
            Self::Scalar(_) => "a single value",
        }
    }
}

/// The text of a file.
pub(super) fn read(path: &Path) -> Result<String, SettingsError> {
    let mut text = String::new();
    fs::File::open(path)
        .and_then(|file| file.take(LONGEST + 1).read_to_string(&mut text))
        .and_then(|length| match u64::try_from(length) {
            Ok(length) if length <= LONGEST => Ok(text),
            _ => Err(std::io::Error::other(format!(
                "it is longer than {LONGEST} bytes"
            ))),
        })
        .map_err(|source| SettingsError::Read {
            path: path.to_owned(),
            source,
        })
}

/// The settings in the text of a file. Values are not yet looked at, names only for being there twice.
pub(super) fn parse(text: &str, path: &Path) -> Result<Vec<Entry>, SettingsError> {
    let at = |line: u64| Source::File {
        path: path.to_owned(),
        line,
    };
    let shape = |key: &str, line, expected, found: &Node| SettingsError::Shape {
        place: at(line),
        key: key.to_owned(),
        expected,
        found: found.shape(),
    };

    let options = serde_saphyr::options! {
        duplicate_keys: DuplicateKeyPolicy::PassThrough,
        with_snippet: false,
    };
    let root: Spanned<Node> = serde_saphyr::from_str_with_options(text, options).map_err(|e| {
        let line = e.location().map_or(0, |l| l.line());
        SettingsError::Syntax {
            place: at(line),
            detail: e.to_string(),
        }
    })?;
    let sections = match root.value {
        Node::Empty => return Ok(Vec::new()),
        Node::Map(sections) => sections,
        other => {
            return Err(shape(
                "the file",
                root.referenced.line(),
                "a mapping `communication:`",
                &other,
            ));
        }
    };

    let mut entries = Vec::new();
    refuse_duplicates(&sections, &at)?;
    for (key, node) in sections {
        let line = key.referenced.line();
        if key.value != SECTION {
            return Err(SettingsError::UnknownKey {
                place: at(line),
                hint: nearest::hint("", &key.value, [SECTION].into_iter()),
                key: key.value,
            });
        }
        let settings = match node.value {
            Node::Empty => continue,
            Node::Map(settings) => settings,
            other => return Err(shape(SECTION, line, "a mapping of settings", &other)),
        };
        refuse_duplicates(&settings, &at)?;
        for (key, node) in settings {
            let line = key.referenced.line();
            let value = match node.value {
                Node::Scalar(value) => value,
                Node::List(items) => items
                    .into_iter()
                    .map(|item| match item.value {
                        Node::Scalar(value) => Ok(value),
                        other => {
                            let line = item.referenced.line();
                            Err(shape(&key.value, line, "a list of single values", &other))
                        }
                    })
                    .collect::<Result<Vec<_>, _>>()?
                    .join(","),
                other => return Err(shape(&key.value, line, "a single value", &other)),
            };
            entries.push(Entry {
                name: key.value,
                value,
                line,
            });
        }
    }
    Ok(entries)
}

fn refuse_duplicates(
    pairs: &[(Spanned<String>, Spanned<Node>)],
    at: &impl Fn(u64) -> Source,
) -> Result<(), SettingsError> {
    for (i, (key, _)) in pairs.iter().enumerate() {
        if let Some((first, _)) = pairs[..i].iter().find(|(k, _)| k.value == key.value) {
            return Err(SettingsError::Duplicate {
                place: at(key.referenced.line()),
                key: key.value.clone(),
                first: first.referenced.line(),
            });
        }
    }
    Ok(())
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value, a list or a mapping")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Scalar(value.to_string()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Scalar(value.to_string()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(Node::Scalar(value.to_string()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
        Ok(Node::Scalar(value.to_string()))
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<Node, E> {
        // A NUL never belongs into a setting, and would end a name where the operating system reads it.
        if value.contains('\0') {
            return Err(E::custom("a value has a NUL character in it"));
        }
        Ok(Node::Scalar(value.to_owned()))
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
            let Node::Scalar(name) = key.value else {
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
