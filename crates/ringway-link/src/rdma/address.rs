//! The address of a queue pair: what two sides tell each other over their session to connect.

use std::net::{IpAddr, Ipv6Addr};

use ringway_roce::{Psn, Qpn, rc::Mtu};
use thiserror::Error;

use crate::session::codec::{Reader, Truncated};

/// Where a queue pair is, and what its side of a connection can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The port's address: a RoCE v2 GID is one, of IPv6 or a mapped one of IPv4.
    pub ip: IpAddr,
    /// The queue pair's number.
    pub number: Qpn,
    /// The PSN of the first packet from there.
    pub first_psn: Psn,
    /// The most payload of a packet.
    pub mtu: Mtu,
    /// The type of service or traffic class byte of its packets.
    pub traffic_class: u8,
    /// How many READs and atomic operations may be under way, in each direction.
    pub initiator_depth: u8,
    /// None: a NIC or Linux's rxe, at UDP port 4791.
    pub software: Option<Software>,
}

/// What is particular to Ringway's own endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Software {
    /// The UDP port of its socket.
    pub port: u16,
    /// Whether it also listens at port 4791, where NICs send to.
    pub roce_port: bool,
    /// How many packets its socket buffer takes before it reads them.
    pub window: u32,
    /// Whether it offers selective retransmission.
    pub selective: bool,
}

/// What the two sides' addresses come to, for one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The most payload of a packet: the lesser.
    pub mtu: Mtu,
    /// How many READs and atomic operations go out, and come in: the lesser.
    pub initiator_depth: u8,
    /// Whether only what is lost is sent again: if both offer it.
    pub selective: bool,
}

/// The two sides can't be connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Mismatch {
    /// One is of IPv4, the other of IPv6.
    #[error(
        "the queue pairs are at {own} and {peer}: both must be of IPv4, or both of IPv6; choose another GID on one side"
    )]
    Family {
        /// This side's address.
        own: IpAddr,
        /// The peer's.
        peer: IpAddr,
    },
    /// Packets would go in different classes, of which perhaps only one is lossless.
    #[error(
        "traffic class {own} here and {peer} at the peer: set the same on all hosts, the one that switches and NICs are set up for"
    )]
    TrafficClass {
        /// This side's.
        own: u8,
        /// The peer's.
        peer: u8,
    },
    /// A NIC sends to port 4791 only.
    #[error(
        "one side is a NIC, which sends to UDP port 4791 only, and the other a software endpoint that doesn't listen there: make it with that port"
    )]
    Port,
}

/// Bytes that are no address of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BadAddress {
    /// Not as long as this version's.
    #[error("a queue pair's address has {expected} bytes, not {0}", expected = Address::LEN)]
    Length(usize),
    /// Of another version.
    #[error(
        "version {0} of a queue pair's address, where this Ringway knows {VERSION}: use the same on all hosts"
    )]
    Version(u8),
    /// A field has a value that can't be.
    #[error("a queue pair's address with {field} {value}")]
    Field {
        /// Which.
        field: &'static str,
        /// Its value.
        value: u64,
    },
}

const VERSION: u8 = 2;

/// The bit of the flags that says that there is a [`Software`].
const SOFTWARE: u8 = 1;

/// The bit that says that it listens at port 4791.
const AT_ROCE_PORT: u8 = 2;

/// The bit that says that it offers selective retransmission.
const SELECTIVE: u8 = 4;

impl Address {
    /// The length of the encoding in bytes.
    pub const LEN: usize = 38;

    /// As bytes: version, flags, traffic class, initiator depth; the IP address as one of IPv6; number, first PSN,
    /// MTU (`ibv_mtu`), and of [`Software`] port and window. Numbers are little-endian.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let ip = match self.ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        let software = self.software.unwrap_or(NOWHERE);
        let flags = [
            (self.software.is_some(), SOFTWARE),
            (software.roce_port, AT_ROCE_PORT),
            (software.selective, SELECTIVE),
        ];
        let flags = flags.iter().fold(
            0,
            |flags, (set, flag)| if *set { flags | flag } else { flags },
        );
        let head = [VERSION, flags, self.traffic_class, self.initiator_depth];
        let mut bytes = [0; Self::LEN];
        let mut rest = bytes.as_mut_slice();
        for part in [
            head.as_slice(),
            &ip.octets(),
            &self.number.get().to_le_bytes(),
            &self.first_psn.get().to_le_bytes(),
            &u32::from(self.mtu.code()).to_le_bytes(),
            &software.port.to_le_bytes(),
            &software.window.to_le_bytes(),
        ] {
            let (into, after) = rest.split_at_mut(part.len());
            into.copy_from_slice(part);
            rest = after;
        }
        bytes
    }

    /// Reads an encoding.
    ///
    /// # Errors
    /// If it is of another version or length, or a field has a value that can't be.
    pub fn parse(bytes: &[u8]) -> Result<Self, BadAddress> {
        let truncated = |_: Truncated| BadAddress::Length(bytes.len());
        let bad = |field, value: u32| BadAddress::Field {
            field,
            value: value.into(),
        };
        let mut reader = Reader::new(bytes);
        let version = reader.u8().map_err(truncated)?;
        if version != VERSION {
            return Err(BadAddress::Version(version));
        }
        if bytes.len() != Self::LEN {
            return Err(BadAddress::Length(bytes.len()));
        }
        let flags = reader.u8().map_err(truncated)?;
        let traffic_class = reader.u8().map_err(truncated)?;
        let initiator_depth = reader.u8().map_err(truncated)?;
        let ip = Ipv6Addr::from(reader.array().map_err(truncated)?).to_canonical();
        let number = reader.u32().map_err(truncated)?;
        let psn = reader.u32().map_err(truncated)?;
        let mtu = reader.u32().map_err(truncated)?;
        let port = reader.u16().map_err(truncated)?;
        let window = reader.u32().map_err(truncated)?;
        let known = flags & !(SOFTWARE | AT_ROCE_PORT | SELECTIVE) == 0;
        if !known || flags != 0 && flags & SOFTWARE == 0 {
            return Err(bad("flags", flags.into()));
        }
        if ip.is_unspecified() || ip.is_multicast() {
            return Err(BadAddress::Field {
                field: "an IP address that is nobody's, beginning",
                value: ip_start(ip),
            });
        }
        // 0 and 1 are for management, 2^24 - 1 for multicast.
        if !(2..0xff_ffff).contains(&number) {
            return Err(bad("queue pair number", number));
        }
        if psn > 0xff_ffff {
            return Err(bad("PSN", psn));
        }
        let software = Software {
            port,
            roce_port: flags & AT_ROCE_PORT != 0,
            window,
            selective: flags & SELECTIVE != 0,
        };
        let software = match (flags & SOFTWARE != 0, port, window) {
            (true, 1.., 1..) => Some(software),
            (false, 0, 0) => None,
            (true, 0, _) | (false, 1.., _) => return Err(bad("UDP port", port.into())),
            (true, 1.., 0) | (false, 0, 1..) => return Err(bad("window", window)),
        };
        Ok(Self {
            ip,
            number: Qpn::new(number),
            first_psn: Psn::new(psn),
            mtu: u8::try_from(mtu)
                .ok()
                .and_then(Mtu::from_code)
                .ok_or_else(|| bad("MTU code", mtu))?,
            traffic_class,
            initiator_depth,
            software,
        })
    }

    /// What a connection from here to `peer` has to keep to. Both sides come to the same.
    ///
    /// # Errors
    /// If there can be none.
    pub fn agree(&self, peer: &Self) -> Result<Terms, Mismatch> {
        if self.ip.is_ipv4() != peer.ip.is_ipv4() {
            let (own, peer) = (self.ip, peer.ip);
            return Err(Mismatch::Family { own, peer });
        }
        if self.traffic_class != peer.traffic_class {
            let (own, peer) = (self.traffic_class, peer.traffic_class);
            return Err(Mismatch::TrafficClass { own, peer });
        }
        if let (Some(software), None) | (None, Some(software)) = (self.software, peer.software)
            && !software.roce_port
        {
            return Err(Mismatch::Port);
        }
        let offers = |address: &Self| address.software.is_some_and(|it| it.selective);
        Ok(Terms {
            mtu: self.mtu.min(peer.mtu),
            initiator_depth: self.initiator_depth.min(peer.initiator_depth),
            selective: offers(self) && offers(peer),
        })
    }
}

const NOWHERE: Software = Software {
    port: 0,
    roce_port: false,
    window: 0,
    selective: false,
};

/// The first eight bytes of an address of IPv6, the four of one of IPv4.
const fn ip_start(ip: IpAddr) -> u64 {
    match ip {
        IpAddr::V4(ip) => ip.to_bits() as u64,
        IpAddr::V6(ip) => (ip.to_bits() >> 64) as u64,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn address() -> Address {
        Address {
            ip: "10.0.0.7".parse().unwrap(),
            number: Qpn::new(0x12_3456),
            first_psn: Psn::new(0x00ab_cdef),
            mtu: Mtu::M1024,
            traffic_class: 106,
            initiator_depth: 16,
            software: None,
        }
    }

    const SOFTWARE: Software = Software {
        port: 40_000,
        roce_port: false,
        window: 256,
        selective: false,
    };

    #[test]
    fn there_and_back() {
        let mut address = address();
        assert_eq!(Address::parse(&address.encode()), Ok(address));
        address.ip = "2001:db8::7".parse().unwrap();
        for (roce_port, selective) in [(false, false), (true, false), (false, true), (true, true)] {
            address.software = Some(Software {
                roce_port,
                selective,
                ..SOFTWARE
            });
            assert_eq!(Address::parse(&address.encode()), Ok(address));
        }
    }

    #[test]
    fn what_cannot_be_is_refused_and_named() {
        let good = address().encode();
        let with = |at: usize, byte: u8| {
            let mut bytes = good;
            bytes[at] = byte;
            Address::parse(&bytes).unwrap_err().to_string()
        };
        assert!(with(0, 1).starts_with("version 1 of"));
        for (at, byte, says) in [
            (1, 1, "UDP port 0"),
            (1, 2, "flags 2"),
            (1, 4, "flags 4"),
            (1, 9, "flags 9"),
            (23, 1, "queue pair number 17970262"),
            (27, 1, "PSN 28"),
            (28, 6, "MTU code 6"),
            (32, 1, "UDP port 1"),
            (34, 1, "window 1"),
        ] {
            let text = with(at, byte);
            assert!(text.contains(says), "{text}: expected {says}");
        }
        for (port, window, says) in [(5, 0, "window 0"), (0, 7, "UDP port 0")] {
            let software = Some(Software {
                port,
                window,
                ..SOFTWARE
            });
            let bytes = Address {
                software,
                ..address()
            }
            .encode();
            let text = Address::parse(&bytes).unwrap_err().to_string();
            assert!(text.contains(says), "{text}: expected {says}");
        }
        let nobody = Address {
            ip: Ipv6Addr::UNSPECIFIED.into(),
            ..address()
        };
        assert!(Address::parse(&nobody.encode()).is_err());
        let management = Address {
            number: Qpn::MANAGEMENT,
            ..address()
        };
        assert!(Address::parse(&management.encode()).is_err());
        assert_eq!(Address::parse(&good[1..]), Err(BadAddress::Version(0)));
        assert_eq!(Address::parse(&good[..37]), Err(BadAddress::Length(37)));
        assert_eq!(Address::parse(&[]), Err(BadAddress::Length(0)));
    }

    #[test]
    fn the_lesser_of_both_is_agreed_on() {
        let (small, mut large) = (address(), address());
        large.mtu = Mtu::M4096;
        large.initiator_depth = 1;
        let terms = Terms {
            mtu: Mtu::M1024,
            initiator_depth: 1,
            selective: false,
        };
        assert_eq!(small.agree(&large), Ok(terms));
        assert_eq!(large.agree(&small), Ok(terms));
    }

    #[test]
    fn selective_retransmission_is_agreed_on_if_both_offer_it() {
        let with = |selective| Address {
            software: Some(Software {
                selective,
                ..SOFTWARE
            }),
            ..address()
        };
        let agreed = |own: Address, peer| own.agree(&peer).unwrap().selective;
        assert!(agreed(with(true), with(true)));
        assert!(!agreed(with(true), with(false)));
        assert!(!agreed(with(false), with(true)));
        assert!(!agreed(address(), address()));
    }

    #[test]
    fn what_does_not_go_together() {
        let mut other = address();
        other.ip = "::1".parse().unwrap();
        assert!(matches!(
            address().agree(&other),
            Err(Mismatch::Family { .. })
        ));
        let mut other = address();
        other.traffic_class = 0;
        assert!(matches!(
            address().agree(&other),
            Err(Mismatch::TrafficClass { own: 106, peer: 0 })
        ));
        let mut other = address();
        other.software = Some(SOFTWARE);
        let refused = Err(Mismatch::Port);
        assert_eq!(address().agree(&other), refused);
        assert_eq!(other.agree(&address()), refused);
        assert!(other.agree(&other).is_ok());
        other.software = Some(Software {
            roce_port: true,
            ..SOFTWARE
        });
        assert!(address().agree(&other).is_ok());
    }

    proptest! {
        #[test]
        fn what_is_read_is_written_the_same(mut bytes: [u8; Address::LEN], fix: bool) {
            if fix {
                bytes[0] = VERSION;
                bytes[1] = [0, 1, 3, 5, 7][usize::from(bytes[1]) % 5];
                (bytes[23], bytes[27]) = (0, 0);
                let mtu = 1 + bytes[28] % 5;
                bytes[28..32].copy_from_slice(&[mtu, 0, 0, 0]);
                if bytes[1] == 0 {
                    bytes[32..].fill(0);
                }
            }
            if let Ok(address) = Address::parse(&bytes) {
                prop_assert_eq!(Address::parse(&address.encode()), Ok(address));
                prop_assert_eq!(address.encode(), bytes);
            }
        }
    }
}
