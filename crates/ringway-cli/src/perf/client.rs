//! The side that says what is measured.

use std::{
    net::{SocketAddr, TcpStream, ToSocketAddrs as _},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use super::{
    control::Control,
    device::Name,
    end::End,
    figures::{Figures, Row},
    message::Message,
    phase,
    test::{ITERATIONS, Measure, Run, Test},
};

/// How long the server may take to begin to listen, and a connection to come about.
const PATIENCE: Duration = Duration::from_secs(5);

/// How many messages are checked at each size: with three, a part of one that stays behind is seen in the next.
const CHECKED: u64 = 3;

/// Before a size is measured, so many bytes are moved, in 4 to 100 messages: caches, page tables and the first packets'
/// paths are not what is asked for.
const WARM_UP: u64 = 64 << 20;

/// How long a size is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Length {
    /// So many messages at each queue pair.
    Iterations(u64),
    /// As many as take about so many seconds.
    Seconds(f64),
}

/// What a client was started for.
#[derive(Clone, Debug)]
pub(super) struct Client {
    pub(super) test: Test,
    pub(super) sizes: Vec<u64>,
    pub(super) length: Length,
    pub(super) device: Name,
}

/// What is known once both sides are connected.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    /// The client's device and the server's, each with its address.
    pub(super) devices: [String; 2],
    /// The MTU that both have, in bytes.
    pub(super) mtu: u32,
}

/// Connects to a server, which may be about to start.
pub(super) fn reach(host: &str, port: u16) -> Result<TcpStream> {
    let addresses: Vec<SocketAddr> = (host, port)
        .to_socket_addrs()
        .with_context(|| format!("no address of `{host}` is known"))?
        .collect();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut last = None;
        for address in &addresses {
            match TcpStream::connect_timeout(address, PATIENCE) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = Some((address, error)),
            }
        }
        let Some((address, error)) = last else {
            bail!("`{host}` has no address");
        };
        if Instant::now() > deadline {
            return Err(error).with_context(|| {
                format!(
                    "no server at {address}: start the same test there first, without a host's name, and let TCP port {port} through"
                )
            });
        }
        thread::sleep(Duration::from_millis(100));
    }
}

impl Client {
    /// Measures all sizes with the server of this connection, and tells of each row when it is there. If this side
    /// fails, the server is told.
    pub(super) fn measure(
        &self,
        stream: TcpStream,
        begin: &mut dyn FnMut(&Connection) -> Result<()>,
        tell: &mut dyn FnMut(&Row) -> Result<()>,
    ) -> Result<()> {
        let mut control = Control::greet(stream, "server")?;
        self.lead(&mut control, begin, tell).inspect_err(|error| {
            let why = format!("{error:#}");
            // It may be gone.
            let _ = control.send(&Message::Failed { why });
        })
    }

    fn lead(
        &self,
        control: &mut Control,
        begin: &mut dyn FnMut(&Connection) -> Result<()>,
        tell: &mut dyn FnMut(&Row) -> Result<()>,
    ) -> Result<()> {
        let device = self
            .device
            .open(control.own_ip()?, None, self.test.managed)?;
        let mut end = End::new(device, &self.test)?;
        let client = end.party()?;
        control.send(&Message::Start {
            test: self.test.clone(),
            client: client.clone(),
        })?;
        let (server, service) = match end.hear(control)? {
            Message::Accept { server, service } => (server, service),
            other => return Err(control.unexpected(&other, "where its queue pairs are")),
        };
        let connected = match service {
            Some(service) => end.connect_managed(control, &server, service),
            None => end.connect(&server),
        };
        let mtu = connected
            .with_context(|| format!("connecting {} to {}", client.device, server.device))?;
        begin(&Connection {
            devices: [client.device, server.device],
            mtu,
        })?;
        for &bytes in &self.sizes {
            let row = self.size(&mut end, control, bytes)?;
            tell(&row)?;
        }
        end.disconnect()?;
        control.send(&Message::End)
    }

    fn size(&self, end: &mut End, control: &mut Control, bytes: u64) -> Result<Row> {
        let run = |iterations, check| Run {
            bytes,
            iterations,
            check,
        };
        phase::lead(end, control, run(CHECKED, true))?;
        let warm_up = run((WARM_UP / bytes).clamp(4, 100), false);
        let began = Instant::now();
        phase::lead(end, control, warm_up)?;
        let each = began.elapsed().as_secs_f64() / warm_up.iterations as f64;
        let iterations = match self.length {
            Length::Iterations(iterations) => iterations,
            Length::Seconds(seconds) => ((seconds / each) as u64).clamp(10, ITERATIONS),
        };
        let outcome = phase::lead(end, control, run(iterations, false))?;
        let figures = match self.test.measure {
            Measure::Lat => Figures::latency(outcome.times),
            Measure::Bw => {
                let messages = iterations * u64::from(self.test.qps);
                let sides = [outcome.own, outcome.peer];
                let asking = if self.test.bidirectional { 2 } else { 1 };
                Figures::bandwidth(messages, &sides[..asking])
            }
        };
        Ok(Row {
            bytes,
            iterations,
            figures,
        })
    }
}
