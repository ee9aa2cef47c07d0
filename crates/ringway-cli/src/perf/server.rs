//! The side that waits, and follows.

use std::{
    io::ErrorKind,
    net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use super::{
    control::Control,
    device::{self, Name},
    end::{self, End},
    message::Message,
    phase,
    test::{Measure, Operation},
};

/// How long a client is waited for.
const PATIENCE: Duration = Duration::from_secs(600);

/// What a server was started for.
#[derive(Clone, Debug)]
pub(super) struct Server {
    pub(super) operation: Operation,
    pub(super) measure: Measure,
    pub(super) device: Name,
}

/// What it has done.
pub(super) struct Served {
    /// How many sizes there were.
    pub(super) sizes: usize,
    /// The other side, and both sides' devices.
    pub(super) peer: String,
    pub(super) devices: [String; 2],
}

/// Listens at this port on all addresses; of IPv4 only where the host has no IPv6.
pub(super) fn listen(port: u16) -> Result<TcpListener> {
    let listener =
        TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).or_else(|error| match error.kind() {
            ErrorKind::AddrInUse => Err(error),
            _ => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)),
        });
    listener.with_context(|| {
        format!("listening at TCP port {port}: end what listens there, or give both sides another --port")
    })
}

/// Listens at a free port that only this machine reaches. The client's own address is then 127.0.0.1, and each side can
/// have UDP port 4791 at its own.
pub(super) fn listen_locally() -> Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::new(127, 0, 0, 2), 0)).context("listening at 127.0.0.2")
}

/// Waits for a client.
pub(super) fn wait(listener: &TcpListener) -> Result<TcpStream> {
    listener.set_nonblocking(true).context("listening")?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        match listener.accept() {
            Ok((stream, _)) => return Ok(stream),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error).context("waiting for a client"),
        }
        if Instant::now() > deadline {
            bail!(
                "no client came within {} minutes: start it as this, with this host's name behind",
                PATIENCE.as_secs() / 60
            );
        }
        thread::sleep(Duration::from_millis(5));
    }
}

impl Server {
    /// Serves the client of this connection until it is through. If this side fails, the client is told.
    pub(super) fn serve(&self, stream: TcpStream) -> Result<Served> {
        let mut control = Control::greet(stream, "client")?;
        self.follow(&mut control).inspect_err(|error| {
            let why = format!("{error:#}");
            // It may be gone.
            let _ = control.send(&Message::Failed { why });
        })
    }

    fn follow(&self, control: &mut Control) -> Result<Served> {
        let (test, client) = match control.next()? {
            Message::Start { test, client } => (test, client),
            other => return Err(control.unexpected(&other, "what is to be measured")),
        };
        if (test.operation, test.measure) != (self.operation, self.measure) {
            bail!(
                "{} asks for `{}`, and this server was started for `{} {}`: give both the same",
                control.peer(),
                test.name(),
                self.operation.name(),
                self.measure.name()
            );
        }
        test.check()?;
        let family = device::family_of(end::first(&client, &test)?.ip);
        let device = self
            .device
            .open(control.own_ip()?, Some(family), test.managed)?;
        let mut end = End::new(device, &test)?;
        let own = end.party()?;
        let service = if test.managed {
            end.reach_memory_of(&client);
            Some(end.listen()?)
        } else {
            end.connect(&client)
                .with_context(|| format!("connecting {} to {}", own.device, client.device))?;
            None
        };
        control.send(&Message::Accept {
            server: own.clone(),
            service,
        })?;
        let mut sizes = 0;
        loop {
            match end.hear(control)? {
                Message::Run(run) => {
                    phase::follow(&mut end, control, run)?;
                    // Each is checked once.
                    sizes += usize::from(run.check);
                }
                Message::End => break,
                other => return Err(control.unexpected(&other, "the next run, or the end")),
            }
        }
        Ok(Served {
            sizes,
            peer: control.peer().to_owned(),
            devices: [own.device, client.device],
        })
    }
}
