//! The fabric file: YAML to its entries, each with its place. What they mean is made of them in `expand`.

use std::{fmt, time::Duration};

use serde::{Deserialize, Deserializer, de};
use serde_saphyr::Spanned;

use crate::{
    error::{FabricError, Problem},
    model::Tier,
    units::{parse_latency, parse_rate},
};

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    pub(crate) fabric: String,
    pub(crate) hosts: Vec<Spanned<Hosts>>,
    #[serde(default)]
    pub(crate) switches: Vec<Spanned<Switches>>,
    #[serde(default)]
    pub(crate) links: Vec<Spanned<Links>>,
    #[serde(default)]
    pub(crate) cut: Vec<Spanned<Cut>>,
}

/// Hosts that are alike.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Hosts {
    pub(crate) name: Spanned<String>,
    pub(crate) count: Option<Spanned<usize>>,
    #[serde(default = "one")]
    pub(crate) gpus: usize,
    #[serde(default = "one")]
    pub(crate) nics: usize,
    #[serde(default = "one")]
    pub(crate) numa: usize,
    pub(crate) gpu_numa: Option<Spanned<Vec<usize>>>,
    pub(crate) nic_numa: Option<Spanned<Vec<usize>>>,
    #[serde(default)]
    pub(crate) forwards: bool,
    #[serde(default = "Latency::overhead")]
    pub(crate) overhead: Latency,
    #[serde(default = "Rate::reduce")]
    pub(crate) reduce: Rate,
    #[serde(default)]
    pub(crate) local: LocalEntry,
}

/// The way between GPUs of a host.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LocalEntry {
    pub(crate) rate: Rate,
    pub(crate) latency: Latency,
}

impl Default for LocalEntry {
    fn default() -> Self {
        Self {
            rate: Rate(300e9),
            latency: Latency(Duration::from_micros(1)),
        }
    }
}

/// Switches that are alike.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Switches {
    pub(crate) name: Spanned<String>,
    pub(crate) count: Option<Spanned<usize>>,
    pub(crate) tier: Tier,
    pub(crate) ports: Option<usize>,
}

/// Links between two groups.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Links {
    pub(crate) from: Spanned<String>,
    pub(crate) to: Spanned<String>,
    pub(crate) join: Join,
    pub(crate) rate: Rate,
    pub(crate) latency: Latency,
    #[serde(default = "one")]
    pub(crate) parallel: usize,
}

/// Who of two groups is linked to whom.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Join {
    /// Each to each.
    Full,
    /// Both groups in so many runs; within a run, each to each.
    Blocks(usize),
    /// Hosts in so many runs; NIC k of each host to switch k of its run.
    Rails(usize),
    /// Members at the same place of every run of so many, to one of so many runs of the other group.
    Stripes(usize),
    /// One group as a grid that is closed in each dimension; the last dimension varies fastest.
    Torus(Vec<usize>),
}

/// Links that are there no more.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Cut {
    pub(crate) from: Spanned<String>,
    pub(crate) to: Spanned<String>,
}

/// Bytes per second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate(pub(crate) f64);

impl Rate {
    /// What a rank reduces and copies: the bandwidth of a GPU's memory, by thirds for two reads and a write, roughly.
    const fn reduce() -> Self {
        Self(500e9)
    }
}

/// A duration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Latency(pub(crate) Duration);

impl Latency {
    /// What a message costs its sender before the first byte leaves.
    const fn overhead() -> Self {
        Self(Duration::from_micros(1))
    }
}

const fn one() -> usize {
    1
}

/// A quantity is text with a unit; a bare number is told so with the same words.
struct Text;

impl de::Visitor<'_> for Text {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number with its unit, such as 400Gbit/s or 600ns")
    }

    fn visit_str<E>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = deserializer.deserialize_str(Text)?;
        parse_rate(&text).map(Self).map_err(de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Latency {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = deserializer.deserialize_str(Text)?;
        parse_latency(&text).map(Self).map_err(de::Error::custom)
    }
}

/// The entries of a file.
pub(crate) fn read(text: &str) -> Result<File, FabricError> {
    let options = serde_saphyr::options! { with_snippet: false };
    serde_saphyr::from_str_with_options(text, options).map_err(|e| {
        let (line, column) = e.location().map_or((0, 0), |l| (l.line(), l.column()));
        let detail = e.to_string();
        // The place is said once, and first.
        let detail = match detail.rfind(" at line ") {
            Some(at) => detail[..at].to_owned(),
            None => detail,
        };
        FabricError {
            line,
            column,
            problem: Problem::Syntax { detail },
        }
    })
}
