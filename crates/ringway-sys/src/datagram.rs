//! UDP sockets for many datagrams at a time.
//!
//! One call sends or receives several datagrams, each of which may be many of the same size: the kernel, or the NIC,
//! cuts them when they are sent (`UDP_SEGMENT`) and puts them together when they have come (`UDP_GRO`; udp(7)).
//! Between two sockets of a host they are never cut, and cost one packet's work.

use std::{
    io, mem,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr,
};

use crate::socket_name;

/// The most datagrams, or trains of them, that one call sends or receives.
pub const BATCH: usize = 8;

/// The most segments of a train (`UDP_MAX_SEGMENTS` of Linux before 6.9).
pub const SEGMENTS: usize = 64;

/// The most bytes of a train. With headers of Ethernet, IPv6 and UDP they must stay below 2^16, or even the loopback
/// interface cuts it.
pub const TRAIN_BYTES: usize = (1 << 16) - 14 - 40 - 8 - 2;

/// A datagram to send, or a train of them.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// The receiver.
    pub to: SocketAddr,
    /// The payload, of all segments one after the other.
    pub bytes: &'a [u8],
    /// The size of all segments but the last, which may be shorter; None if there is only one.
    pub segment: Option<u16>,
    /// The type of service or traffic class, if it isn't the socket's.
    pub traffic_class: Option<u8>,
}

/// A datagram that has come, or a train of them.
#[derive(Clone, Copy, Debug)]
pub struct Incoming<'a> {
    /// The sender.
    pub from: SocketAddr,
    /// The payload, of all segments one after the other.
    pub bytes: &'a [u8],
    /// The size of all segments but the last, which may be shorter.
    pub segment: usize,
    /// The type of service or traffic class.
    pub traffic_class: u8,
}

impl<'a> Incoming<'a> {
    /// The payloads of its datagrams, of which there is at least one.
    pub fn datagrams(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let empty = self.bytes.is_empty().then_some(self.bytes);
        empty
            .into_iter()
            .chain(self.bytes.chunks(self.segment.max(1)))
    }
}

/// A UDP socket that isn't connected, never blocks, and never has its packets cut by routers.
///
/// Linux gives packets of such a socket the IPv4 identification 0 (`ip_select_ident`), unless segments are cut from a
/// train by the kernel or a NIC.
#[derive(Debug)]
pub struct DatagramSocket {
    fd: OwnedFd,
    local: SocketAddr,
}

impl DatagramSocket {
    /// Binds an address; port 0 is any that is free. `buffer` is how many bytes of packets shall wait in the kernel,
    /// each counted with its overhead; the kernel allows less, see [`DatagramSocket::receive_buffer`].
    ///
    /// # Errors
    /// If the address isn't this host's, the port is taken, or there are no descriptors left (`ulimit -n`).
    pub fn bind(address: SocketAddr, traffic_class: u8, buffer: usize) -> io::Result<Self> {
        let family = match address {
            SocketAddr::V4(_) => libc::AF_INET,
            SocketAddr::V6(_) => libc::AF_INET6,
        };
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::socket(family, kind, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else's.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        match address {
            SocketAddr::V4(_) => {
                let level = libc::IPPROTO_IP;
                set(&fd, level, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)?;
                set(&fd, level, libc::IP_RECVTOS, 1)?;
                set(&fd, level, libc::IP_TOS, traffic_class.into())?;
            }
            SocketAddr::V6(_) => {
                let level = libc::IPPROTO_IPV6;
                set(&fd, level, libc::IPV6_V6ONLY, 1)?;
                set(&fd, level, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO)?;
                set(&fd, level, libc::IPV6_RECVTCLASS, 1)?;
                set(&fd, level, libc::IPV6_TCLASS, traffic_class.into())?;
                // RoCE v2 has a CRC of its own, and so NICs and Linux's rxe send no checksum. Over
                // IPv6 the kernel drops such packets unless told not to (RFC 6936).
                set(&fd, libc::SOL_UDP, libc::UDP_NO_CHECK6_RX, 1)?;
            }
        }
        // Kernels before 5.0 have no trains to receive; everything comes one by one then.
        let _ = set(&fd, libc::SOL_UDP, libc::UDP_GRO, 1);
        // The kernel doubles the number, to account for overhead.
        let half = libc::c_int::try_from(buffer / 2).unwrap_or(libc::c_int::MAX);
        set(&fd, libc::SOL_SOCKET, libc::SO_RCVBUF, half)?;
        set(&fd, libc::SOL_SOCKET, libc::SO_SNDBUF, half)?;
        let (name, length) = socket_name::encode(address);
        // SAFETY: `name` holds an address of `length` bytes.
        let bound = unsafe { libc::bind(fd.as_raw_fd(), (&raw const name).cast(), length) };
        check(bound)?;
        let mut name = socket_name::NONE;
        let mut length = NAME_LENGTH;
        // SAFETY: the kernel writes at most `length` bytes of `name`.
        let got =
            unsafe { libc::getsockname(fd.as_raw_fd(), (&raw mut name).cast(), &raw mut length) };
        check(got)?;
        Ok(Self {
            fd,
            local: from_name(&name),
        })
    }

    /// The address and port that it is bound to.
    pub const fn local(&self) -> SocketAddr {
        self.local
    }

    /// Sets an option whose value is a number.
    pub(crate) fn set(
        &self,
        level: libc::c_int,
        option: libc::c_int,
        value: libc::c_int,
    ) -> io::Result<()> {
        set(&self.fd, level, option, value)
    }

    /// How many bytes of packets wait in the kernel at most, each counted with its overhead (socket(7), `SO_RCVBUF`).
    ///
    /// # Errors
    /// Only if the descriptor is broken.
    pub fn receive_buffer(&self) -> io::Result<usize> {
        let mut bytes: libc::c_int = 0;
        let mut length = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: the kernel writes one int.
        let got = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVBUF,
                (&raw mut bytes).cast(),
                &raw mut length,
            )
        };
        check(got)?;
        Ok(usize::try_from(bytes).unwrap_or(0))
    }

    /// How many packets were dropped because the buffer was full, or the kernel had no memory.
    ///
    /// # Errors
    /// Only if the descriptor is broken.
    pub fn dropped(&self) -> io::Result<u64> {
        let mut numbers = [0_u32; libc::SK_MEMINFO_DROPS as usize + 1];
        let mut length = size_of_val(&numbers) as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes of the numbers.
        let got = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_MEMINFO,
                numbers.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        check(got)?;
        Ok(numbers[libc::SK_MEMINFO_DROPS as usize].into())
    }

    /// Sends datagrams, at most [`BATCH`] of them. Returns how many, which are the first ones, have been taken.
    ///
    /// # Errors
    /// If the first can't be sent: `WouldBlock` if the socket's buffer is full.
    pub fn send<'a>(&self, datagrams: impl IntoIterator<Item = Outgoing<'a>>) -> io::Result<usize> {
        let mut count = 0;
        let mut names = [socket_name::NONE; BATCH];
        let mut parts = [NO_PART; BATCH];
        let mut controls = [Control::EMPTY; BATCH];
        let mut headers = [EMPTY_HEADER; BATCH];
        for (at, datagram) in datagrams.into_iter().take(BATCH).enumerate() {
            count += 1;
            let (name, name_length) = socket_name::encode(datagram.to);
            names[at] = name;
            parts[at] = libc::iovec {
                iov_base: datagram.bytes.as_ptr().cast_mut().cast(),
                iov_len: datagram.bytes.len(),
            };
            let control = &mut controls[at];
            if let Some(segment) = datagram.segment {
                control.push(libc::SOL_UDP, libc::UDP_SEGMENT, &segment.to_ne_bytes());
            }
            if let Some(class) = datagram.traffic_class {
                let (level, kind) = match datagram.to {
                    SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TOS),
                    SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
                };
                control.push(level, kind, &libc::c_int::from(class).to_ne_bytes());
            }
            let header = &mut headers[at].msg_hdr;
            header.msg_name = (&raw mut names[at]).cast();
            header.msg_namelen = name_length;
            header.msg_iov = &raw mut parts[at];
            header.msg_iovlen = 1;
            if controls[at].length > 0 {
                header.msg_control = (&raw mut controls[at].bytes).cast();
                header.msg_controllen = controls[at].length;
            }
        }
        // SAFETY: each of the `count` headers points to a name, a part and control data that live here; the parts are
        // slices that are borrowed until the call is over, and the kernel only reads them.
        let sent = unsafe {
            libc::sendmmsg(
                self.fd.as_raw_fd(),
                headers.as_mut_ptr(),
                count,
                libc::MSG_NOSIGNAL,
            )
        };
        check(sent)?;
        Ok(usize::try_from(sent).unwrap_or(0))
    }
}

impl AsFd for DatagramSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Room for what one call receives.
#[derive(Debug)]
pub struct Arrivals {
    bytes: Box<[u8]>,
    found: [Found; BATCH],
    count: usize,
}

#[derive(Clone, Copy, Debug)]
struct Found {
    from: SocketAddr,
    length: usize,
    segment: usize,
    traffic_class: u8,
}

/// The room for a train.
const SLOT: usize = 1 << 16;

impl Default for Arrivals {
    fn default() -> Self {
        Self {
            bytes: vec![0; BATCH * SLOT].into(),
            found: [Found {
                from: NOBODY,
                length: 0,
                segment: 0,
                traffic_class: 0,
            }; BATCH],
            count: 0,
        }
    }
}

impl Arrivals {
    /// Receives what is there, in place of what was received before. Returns how many datagrams or trains it was; with
    /// [`BATCH`] there may be more.
    ///
    /// # Errors
    /// Only if the socket is broken; that nothing is there is none.
    pub fn receive(&mut self, socket: &DatagramSocket) -> io::Result<usize> {
        self.count = 0;
        let mut names = [socket_name::NONE; BATCH];
        let mut parts = [NO_PART; BATCH];
        let mut controls = [Control::EMPTY; BATCH];
        let mut headers = [EMPTY_HEADER; BATCH];
        for (at, slot) in self.bytes.chunks_exact_mut(SLOT).enumerate() {
            parts[at] = libc::iovec {
                iov_base: slot.as_mut_ptr().cast(),
                iov_len: SLOT,
            };
            let header = &mut headers[at].msg_hdr;
            header.msg_name = (&raw mut names[at]).cast();
            header.msg_namelen = NAME_LENGTH;
            header.msg_iov = &raw mut parts[at];
            header.msg_iovlen = 1;
            header.msg_control = (&raw mut controls[at].bytes).cast();
            header.msg_controllen = CONTROL_BYTES;
        }
        // SAFETY: each of the headers points to room for a name, a part and control data that live here or are
        // borrowed mutably from `self`, with their lengths. No time-out is given.
        let got = unsafe {
            libc::recvmmsg(
                socket.fd.as_raw_fd(),
                headers.as_mut_ptr(),
                BATCH as libc::c_uint,
                libc::MSG_DONTWAIT,
                ptr::null_mut(),
            )
        };
        match check(got) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(0),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(0),
            Err(error) => return Err(error),
        }
        self.count = usize::try_from(got).unwrap_or(0).min(BATCH);
        for (at, header) in headers[..self.count].iter().enumerate() {
            let length = header.msg_len as usize;
            let mut found = Found {
                from: from_name(&names[at]),
                length,
                segment: length,
                traffic_class: 0,
            };
            let control = &controls[at].bytes.0[..header.msg_hdr.msg_controllen];
            read_control(control, |level, kind, data| match (level, kind) {
                (libc::SOL_UDP, libc::UDP_GRO) => {
                    found.segment = int(data).unwrap_or(length);
                }
                (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    // A byte of IPv4, an int of IPv6; the byte that counts is the first on little-endian machines only.
                    found.traffic_class = int(data)
                        .map_or_else(|| data.first().copied().unwrap_or(0), |class| class as u8);
                }
                _ => {}
            });
            self.found[at] = found;
        }
        Ok(self.count)
    }

    /// What was received.
    pub fn iter(&self) -> impl Iterator<Item = Incoming<'_>> {
        let slots = self.bytes.chunks_exact(SLOT);
        slots.zip(&self.found[..self.count]).map(|(slot, found)| {
            let &Found {
                from,
                length,
                segment,
                traffic_class,
            } = found;
            Incoming {
                from,
                bytes: &slot[..length],
                segment,
                traffic_class,
            }
        })
    }
}

fn int(data: &[u8]) -> Option<usize> {
    let bytes = data.first_chunk().copied()?;
    usize::try_from(libc::c_int::from_ne_bytes(bytes)).ok()
}

/// The room for the control data of a datagram: two messages with an int each.
const CONTROL_BYTES: usize = 64;

#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Aligned([u8; CONTROL_BYTES]);

#[derive(Clone, Copy)]
struct Control {
    bytes: Aligned,
    length: usize,
}

/// The bytes of a control message's header, aligned as its data must be.
const CONTROL_HEADER: usize = size_of::<libc::cmsghdr>().next_multiple_of(align_of::<usize>());

impl Control {
    const EMPTY: Self = Self {
        bytes: Aligned([0; CONTROL_BYTES]),
        length: 0,
    };

    /// Appends a message, as cmsg(3) lays it out: length, level and kind, data, padding.
    fn push(&mut self, level: libc::c_int, kind: libc::c_int, data: &[u8]) {
        let length = CONTROL_HEADER + data.len();
        let into = &mut self.bytes.0[self.length..];
        let at = mem::offset_of!(libc::cmsghdr, cmsg_len);
        into[at..at + size_of::<usize>()].copy_from_slice(&length.to_ne_bytes());
        let at = mem::offset_of!(libc::cmsghdr, cmsg_level);
        into[at..at + size_of::<libc::c_int>()].copy_from_slice(&level.to_ne_bytes());
        let at = mem::offset_of!(libc::cmsghdr, cmsg_type);
        into[at..at + size_of::<libc::c_int>()].copy_from_slice(&kind.to_ne_bytes());
        into[CONTROL_HEADER..length].copy_from_slice(data);
        self.length += length.next_multiple_of(align_of::<usize>());
    }
}

/// Goes through the control messages that the kernel has written.
pub(crate) fn read_control(
    mut control: &[u8],
    mut each: impl FnMut(libc::c_int, libc::c_int, &[u8]),
) {
    let number = |at: usize, control: &[u8]| {
        let bytes = control.get(at..)?.first_chunk().copied()?;
        Some(libc::c_int::from_ne_bytes(bytes))
    };
    while let Some(bytes) = control
        .get(mem::offset_of!(libc::cmsghdr, cmsg_len)..)
        .and_then(|bytes| bytes.first_chunk().copied())
    {
        let length = usize::from_ne_bytes(bytes);
        let level = number(mem::offset_of!(libc::cmsghdr, cmsg_level), control);
        let kind = number(mem::offset_of!(libc::cmsghdr, cmsg_type), control);
        let (Some(level), Some(kind), Some(data)) =
            (level, kind, control.get(CONTROL_HEADER..length))
        else {
            return;
        };
        each(level, kind, data);
        let next = length.next_multiple_of(align_of::<usize>());
        control = control.get(next..).unwrap_or_default();
    }
}

const NAME_LENGTH: libc::socklen_t = size_of::<libc::sockaddr_storage>() as libc::socklen_t;

const NO_PART: libc::iovec = libc::iovec {
    iov_base: ptr::null_mut(),
    iov_len: 0,
};

pub(crate) const EMPTY_HEADER: libc::mmsghdr = {
    // SAFETY: a message header of zeros is valid: no name, no parts, no control data.
    unsafe { mem::zeroed() }
};

/// The sender of what has none.
const NOBODY: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0));

/// An address that the kernel has written; [`NOBODY`] where it has written none.
fn from_name(name: &libc::sockaddr_storage) -> SocketAddr {
    socket_name::decode(name).unwrap_or(NOBODY)
}

fn set(
    fd: &OwnedFd,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    // SAFETY: the kernel reads one int.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    check(result)
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(ip: &str) -> (DatagramSocket, DatagramSocket) {
        let address = SocketAddr::new(ip.parse().unwrap(), 0);
        let bind = || DatagramSocket::bind(address, 106, 1 << 20).unwrap();
        (bind(), bind())
    }

    fn receive(arrivals: &mut Arrivals, socket: &DatagramSocket) -> usize {
        // Loopback delivers before the sender's call returns.
        arrivals.receive(socket).unwrap()
    }

    #[test]
    fn trains_and_single_datagrams_arrive_with_class_and_sender() {
        for ip in ["127.0.0.1", "::1"] {
            let (a, b) = pair(ip);
            let bytes: Vec<u8> = (0..10_000_u32).map(|i| (i % 251) as u8).collect();
            let train = Outgoing {
                to: b.local(),
                bytes: &bytes,
                segment: Some(4112),
                traffic_class: None,
            };
            let single = Outgoing {
                bytes: &bytes[..7],
                segment: None,
                traffic_class: Some(0xc3),
                ..train
            };
            let empty = Outgoing {
                bytes: &[],
                ..single
            };
            assert_eq!(a.send([train, single, empty]).unwrap(), 3);
            let mut arrivals = Arrivals::default();
            assert_eq!(receive(&mut arrivals, &b), 3);
            let got: Vec<_> = arrivals.iter().collect();
            assert!(got.iter().all(|incoming| incoming.from == a.local()));
            assert_eq!(got[0].bytes, bytes);
            let lengths: Vec<_> = got[0].datagrams().map(<[u8]>::len).collect();
            assert_eq!(lengths, [4112, 4112, 1776]);
            assert_eq!(got[1].datagrams().collect::<Vec<_>>(), [&bytes[..7]]);
            assert_eq!(got[2].datagrams().count(), 1);
            let classes: Vec<_> = got.iter().map(|incoming| incoming.traffic_class).collect();
            assert_eq!(classes, [106, 0xc3, 0xc3]);
            assert_eq!(receive(&mut arrivals, &b), 0);
            assert_eq!(arrivals.iter().count(), 0);
        }
    }

    #[test]
    fn the_longest_train_goes() {
        let (a, b) = pair("::1");
        let bytes = vec![7; TRAIN_BYTES];
        let train = Outgoing {
            to: b.local(),
            bytes: &bytes,
            segment: Some((TRAIN_BYTES.div_ceil(SEGMENTS)) as u16),
            traffic_class: None,
        };
        assert_eq!(a.send([train]).unwrap(), 1);
        let mut arrivals = Arrivals::default();
        assert_eq!(receive(&mut arrivals, &b), 1);
        let count = arrivals.iter().flat_map(|train| train.datagrams()).count();
        assert_eq!(count, SEGMENTS);
    }

    #[test]
    fn what_cannot_be_sent_is_an_error() {
        let (a, b) = pair("127.0.0.1");
        let datagram = Outgoing {
            to: b.local(),
            bytes: &vec![0; 70_000],
            segment: None,
            traffic_class: None,
        };
        let error = a.send([datagram]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EMSGSIZE));
        let taken = DatagramSocket::bind(a.local(), 0, 1 << 16).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn what_the_buffer_has_no_room_for_is_counted() {
        let (a, b) = pair("127.0.0.1");
        let datagram = Outgoing {
            to: b.local(),
            bytes: &[0; 1000],
            segment: None,
            traffic_class: None,
        };
        assert_eq!(b.dropped().unwrap(), 0);
        let sent = b.receive_buffer().unwrap() / 1000 + 1;
        for _ in 0..sent {
            assert_eq!(a.send([datagram]).unwrap(), 1);
        }
        let (mut arrivals, mut got) = (Arrivals::default(), 0);
        while receive(&mut arrivals, &b) > 0 {
            got += arrivals.iter().count();
        }
        assert_eq!(got as u64 + b.dropped().unwrap(), sent as u64);
        assert!(got < sent);
    }
}
