//! The control connection: JSON lines over TCP, by which the two sides agree on everything and learn of each other's
//! failures.

use std::{
    collections::VecDeque,
    io::{self, ErrorKind, Read as _, Write as _},
    mem,
    net::{IpAddr, SocketAddr, TcpStream},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, bail};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};
use serde_json::{Value, json};

use super::message::Message;

/// The version of all messages. The greeting that tells it stays the same in all of them.
const VERSION: u64 = 2;
const GREETING: &str = "ringway perf";

/// A side that says nothing for so long is taken for gone; while it runs, each speaks up in every [`BREATH`].
pub(super) const SILENCE: Duration = Duration::from_secs(10);
const BREATH: Duration = Duration::from_secs(1);

/// The longest line in bytes: 1,024 queue pairs' addresses take less.
const LINE: usize = 1 << 20;

/// The connection to the other side.
#[derive(Debug)]
pub(super) struct Control {
    stream: TcpStream,
    /// "the server 10.0.0.2:18515".
    peer: String,
    /// What has come of a line that isn't complete.
    partial: Vec<u8>,
    /// Whether the first line has come, which is of this version.
    greeted: bool,
    messages: VecDeque<Message>,
    heard: Instant,
    spoke: Instant,
}

impl Control {
    /// Greets, and checks that the other side is one of this version's. `role` is the other's: `server` or `client`.
    pub(super) fn greet(stream: TcpStream, role: &str) -> Result<Self> {
        let address = stream.peer_addr().context("the other side's address")?;
        let address = SocketAddr::new(address.ip().to_canonical(), address.port());
        stream
            .set_nodelay(true)
            .and_then(|()| stream.set_nonblocking(true))
            .context("setting up the control connection")?;
        let now = Instant::now();
        let mut control = Self {
            stream,
            peer: format!("the {role} {address}"),
            partial: Vec::new(),
            greeted: false,
            messages: VecDeque::new(),
            heard: now,
            spoke: now,
        };
        control.write(&json!({GREETING: VERSION}))?;
        while !control.greeted {
            control.pump()?;
            thread::sleep(Duration::from_millis(1));
        }
        Ok(control)
    }

    fn check_greeting(&self, line: &str) -> Result<()> {
        let greeting: Value = serde_json::from_str(line).unwrap_or_default();
        match greeting[GREETING].as_u64() {
            Some(VERSION) => Ok(()),
            Some(other) => bail!(
                "{} speaks version {other} of `ringway perf`, this side version {VERSION}: use the same Ringway on both",
                self.peer
            ),
            None => bail!(
                "{} is no `ringway perf`: it says {:?}",
                self.peer,
                start(line)
            ),
        }
    }

    /// The other side, for people.
    pub(super) fn peer(&self) -> &str {
        &self.peer
    }

    /// This side's address, by which the other reaches it.
    pub(super) fn own_ip(&self) -> Result<IpAddr> {
        let address = self.stream.local_addr().context("this side's address")?;
        Ok(address.ip().to_canonical())
    }

    pub(super) fn send(&mut self, message: &Message) -> Result<()> {
        self.write(&serde_json::to_value(message)?)
    }

    /// Takes in what has come, and speaks up where nothing was said for long. Never blocks for longer than a full
    /// socket buffer.
    ///
    /// # Errors
    /// If the other side says that it has failed, is gone, or silent for too long.
    pub(super) fn pump(&mut self) -> Result<()> {
        let mut bytes = [0; 4096];
        loop {
            match self.stream.read(&mut bytes) {
                // What it said before it went is still to be heard.
                Ok(0) | Err(_) if self.has_news() => return Ok(()),
                Ok(0) => bail!(
                    "{} has closed the connection: it was ended, or has failed; what it printed tells",
                    self.peer
                ),
                Ok(length) => {
                    self.heard = Instant::now();
                    self.take_in(&bytes[..length])?;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.lost(error)),
            }
        }
        if self.heard.elapsed() > SILENCE {
            bail!(
                "{} has said nothing for {} s: is its host up, and is it running?",
                self.peer,
                SILENCE.as_secs()
            );
        }
        if self.spoke.elapsed() > BREATH {
            self.send(&Message::Alive)?;
        }
        Ok(())
    }

    /// Sleeps until something has come, or for so long.
    pub(super) fn sleep(&self, most: Duration) -> Result<()> {
        let mut fds = [PollFd::new(&self.stream, PollFlags::IN)];
        let most = Timespec::try_from(most).context("waiting for the control connection")?;
        match poll(&mut fds, Some(&most)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(self.lost(error.into())),
        }
    }

    fn has_news(&self) -> bool {
        !self.messages.is_empty()
    }

    fn lost(&self, error: io::Error) -> anyhow::Error {
        let lost = format!("the control connection to {} is lost", self.peer);
        anyhow::Error::new(error).context(lost)
    }

    /// The next message of those that have come.
    pub(super) fn take(&mut self) -> Option<Message> {
        self.messages.pop_front()
    }

    /// The next message, while nothing else is to be done.
    pub(super) fn next(&mut self) -> Result<Message> {
        loop {
            if let Some(message) = self.take() {
                return Ok(message);
            }
            self.pump()?;
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// The other side has said something at the wrong time.
    pub(super) fn unexpected(&self, message: &Message, expected: &str) -> anyhow::Error {
        anyhow!("{} says {message:?}, expected {expected}", self.peer)
    }

    fn take_in(&mut self, bytes: &[u8]) -> Result<()> {
        for &byte in bytes {
            if byte == b'\n' {
                let line = mem::take(&mut self.partial);
                self.take_line(&String::from_utf8_lossy(&line))?;
            } else if self.partial.len() < LINE {
                self.partial.push(byte);
            } else {
                bail!("{} says more than {LINE} bytes in a line", self.peer);
            }
        }
        Ok(())
    }

    fn take_line(&mut self, line: &str) -> Result<()> {
        if !self.greeted {
            self.greeted = true;
            return self.check_greeting(line);
        }
        let message = serde_json::from_str(line).map_err(|_| {
            anyhow!(
                "{} says {:?}, which this version doesn't know",
                self.peer,
                start(line)
            )
        })?;
        match message {
            Message::Alive => {}
            Message::Failed { why } => bail!("{} says: {why}", self.peer),
            message => self.messages.push_back(message),
        }
        Ok(())
    }

    fn write(&mut self, line: &Value) -> Result<()> {
        let text = format!("{line}\n");
        self.spoke = Instant::now();
        let (mut rest, deadline) = (text.as_bytes(), self.spoke + SILENCE);
        while !rest.is_empty() {
            match self.stream.write(rest) {
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if Instant::now() > deadline {
                        bail!("{} takes nothing from the control connection", self.peer);
                    }
                    thread::sleep(Duration::from_millis(1));
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    // It may have said why it went.
                    self.pump()?;
                    return Err(self.lost(error));
                }
            }
        }
        Ok(())
    }
}

/// Of a line that isn't understood, what people may know it by.
fn start(line: &str) -> String {
    line.chars().take(60).collect()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// What a side says of a peer that sends these lines and goes.
    fn hears(text: &'static str) -> anyhow::Error {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let peer = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(text.as_bytes()).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            // Until this side is done.
            let _ = stream.read_to_end(&mut Vec::new());
        });
        let stream = TcpStream::connect(address).unwrap();
        let error = Control::greet(stream, "server")
            .and_then(|mut control| control.next())
            .unwrap_err();
        peer.join().unwrap();
        error
    }

    #[test]
    fn what_a_peer_says_that_cannot_be_is_refused_with_its_name() {
        for (text, says) in [
            ("{\"ringway perf\":1}\n", "speaks version 1"),
            (
                "HTTP/1.1 400 Bad Request\n",
                "is no `ringway perf`: it says \"HTTP",
            ),
            ("", "has closed the connection"),
            ("{\"ringway perf\":2}\n", "has closed the connection"),
            ("{\"ringway perf\":2}\n{\"run\":1}\n", "doesn't know"),
            (
                "{\"ringway perf\":2}\n{\"failed\":{\"why\":\"no memory\"}}\n",
                "says: no memory",
            ),
        ] {
            let text = format!("{:#}", hears(text));
            assert!(text.starts_with("the server 127.0.0.1:"), "{text}");
            assert!(text.contains(says), "{text}: expected {says}");
        }
    }
}
