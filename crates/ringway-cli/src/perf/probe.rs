//! One figure of RDMA between two ends that have a connection already, for others of this program.

use std::net::TcpStream;

use anyhow::{Context as _, Result, bail};

use super::{
    client::{Client, Length},
    device::Name,
    figures::Figures,
    server::Server,
    test::{Measure, Operation, Test},
};

/// How long it is measured, in seconds.
const LENGTH: f64 = 0.1;

/// The message of a bandwidth, and how many are under way; and that of a latency. Bytes.
const LONG: u64 = 64 << 10;
const DEPTH: u32 = 64;
const SHORT: u64 = 8;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Probe {
    /// Bytes per second to the other end.
    WriteBandwidth,
    /// Bytes per second from the other end.
    ReadBandwidth,
    /// Seconds to the other end, at best: half a round trip.
    WriteLatency,
}

impl Probe {
    const fn test(self) -> (Operation, Measure) {
        match self {
            Self::WriteBandwidth => (Operation::Write, Measure::Bw),
            Self::ReadBandwidth => (Operation::Read, Measure::Bw),
            Self::WriteLatency => (Operation::Write, Measure::Lat),
        }
    }

    /// Serves the end that asks for it.
    ///
    /// # Errors
    /// If the device cannot be opened or connected, or the other end goes.
    pub(crate) fn answer(self, stream: TcpStream, device: Name) -> Result<()> {
        let (operation, measure) = self.test();
        let server = Server {
            operation,
            measure,
            device,
        };
        server.serve(stream).map(drop)
    }

    /// Measures it with the other end. Returns the figure, and both ends' devices.
    ///
    /// # Errors
    /// If either end's device cannot be opened or connected, or what arrives is not what was sent.
    pub(crate) fn ask(self, stream: TcpStream, device: Name) -> Result<(f64, [String; 2])> {
        let (operation, measure) = self.test();
        let (bytes, depth) = match measure {
            Measure::Bw => (LONG, DEPTH),
            Measure::Lat => (SHORT, 1),
        };
        let client = Client {
            test: Test {
                operation,
                measure,
                bidirectional: false,
                qps: 1,
                depth,
                mtu: 4096,
                longest: bytes,
                managed: false,
            },
            sizes: vec![bytes],
            length: Length::Seconds(LENGTH),
            device,
        };
        let (mut devices, mut figures) = (None, None);
        client.measure(
            stream,
            &mut |made| {
                devices = Some(made.devices.clone());
                Ok(())
            },
            &mut |row| {
                figures = Some(row.figures.clone());
                Ok(())
            },
        )?;
        let devices = devices.context("the ends were not connected")?;
        match figures {
            Some(Figures::Bandwidth { mean, .. }) => Ok((mean * bytes as f64, devices)),
            Some(Figures::Latency(times)) if !times.is_empty() => Ok((times[0] / 1e6, devices)),
            _ => bail!("nothing was measured"),
        }
    }
}
