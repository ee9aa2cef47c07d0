//! Reading one greeting off a non-blocking connection, and not a byte more.

use std::{io::Read, net::TcpStream};

use super::hello::{Greeting, MAX_BODY, NoGreeting, PREFIX};

/// Collects the bytes of a greeting.
#[derive(Debug)]
pub(crate) struct Greeter {
    buffer: [u8; PREFIX + MAX_BODY],
    filled: usize,
}

/// How far a greeting is.
#[derive(Debug)]
pub(crate) enum Heard {
    /// More is to come.
    Partly,
    /// All of it.
    Greeting(Greeting),
    /// The other side has closed, or the connection broke.
    Closed(String),
    /// It is none.
    Nonsense(NoGreeting),
}

impl Greeter {
    pub(crate) const fn new() -> Self {
        Self {
            buffer: [0; PREFIX + MAX_BODY],
            filled: 0,
        }
    }

    /// Whether nothing has come yet.
    pub(crate) const fn is_silent(&self) -> bool {
        self.filled == 0
    }

    /// Reads what has come of the greeting. Bytes after it stay in the socket: they belong to the user of the
    /// connection.
    pub(crate) fn hear(&mut self, mut stream: &TcpStream) -> Heard {
        loop {
            let wanted = match Greeting::expected_len(&self.buffer[..self.filled]) {
                Ok(len) => len,
                Err(error) => return Heard::Nonsense(error),
            };
            if wanted == self.filled {
                let heard = Greeting::decode(&self.buffer[..self.filled]);
                self.filled = 0;
                return heard.map_or_else(Heard::Nonsense, Heard::Greeting);
            }
            match stream.read(&mut self.buffer[self.filled..wanted]) {
                Ok(0) => return Heard::Closed("closed without a word".into()),
                Ok(bytes) => self.filled += bytes,
                Err(error) => match error.kind() {
                    std::io::ErrorKind::WouldBlock => return Heard::Partly,
                    std::io::ErrorKind::Interrupted => {}
                    _ => return Heard::Closed(error.to_string()),
                },
            }
        }
    }
}
