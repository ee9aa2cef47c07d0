//! Which router ends a datagram whose hop limit is over: it says so by ICMP (RFC 792, RFC 4443), and the kernel keeps that in
//! the error queue of the socket that has sent it (ip(7), `IP_RECVERR`), which needs no privilege.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::{AsFd, AsRawFd},
};

use crate::datagram::{self, DatagramSocket};

/// ICMP's and ICMPv6's types of "time exceeded".
const TIME_EXCEEDED: [(u8, u8); 2] = [(libc::SO_EE_ORIGIN_ICMP, 11), (libc::SO_EE_ORIGIN_ICMP6, 3)];

/// The bytes of `sock_extended_err`, which the address of who reports follows.
const EXTENDED_ERROR: usize = 16;

/// Room for an error with an address, the type of service, and what kernels may add.
const CONTROL_BYTES: usize = 512;

#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

/// The most that is kept of a datagram that a router tells the end of.
const KEPT: usize = 128;

/// What a router says of a datagram that has ended there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expired {
    /// The router.
    pub router: IpAddr,
    /// How the datagram's payload begins, 128 bytes of it at most, or fewer or none: a router has to send back its first 8
    /// bytes (RFC 792), which UDP's header takes, and should as much as fits into 576 (RFC 1812, 4.3.2.3).
    pub payload: Vec<u8>,
}

impl DatagramSocket {
    /// Has the kernel keep what routers report, for [`DatagramSocket::expired`]. From then on sending and receiving may fail
    /// once for each report.
    ///
    /// # Errors
    /// Only if the descriptor is broken.
    pub fn keep_reports(&self) -> io::Result<()> {
        match self.local().ip() {
            IpAddr::V4(_) => self.set(libc::IPPROTO_IP, libc::IP_RECVERR, 1),
            IpAddr::V6(_) => self.set(libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 1),
        }
    }

    /// Datagrams that are sent from now on end at the `limit`th router, from 1, if they have not arrived before.
    ///
    /// # Errors
    /// For 0, or if the descriptor is broken.
    pub fn limit_hops(&self, limit: u8) -> io::Result<()> {
        match self.local().ip() {
            IpAddr::V4(_) => self.set(libc::IPPROTO_IP, libc::IP_TTL, limit.into()),
            IpAddr::V6(_) => self.set(libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, limit.into()),
        }
    }

    /// What a router has reported of a datagram whose hop limit was over, each report once; none if there is no report more.
    ///
    /// # Errors
    /// Only if the descriptor is broken.
    pub fn expired(&self) -> io::Result<Option<Expired>> {
        loop {
            let mut payload = [0_u8; KEPT];
            let mut part = libc::iovec {
                iov_base: payload.as_mut_ptr().cast(),
                iov_len: KEPT,
            };
            let mut control = Control([0; CONTROL_BYTES]);
            let mut header = datagram::EMPTY_HEADER.msg_hdr;
            header.msg_iov = &raw mut part;
            header.msg_iovlen = 1;
            header.msg_control = (&raw mut control).cast();
            header.msg_controllen = CONTROL_BYTES;
            let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
            // SAFETY: the header has no name, and room of its own for one part and for control data, with their lengths.
            let got = unsafe { libc::recvmsg(self.as_fd().as_raw_fd(), &raw mut header, flags) };
            let Ok(got) = usize::try_from(got) else {
                let error = io::Error::last_os_error();
                match error.kind() {
                    io::ErrorKind::WouldBlock => return Ok(None),
                    io::ErrorKind::Interrupted => continue,
                    _ => return Err(error),
                }
            };
            let mut router = None;
            let length = header.msg_controllen.min(CONTROL_BYTES);
            datagram::read_control(&control.0[..length], |level, kind, data| {
                let of_v4 = (level, kind) == (libc::IPPROTO_IP, libc::IP_RECVERR);
                let of_v6 = (level, kind) == (libc::IPPROTO_IPV6, libc::IPV6_RECVERR);
                if of_v4 || of_v6 {
                    router = reporter(data);
                }
            });
            // Reports of other things are passed over.
            if let Some(router) = router {
                return Ok(Some(Expired {
                    router,
                    payload: payload[..got.min(KEPT)].to_vec(),
                }));
            }
        }
    }
}

/// Who has sent this error, if it says that the hop limit was over: a `sock_extended_err`, and a socket address behind it.
fn reporter(data: &[u8]) -> Option<IpAddr> {
    let (&origin, &kind) = (data.get(4)?, data.get(5)?);
    if !TIME_EXCEEDED.contains(&(origin, kind)) {
        return None;
    }
    let address = data.get(EXTENDED_ERROR..)?;
    let family = u16::from_ne_bytes(*address.first_chunk()?);
    match libc::c_int::from(family) {
        libc::AF_INET => {
            let bytes: &[u8; 4] = address.get(4..)?.first_chunk()?;
            Some(Ipv4Addr::from(*bytes).into())
        }
        libc::AF_INET6 => {
            let bytes: &[u8; 16] = address.get(8..)?.first_chunk()?;
            Some(Ipv6Addr::from(*bytes).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::{net::SocketAddr, thread, time::Duration};

    use super::*;
    use crate::datagram::Outgoing;

    /// What the kernel hands over, of an origin and a type.
    fn error(origin: u8, kind: u8, address: &[u8]) -> Vec<u8> {
        let mut data = vec![0; EXTENDED_ERROR];
        (data[4], data[5]) = (origin, kind);
        data.extend_from_slice(address);
        data
    }

    #[test]
    fn routers_are_read_from_reports_of_both_families() {
        let mut v4 = (libc::AF_INET as u16).to_ne_bytes().to_vec();
        v4.extend([0, 0, 10, 255, 0, 3]);
        let expired = error(libc::SO_EE_ORIGIN_ICMP, 11, &v4);
        assert_eq!(reporter(&expired), Some("10.255.0.3".parse().unwrap()));
        // A port that is closed, or an error of this host's own, is none.
        assert_eq!(reporter(&error(libc::SO_EE_ORIGIN_ICMP, 3, &v4)), None);
        assert_eq!(reporter(&error(libc::SO_EE_ORIGIN_LOCAL, 11, &v4)), None);
        let mut v6 = (libc::AF_INET6 as u16).to_ne_bytes().to_vec();
        v6.extend([0; 6]);
        v6.extend("fd00::7".parse::<Ipv6Addr>().unwrap().octets());
        let expired = error(libc::SO_EE_ORIGIN_ICMP6, 3, &v6);
        assert_eq!(reporter(&expired), Some("fd00::7".parse().unwrap()));
        for length in 0..expired.len() {
            assert_eq!(reporter(&expired[..length]), None, "{length}");
        }
    }

    #[test]
    fn reports_of_other_things_are_passed_over() {
        for ip in ["127.0.0.1", "::1"] {
            let any = SocketAddr::new(ip.parse().unwrap(), 0);
            let socket = DatagramSocket::bind(any, 0, 1 << 16).unwrap();
            socket.keep_reports().unwrap();
            socket.limit_hops(1).unwrap();
            assert!(socket.limit_hops(0).is_err() || any.is_ipv6());
            let closed = DatagramSocket::bind(any, 0, 1 << 16).unwrap().local();
            let datagram = Outgoing {
                to: closed,
                bytes: &[1],
                segment: None,
                traffic_class: None,
            };
            socket.send([datagram]).unwrap();
            thread::sleep(Duration::from_millis(5));
            assert_eq!(socket.expired().unwrap(), None);
            // The report was taken: it is no error of the next datagram.
            assert_eq!(socket.send([datagram]).unwrap(), 1);
        }
    }
}
