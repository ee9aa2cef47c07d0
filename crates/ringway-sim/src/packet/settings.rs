//! What switches and NICs are set to.

use ringway_fabric::{Fabric, Link, NodeId};
use ringway_roce::{dcqcn, rc::Mtu, timer::AckTimeout};

use super::HEADERS;
use crate::error::SimError;

/// When a switch marks packets "congestion experienced", by the bytes that wait in an egress queue: never up to `from`, always
/// beyond `full`, and between with a chance that grows from 0 to `chance` (RED: Floyd, Jacobson 1993, as DCQCN uses it).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Marking {
    /// Kmin, in bytes.
    pub from: u64,
    /// Kmax, in bytes.
    pub full: u64,
    /// Pmax, 0 to 1.
    pub chance: f64,
}

impl Default for Marking {
    /// 150 KB, 1500 KB and 1 %: the order of what is deployed on 100 to 400 Gbit/s, with the chance of the DCQCN paper.
    fn default() -> Self {
        Self {
            from: 150_000,
            full: 1_500_000,
            chance: 0.01,
        }
    }
}

/// What a switch does before its buffer is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowControl {
    /// Priority flow control (IEEE 802.1Qbb): a link whose packets take more than `xoff` bytes of the buffer is told to pause,
    /// and to go on once they take no more than `xon`.
    Lossless {
        /// In bytes; `None` is as much as the buffer allows beside the headroom of all links, 256 KiB at most.
        xoff: Option<u64>,
        /// In bytes; `None` is two packets below `xoff`.
        xon: Option<u64>,
    },
    /// Nothing: packets for which there is no room are lost. A queue may have as many bytes as the buffer has free
    /// (dynamic threshold with alpha 1: Choudhury, Hahne 1998).
    Lossy,
}

/// Settings of the level of packets. The default is a lossless network with DCQCN.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PacketSettings {
    /// The most payload that a packet has.
    pub mtu: Mtu,
    /// Bytes of packet memory in each switch, which its ports share.
    pub buffer: u64,
    /// Pause or loss.
    pub flow: FlowControl,
    /// When packets are marked; `None` is never.
    pub marking: Option<Marking>,
    /// Whether senders slow down when they are told of marks.
    pub dcqcn: bool,
    /// How long a sender waits for an acknowledgement before it sends again.
    pub timeout: AckTimeout,
}

impl Default for PacketSettings {
    fn default() -> Self {
        Self {
            mtu: Mtu::M4096,
            buffer: 32 << 20,
            flow: FlowControl::Lossless {
                xoff: None,
                xon: None,
            },
            marking: Some(Marking::default()),
            dcqcn: true,
            timeout: AckTimeout::USUAL,
        }
    }
}

/// When a switch tells a link to pause and to go on, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Thresholds {
    pub(super) xoff: u64,
    pub(super) xon: u64,
}

/// The most that `xoff` is unless said.
const XOFF: u64 = 256 << 10;

impl PacketSettings {
    /// Bytes on the wire of the longest packet.
    const fn packet(&self) -> u64 {
        self.mtu.bytes() as u64 + HEADERS
    }

    /// The reaction point's constants for a NIC, if it has one.
    pub(super) fn congestion(&self, line_rate: f64) -> Option<dcqcn::Parameters> {
        self.dcqcn.then(|| dcqcn::Parameters::new(line_rate))
    }

    /// What still comes over a link after it was told to pause: what is on its way while the pause is, and the packets that
    /// both ends had begun.
    fn headroom(&self, link: &Link) -> u64 {
        (2.0 * link.rate * link.latency.as_secs_f64()).ceil() as u64 + 3 * self.packet()
    }

    /// The thresholds of a node, or why its buffer is too small for them: a lossless switch must have room for all that its
    /// links may send until they pause.
    pub(super) fn thresholds(
        &self,
        fabric: &Fabric,
        node: NodeId,
    ) -> Result<Option<Thresholds>, SimError> {
        let FlowControl::Lossless { xoff, xon } = self.flow else {
            return Ok(None);
        };
        let links = fabric.links_of(node);
        let headroom: u64 = links
            .iter()
            .map(|l| self.headroom(&fabric.links()[l.0]))
            .sum();
        let each = self.buffer.saturating_sub(headroom) / (links.len() as u64).max(1);
        let least = 4 * self.packet();
        let wanted = xoff.unwrap_or_else(|| XOFF.min(each).max(least));
        if wanted > each {
            return Err(SimError::Buffer {
                node: fabric.node_name(node),
                links: links.len(),
                xoff: wanted,
                headroom,
                buffer: self.buffer,
                needed: headroom.saturating_add(wanted.saturating_mul(links.len() as u64)),
            });
        }
        let xon = xon.unwrap_or_else(|| wanted.saturating_sub(2 * self.packet()));
        Ok(Some(Thresholds { xoff: wanted, xon }))
    }

    /// Whether the figures can be, whatever the fabric.
    pub(super) fn check(&self) -> Result<(), SimError> {
        let bad = |what, found: String, expected: String| {
            Err(SimError::Setting {
                what,
                found,
                expected,
            })
        };
        let packet = self.packet();
        if self.buffer < 4 * packet || self.buffer > 1 << 40 {
            let expected = format!(
                "{} bytes (four packets) to 1 TiB; switches have some 16 to 256 MiB",
                4 * packet
            );
            return bad("buffer of a switch", self.buffer.to_string(), expected);
        }
        if let FlowControl::Lossless { xoff, xon } = self.flow {
            if let Some(xoff) = xoff.filter(|&xoff| xoff < packet) {
                let expected = format!("{packet} bytes, one packet, at least");
                return bad("XOFF threshold", xoff.to_string(), expected);
            }
            if let (Some(xoff), Some(xon)) = (xoff, xon)
                && xon >= xoff
            {
                let expected = format!("less than XOFF, {xoff}: links would pause for ever");
                return bad("XON threshold", xon.to_string(), expected);
            }
            if let (None, Some(xon)) = (xoff, xon) {
                let expected = "an XOFF threshold beside it".to_owned();
                return bad("XON threshold", xon.to_string(), expected);
            }
        }
        if let Some(Marking { from, full, chance }) = self.marking {
            if from > full {
                let expected = "Kmin up to Kmax, such as 150000:1500000".to_owned();
                return bad("ECN threshold", format!("{from}:{full}"), expected);
            }
            if !(0.0..=1.0).contains(&chance) {
                let expected = "a part from 0 to 1, such as 0.01".to_owned();
                return bad("ECN chance Pmax", chance.to_string(), expected);
            }
        }
        Ok(())
    }
}
