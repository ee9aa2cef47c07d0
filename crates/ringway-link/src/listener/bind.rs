//! Opening the port.

use std::{
    fmt, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
    ops::RangeInclusive,
    str::FromStr,
};

use socket2::{Domain, Protocol, Socket, Type};

/// Connections that may wait for the handshake thread; the kernel caps it at `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// Where to listen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bind {
    /// The address, or all of IPv4 and IPv6.
    pub address: Option<IpAddr>,
    /// The port.
    pub ports: Ports,
}

/// Which ports may be used: `any`, `29400` or `29400-29499`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Ports {
    /// One that the system chooses.
    #[default]
    Any,
    /// The first of these that is free; with one rank per port, a host needs as many as it has ranks.
    Range(RangeInclusive<u16>),
}

/// Ports that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{0}\" is no port: write \"any\", one from 1 to 65535, or a range such as \"29400-29499\""
)]
pub struct BadPorts(pub String);

impl FromStr for Ports {
    type Err = BadPorts;

    fn from_str(text: &str) -> Result<Self, BadPorts> {
        let bad = || BadPorts(text.into());
        let text = text.trim();
        if text == "any" || text == "0" {
            return Ok(Self::Any);
        }
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let first: u16 = first.trim().parse().map_err(|_| bad())?;
        let last: u16 = last.trim().parse().map_err(|_| bad())?;
        if first == 0 || first > last {
            Err(bad())
        } else {
            Ok(Self::Range(first..=last))
        }
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any"),
            Self::Range(ports) if ports.start() == ports.end() => write!(f, "{}", ports.start()),
            Self::Range(ports) => write!(f, "{}-{}", ports.start(), ports.end()),
        }
    }
}

/// Why a rank cannot listen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// The address is not one of this host's.
    #[error("{address} is no address of this host: `ip address` lists those it has")]
    NoAddress {
        /// The address.
        address: IpAddr,
    },
    /// The ports are taken, or reserved.
    #[error(
        "cannot listen on port {ports}: {detail}; `ss -ltnp` shows who has it, and RINGWAY_PORT=any or a range such as 29400-29499 avoids it"
    )]
    Ports {
        /// The ports asked for.
        ports: Ports,
        /// What the system said of the last of them.
        detail: String,
    },
    /// The system refused for another reason.
    #[error("cannot open the port: {detail}")]
    System {
        /// What it said.
        detail: String,
    },
}

impl Bind {
    /// Opens the first free port.
    pub(super) fn open(&self) -> Result<TcpListener, ListenError> {
        let ports = match &self.ports {
            Ports::Any => 0..=0,
            Ports::Range(ports) => ports.clone(),
        };
        let mut last = None;
        for port in ports {
            match self.open_at(port) {
                Ok(socket) => return Ok(socket),
                Err(error) => last = Some(error),
            }
            if let (Some(error), Some(address)) = (&last, self.address)
                && error.kind() == io::ErrorKind::AddrNotAvailable
            {
                return Err(ListenError::NoAddress { address });
            }
        }
        let detail = last.map_or_else(|| "no port in the range".into(), |error| error.to_string());
        Err(ListenError::Ports {
            ports: self.ports.clone(),
            detail,
        })
    }

    fn open_at(&self, port: u16) -> io::Result<TcpListener> {
        match self.address {
            Some(address) => listen(SocketAddr::new(address, port)),
            None => listen(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port)).or_else(|error| {
                // No IPv6 in this kernel or namespace.
                match error.kind() {
                    io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied => Err(error),
                    _ => listen(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port)),
                }
            }),
        }
    }
}

fn listen(at: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(at),
        Type::STREAM.nonblocking(),
        Some(Protocol::TCP),
    )?;
    if at.is_ipv6() && at.ip().is_unspecified() {
        socket.set_only_v6(false)?;
    }
    // A port whose old connections have not timed out yet is free.
    socket.set_reuse_address(true)?;
    socket.bind(&at.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_read() {
        assert_eq!("any".parse(), Ok(Ports::Any));
        assert_eq!("29400".parse(), Ok(Ports::Range(29400..=29400)));
        assert_eq!(" 1-65535 ".parse(), Ok(Ports::Range(1..=65535)));
        for bad in ["", "-", "2-1", "0-5", "65536", "x", "1-2-3"] {
            let error = bad.parse::<Ports>().unwrap_err();
            assert!(error.to_string().contains("29400-29499"), "{error}");
        }
    }

    #[test]
    fn a_range_gives_the_first_free_port_and_a_full_one_is_named() {
        let taken = Bind::default().open().unwrap();
        let port = taken.local_addr().unwrap().port();
        let last = port.saturating_add(20);
        let range = Bind {
            address: None,
            ports: Ports::Range(port..=last),
        };
        let got = range.open().unwrap().local_addr().unwrap().port();
        assert!(got > port && got <= last);
        let only = Bind {
            address: None,
            ports: Ports::Range(port..=port),
        };
        let error = only.open().unwrap_err();
        assert!(
            error.to_string().contains(&format!("port {port}:")),
            "{error}"
        );
    }

    #[test]
    fn an_address_of_another_host_is_named() {
        let address: IpAddr = "192.0.2.1".parse().unwrap();
        let bind = Bind {
            address: Some(address),
            ports: Ports::Any,
        };
        assert_eq!(bind.open().unwrap_err(), ListenError::NoAddress { address });
    }
}
