//! IP addresses in the form that C's calls take.

use std::{
    mem,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6},
    ptr,
};

/// An address of no family, to be written by a call.
pub const NONE: libc::sockaddr_storage = {
    // SAFETY: a socket address of zeros is valid: of no family.
    unsafe { mem::zeroed() }
};

/// An address in C's form, and how many of its bytes count.
pub fn encode(address: SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    let mut name = NONE;
    match address {
        SocketAddr::V4(address) => {
            let v4 = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: address.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: address.ip().to_bits().to_be(),
                },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage is as large and as aligned as any address.
            unsafe { (&raw mut name).cast::<libc::sockaddr_in>().write(v4) };
            (name, size_of::<libc::sockaddr_in>() as libc::socklen_t)
        }
        SocketAddr::V6(address) => {
            let v6 = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: address.port().to_be(),
                sin6_flowinfo: address.flowinfo(),
                sin6_addr: libc::in6_addr {
                    s6_addr: address.ip().octets(),
                },
                sin6_scope_id: address.scope_id(),
            };
            // SAFETY: the storage is as large and as aligned as any address.
            unsafe { (&raw mut name).cast::<libc::sockaddr_in6>().write(v6) };
            (name, size_of::<libc::sockaddr_in6>() as libc::socklen_t)
        }
    }
}

/// An address from C's form, if it is one of IP.
pub fn decode(name: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match libc::c_int::from(name.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says that it is one of IPv4, for which the storage has the size and alignment.
            let v4 = unsafe { ptr::from_ref(name).cast::<libc::sockaddr_in>().read() };
            let ip = Ipv4Addr::from_bits(u32::from_be(v4.sin_addr.s_addr));
            Some(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above, of IPv6.
            let v6 = unsafe { ptr::from_ref(name).cast::<libc::sockaddr_in6>().read() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let port = u16::from_be(v6.sin6_port);
            Some(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_there_and_back() {
        for text in ["10.0.0.1:7", "[fd00::1]:65535"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(decode(&encode(address).0), Some(address));
        }
        assert_eq!(decode(&NONE), None);
    }
}
