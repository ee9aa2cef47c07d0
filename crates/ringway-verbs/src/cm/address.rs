//! IP addresses in the form of C.

use std::{net::SocketAddr, ptr};

/// An address in C's form.
pub(super) fn c_address(address: SocketAddr) -> libc::sockaddr_storage {
    // SAFETY: a structure of integers, for which zero is a value.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    match address {
        SocketAddr::V4(v4) => {
            let c = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from_ne_bytes(v4.ip().octets()),
                },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage is made to hold any address, and aligned for it.
            unsafe {
                ptr::from_mut(&mut storage)
                    .cast::<libc::sockaddr_in>()
                    .write(c)
            }
        }
        SocketAddr::V6(v6) => {
            let c = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr {
                    s6_addr: v6.ip().octets(),
                },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: as above.
            unsafe {
                ptr::from_mut(&mut storage)
                    .cast::<libc::sockaddr_in6>()
                    .write(c)
            }
        }
    }
    storage
}

/// An address from C's form, if it is one of IP.
pub(super) fn socket_address(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match i32::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says that the storage holds this, and it is aligned for it.
            let c = unsafe { ptr::from_ref(storage).cast::<libc::sockaddr_in>().read() };
            let ip = std::net::Ipv4Addr::from(c.sin_addr.s_addr.to_ne_bytes());
            Some((ip, u16::from_be(c.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let c = unsafe { ptr::from_ref(storage).cast::<libc::sockaddr_in6>().read() };
            let ip = std::net::Ipv6Addr::from(c.sin6_addr.s6_addr);
            let (flow, scope) = (c.sin6_flowinfo, c.sin6_scope_id);
            let port = u16::from_be(c.sin6_port);
            Some(std::net::SocketAddrV6::new(ip, port, flow, scope).into())
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
            assert_eq!(socket_address(&c_address(address)), Some(address));
        }
        // SAFETY: a structure of integers, for which zero is a value.
        let none = unsafe { std::mem::zeroed() };
        assert_eq!(socket_address(&none), None);
    }
}
