//! What switches and NICs are set to on the level of packets, from flags.

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use ringway_roce::{rc::Mtu, timer::AckTimeout};
use ringway_sim::{FlowControl, Marking, PacketSettings};

use crate::size;

/// How switches and NICs are set, for `--level packet`.
#[derive(Debug, Args)]
#[command(next_help_heading = "Packets")]
pub(super) struct Settings {
    /// The most payload of a packet: 256, 512, 1024, 2048 or 4096 bytes [default: 4096].
    #[arg(long, value_parser = mtu)]
    mtu: Option<Mtu>,
    /// Packet memory of each switch, shared by its ports [default: 32M].
    #[arg(long, value_parser = size::positive)]
    buffer: Option<usize>,
    /// No PFC: packets that find no room are lost, and sent again (go-back-N).
    #[arg(long, conflicts_with_all = ["xoff", "xon"])]
    lossy: bool,
    /// A link pauses once its packets take so much of a switch's buffer [default: 256K, or what the buffer allows].
    #[arg(long, value_parser = size::positive)]
    xoff: Option<usize>,
    /// And goes on once they take no more than this [default: two packets below --xoff].
    #[arg(long, value_parser = size::positive, requires = "xoff")]
    xon: Option<usize>,
    /// Queues from which on, and beyond which all, packets are marked, and the chance just before that; or `off`
    /// [default: 150KB:1500KB:0.01].
    #[arg(long, value_name = "KMIN:KMAX:PMAX", value_parser = ecn)]
    ecn: Option<Ecn>,
    /// What senders do about marks [default: dcqcn].
    #[arg(long, value_enum)]
    congestion: Option<Congestion>,
    /// How long a sender waits for an acknowledgement, as NICs count it: 4.096 us times 2 to the power of this, 1 to 31
    /// [default: 14, 67 ms].
    #[arg(long, value_parser = ack_timeout)]
    ack_timeout: Option<AckTimeout>,
}

/// Congestion control.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Congestion {
    /// Rates fall when receivers tell of marks, and recover.
    Dcqcn,
    /// Senders send as fast as they may.
    None,
}

/// `None` is off.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Ecn(Option<Marking>);

impl Settings {
    /// Whether any was given: on other levels none means anything.
    const fn are_given(&self) -> bool {
        self.mtu.is_some()
            || self.buffer.is_some()
            || self.lossy
            || self.xoff.is_some()
            || self.ecn.is_some()
            || self.congestion.is_some()
            || self.ack_timeout.is_some()
    }

    /// Refuses flags that would change nothing.
    pub(super) fn check(&self, level_has_packets: bool) -> Result<()> {
        if self.are_given() && !level_has_packets {
            bail!(
                "--mtu, --buffer, --lossy, --xoff, --xon, --ecn, --congestion and --ack-timeout mean nothing without packets; add --level packet"
            );
        }
        Ok(())
    }

    pub(super) fn settings(&self) -> PacketSettings {
        let usual = PacketSettings::default();
        let bytes = |size: Option<usize>| size.map(|bytes| bytes as u64);
        PacketSettings {
            mtu: self.mtu.unwrap_or(usual.mtu),
            buffer: bytes(self.buffer).unwrap_or(usual.buffer),
            flow: match self.lossy {
                true => FlowControl::Lossy,
                false => FlowControl::Lossless {
                    xoff: bytes(self.xoff),
                    xon: bytes(self.xon),
                },
            },
            marking: self.ecn.map_or(usual.marking, |Ecn(marking)| marking),
            dcqcn: self.congestion != Some(Congestion::None),
            timeout: self.ack_timeout.unwrap_or(usual.timeout),
        }
    }
}

fn mtu(text: &str) -> Result<Mtu, String> {
    let bytes = text.parse();
    let found = bytes.map(|bytes: u32| Mtu::ALL.into_iter().find(|mtu| mtu.bytes() == bytes));
    let expected = "expected 256, 512, 1024, 2048 or 4096, as RoCE has them";
    found.ok().flatten().ok_or_else(|| expected.to_owned())
}

fn ack_timeout(text: &str) -> Result<AckTimeout, String> {
    let code = text.parse().ok().filter(|&code: &u8| code > 0);
    let timeout = code.and_then(AckTimeout::new);
    timeout.ok_or_else(|| {
        "expected a whole number from 1 (8.2 us) to 31 (2.4 hours), such as 14 (67 ms)".to_owned()
    })
}

fn ecn(text: &str) -> Result<Ecn, String> {
    if text == "off" {
        return Ok(Ecn(None));
    }
    let parse = || -> Result<Marking> {
        let parts: Vec<&str> = text.split(':').collect();
        let [from, full, chance] = parts[..] else {
            bail!("found {} parts", parts.len());
        };
        let bytes = |text| size::parse(text).map_err(anyhow::Error::msg);
        Ok(Marking {
            from: bytes(from)? as u64,
            full: bytes(full)? as u64,
            chance: chance.parse().context("PMAX is no number")?,
        })
    };
    parse().map(Some).map(Ecn).map_err(|error| {
        format!("expected KMIN:KMAX:PMAX, such as 150KB:1500KB:0.01, or off; {error:#}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_and_codes_are_read_or_refused() {
        let marking = Marking {
            from: 10_000,
            full: 1 << 20,
            chance: 0.2,
        };
        assert_eq!(ecn("10KB:1M:0.2"), Ok(Ecn(Some(marking))));
        assert_eq!(ecn("off"), Ok(Ecn(None)));
        assert_eq!(mtu("1024"), Ok(Mtu::M1024));
        assert_eq!(ack_timeout("14"), Ok(AckTimeout::USUAL));
        for (error, says) in [
            (ecn("10KB:1M").err(), "found 2 parts"),
            (ecn("10KB:1M:much").err(), "PMAX is no number"),
            (ecn("10KX:1M:0.1").err(), "no unit that is known"),
            (mtu("1500").err(), "4096, as RoCE"),
            (ack_timeout("0").err(), "from 1"),
            (ack_timeout("32").err(), "to 31"),
        ] {
            let error = error.unwrap();
            assert!(error.contains(says), "{error}");
        }
    }
}
