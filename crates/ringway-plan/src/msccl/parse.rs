//! From XML to what it says, checked element by element.

use roxmltree::{Document, Node, ParsingOptions};

use super::MscclError;
use crate::schedule::{Collective, Rank};

/// Limits, far above any file in use, that keep what is read in bounds.
const RANKS: usize = 4096;
const CHUNKS: usize = 1 << 16;
const CHANNELS: usize = 1 << 10;
const BLOCKS: usize = 1 << 9;
/// Of chunks that all ranks have, and that all steps touch.
const TOUCHES: usize = 1 << 20;

/// A file's schedule.
pub(super) struct Algo {
    pub(super) name: String,
    pub(super) collective: Collective,
    /// Input and output are the same memory.
    pub(super) in_place: bool,
    pub(super) chunks: usize,
    pub(super) gpus: Vec<Gpu>,
}

pub(super) struct Gpu {
    pub(super) scratch: usize,
    pub(super) blocks: Vec<Block>,
}

pub(super) struct Block {
    /// `None` of blocks that only work locally.
    pub(super) channel: Option<usize>,
    pub(super) steps: Vec<Step>,
}

pub(super) struct Step {
    pub(super) line: u32,
    pub(super) kind: Kind,
    pub(super) count: usize,
    /// A step of another block, by index.
    pub(super) after: Option<(usize, usize)>,
}

#[derive(Clone, Copy)]
pub(super) enum Kind {
    Copy {
        src: Place,
        dst: Place,
    },
    Nothing,
    Reduce {
        src: Place,
        dst: Place,
    },
    /// Receives, and sends on if there is somebody to send to.
    Receive {
        from: Rank,
        dst: Place,
        then: Option<Rank>,
    },
    ReceiveReduce {
        from: Rank,
        src: Place,
        dst: Option<Place>,
        then: Option<Rank>,
    },
    Send {
        to: Rank,
        src: Place,
    },
}

#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) buffer: Buffer,
    pub(super) offset: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Buffer {
    Input,
    Output,
    Scratch,
}

/// An element, with its place in the text for errors.
#[derive(Clone, Copy)]
struct Element<'a>(Node<'a, 'a>);

pub(super) fn parse(xml: &str, root: Rank) -> Result<Algo, MscclError> {
    let options = ParsingOptions {
        allow_dtd: false,
        nodes_limit: 1 << 22,
        ..ParsingOptions::default()
    };
    let document =
        Document::parse_with_options(xml, options).map_err(|e| MscclError::Xml(e.to_string()))?;
    let algo = Element(document.root_element());
    algo.is("algo")?;
    algo.has_only(&[
        "name",
        "proto",
        "nchannels",
        "nchunksperloop",
        "ngpus",
        "coll",
        "inplace",
        "outofplace",
        "minBytes",
        "maxBytes",
        "redop",
        "nthreads",
    ])?;
    let ranks = algo.number("ngpus", 1..=RANKS)?;
    let collective = collective(algo, root)?;
    let in_place = algo.optional("inplace", 0..=1)? == Some(1);

    let mut gpus: Vec<Option<Gpu>> = (0..ranks).map(|_| None).collect();
    let (mut most, mut touches) = (1, 0);
    for gpu in algo.children("gpu") {
        let gpu = gpu?;
        gpu.has_only(&["id", "i_chunks", "o_chunks", "s_chunks"])?;
        let id = gpu.number("id", 0..=ranks - 1)?;
        most = most
            .max(gpu.number("i_chunks", 0..=CHUNKS)?)
            .max(gpu.number("o_chunks", 0..=CHUNKS)?);
        if gpus[id].is_some() {
            return Err(gpu.unexpected("a gpu once", &format!("another with id {id}")));
        }
        gpus[id] = Some(one_gpu(gpu, id, ranks, &mut touches)?);
    }
    let chunks = algo.optional("nchunksperloop", 1..=CHUNKS)?.unwrap_or(most);
    if chunks * ranks > TOUCHES {
        return Err(algo.unexpected(&format!("at most {TOUCHES} chunks of all gpus"), "more"));
    }
    let all: Option<Vec<Gpu>> = gpus.into_iter().collect();
    let Some(gpus) = all else {
        return Err(algo.unexpected(&format!("a gpu for each id below {ranks}"), "fewer"));
    };
    Ok(Algo {
        name: algo.text("name")?.to_owned(),
        collective,
        in_place,
        chunks,
        gpus,
    })
}

fn collective(algo: Element<'_>, root: Rank) -> Result<Collective, MscclError> {
    Ok(match algo.text("coll")? {
        "allgather" => Collective::AllGather,
        "allreduce" => Collective::AllReduce,
        "alltoall" => Collective::AllToAll,
        "broadcast" => Collective::Broadcast { root },
        "gather" => Collective::Gather { root },
        "reduce" => Collective::Reduce { root },
        "reduce_scatter" | "reducescatter" => Collective::ReduceScatter,
        "scatter" => Collective::Scatter { root },
        other => {
            let expected = "coll to be allgather, allreduce, alltoall, broadcast, gather, reduce, reduce_scatter or scatter";
            return Err(algo.unexpected(expected, other));
        }
    })
}

fn one_gpu(
    gpu: Element<'_>,
    rank: Rank,
    ranks: usize,
    touches: &mut usize,
) -> Result<Gpu, MscclError> {
    let scratch = gpu.number("s_chunks", 0..=CHUNKS)?;
    let blocks = gpu.children("tb").collect::<Result<Vec<_>, _>>()?;
    if blocks.len() > BLOCKS {
        return Err(gpu.unexpected(&format!("at most {BLOCKS} tb"), &blocks.len().to_string()));
    }
    *touches += scratch;
    let lengths: Vec<usize> = blocks.iter().map(|b| b.children("step").count()).collect();
    let mut read = Vec::with_capacity(blocks.len());
    for (id, block) in blocks.iter().enumerate() {
        block.has_only(&["id", "send", "recv", "chan"])?;
        if block.number("id", 0..=blocks.len())? != id {
            return Err(block.unexpected(&format!("tb with id {id}"), block.text("id")?));
        }
        let peer = |name| match block.optional(name, 0..=ranks - 1)? {
            Some(peer) if peer == rank => {
                Err(block.unexpected(&format!("{name} to be another gpu"), "its own"))
            }
            peer => Ok(peer),
        };
        let (send, recv) = (peer("send")?, peer("recv")?);
        let channel = block.optional("chan", 0..=CHANNELS)?;
        let mut steps = Vec::new();
        for (number, step) in block.children("step").enumerate() {
            let step = step?;
            step.has_only(&[
                "s", "type", "srcbuf", "srcoff", "dstbuf", "dstoff", "cnt", "depid", "deps",
                "hasdep",
            ])?;
            if step.number("s", 0..=usize::MAX)? != number {
                return Err(step.unexpected(&format!("step with s {number}"), step.text("s")?));
            }
            let count = step.optional("cnt", 0..=CHUNKS)?.unwrap_or(1);
            *touches += count;
            if *touches > TOUCHES {
                return Err(
                    step.unexpected(&format!("at most {TOUCHES} chunks in all steps"), "more")
                );
            }
            let after = match step.optional("depid", 0..=blocks.len().saturating_sub(1))? {
                None => None,
                Some(other) if other == id => {
                    return Err(step.unexpected("depid to be another tb", "its own"));
                }
                Some(other) => Some((
                    other,
                    step.number("deps", 0..=lengths[other].saturating_sub(1))?,
                )),
            };
            steps.push(Step {
                line: step.line(),
                kind: step.kind(send, recv)?,
                count,
                after,
            });
        }
        read.push(Block { channel, steps });
    }
    Ok(Gpu {
        scratch,
        blocks: read,
    })
}

impl<'a> Element<'a> {
    fn line(self) -> u32 {
        self.0.document().text_pos_at(self.0.range().start).row
    }

    fn unexpected(self, expected: &str, found: &str) -> MscclError {
        MscclError::Unexpected {
            line: self.line(),
            expected: expected.to_owned(),
            found: found.to_owned(),
        }
    }

    fn is(self, name: &str) -> Result<(), MscclError> {
        match self.0.tag_name().name() {
            found if found == name => Ok(()),
            found => Err(self.unexpected(&format!("element {name}"), &format!("element {found}"))),
        }
    }

    /// The elements in this one, which must all have that name.
    fn children(self, name: &'static str) -> impl Iterator<Item = Result<Self, MscclError>> {
        let elements = self.0.children().filter(|n| n.is_element() || n.is_text());
        elements.filter_map(move |node| {
            let text = node.text().unwrap_or_default().trim();
            match node.is_element() {
                true => Some(Self(node).is(name).map(|()| Self(node))),
                false if text.is_empty() => None,
                false => Some(Err(
                    Self(node).unexpected(&format!("element {name}"), "text")
                )),
            }
        })
    }

    fn has_only(self, known: &[&str]) -> Result<(), MscclError> {
        match self.0.attributes().find(|a| !known.contains(&a.name())) {
            None => Ok(()),
            Some(other) => {
                let expected = format!("one of the attributes {}", known.join(", "));
                Err(self.unexpected(&expected, other.name()))
            }
        }
    }

    fn text(self, name: &str) -> Result<&'a str, MscclError> {
        let missing = || self.unexpected(&format!("attribute {name}"), "none");
        self.0.attribute(name).ok_or_else(missing)
    }

    fn number(
        self,
        name: &str,
        range: std::ops::RangeInclusive<usize>,
    ) -> Result<usize, MscclError> {
        let text = self.text(name)?;
        match text.parse() {
            Ok(number) if range.contains(&number) => Ok(number),
            _ => {
                let (low, high) = (range.start(), range.end());
                let expected = match *high {
                    usize::MAX => format!("{name} to be a number"),
                    _ => format!("{name} to be a number from {low} to {high}"),
                };
                Err(self.unexpected(&expected, text))
            }
        }
    }

    /// The number, if there is one: -1 is none.
    fn optional(
        self,
        name: &str,
        range: std::ops::RangeInclusive<usize>,
    ) -> Result<Option<usize>, MscclError> {
        match self.0.attribute(name) {
            None | Some("-1") => Ok(None),
            Some(_) => self.number(name, range).map(Some),
        }
    }

    fn place(self, buffer: &str, offset: &str) -> Result<Place, MscclError> {
        let buffer = match self.text(buffer)? {
            "i" => Buffer::Input,
            "o" => Buffer::Output,
            "s" => Buffer::Scratch,
            other => return Err(self.unexpected(&format!("{buffer} to be i, o or s"), other)),
        };
        Ok(Place {
            buffer,
            offset: self.number(offset, 0..=CHUNKS)?,
        })
    }

    fn kind(self, send: Option<Rank>, recv: Option<Rank>) -> Result<Kind, MscclError> {
        let src = || self.place("srcbuf", "srcoff");
        let dst = || self.place("dstbuf", "dstoff");
        let peer = |peer: Option<Rank>, name| {
            let expected =
                || format!("a tb with attribute {name}, for this step sends or receives");
            peer.ok_or_else(|| self.unexpected(&expected(), "none"))
        };
        let (to, from) = (|| peer(send, "send"), || peer(recv, "recv"));
        Ok(match self.text("type")? {
            "cpy" => Kind::Copy {
                src: src()?,
                dst: dst()?,
            },
            "nop" => Kind::Nothing,
            "r" => Kind::Receive {
                from: from()?,
                dst: dst()?,
                then: None,
            },
            "rcs" => Kind::Receive {
                from: from()?,
                dst: dst()?,
                then: Some(to()?),
            },
            "re" => Kind::Reduce {
                src: src()?,
                dst: dst()?,
            },
            "rrc" => Kind::ReceiveReduce {
                from: from()?,
                src: src()?,
                dst: Some(dst()?),
                then: None,
            },
            "rrcs" => Kind::ReceiveReduce {
                from: from()?,
                src: src()?,
                dst: Some(dst()?),
                then: Some(to()?),
            },
            "rrs" => Kind::ReceiveReduce {
                from: from()?,
                src: src()?,
                dst: None,
                then: Some(to()?),
            },
            "s" => Kind::Send {
                to: to()?,
                src: src()?,
            },
            other => {
                let expected = "type to be cpy, nop, r, rcs, re, rrc, rrcs, rrs or s";
                return Err(self.unexpected(expected, other));
            }
        })
    }
}
