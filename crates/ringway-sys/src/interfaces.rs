//! The network interfaces of this host and their addresses.

use std::{
    ffi::CStr,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ptr,
};

/// An address of an interface that is up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// The interface's name: `eth0`.
    pub name: String,
    /// The interface's index, which is the scope id of its link-local addresses.
    pub index: u32,
    /// The address.
    pub address: IpAddr,
    /// The number of leading bits that all addresses of its subnet share.
    pub prefix: u8,
    /// Whether it is only reachable from this host.
    pub loopback: bool,
}

/// The addresses of all interfaces that are up, in the kernel's order.
///
/// # Errors
/// If the kernel has no memory or descriptors left.
pub fn interface_addresses() -> io::Result<Vec<InterfaceAddress>> {
    let mut found = Vec::new();
    each_node(|node| found.extend(read(node)))?;
    Ok(found)
}

/// Shows every address of every interface.
fn each_node(mut see: impl FnMut(&libc::ifaddrs)) -> io::Result<()> {
    let mut list = ptr::null_mut();
    // SAFETY: the out-pointer is valid; on success it holds a list that is freed below.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut next = list.cast_const();
    while !next.is_null() {
        // SAFETY: `next` is a node of the list that getifaddrs made and that is not freed yet.
        let node = unsafe { &*next };
        see(node);
        next = node.ifa_next;
    }
    // SAFETY: `list` came from getifaddrs, and nothing that `see` keeps borrows from it: it takes any lifetime.
    unsafe { libc::freeifaddrs(list) };
    Ok(())
}

/// The names and hardware addresses (MAC, up to 8 bytes) of all interfaces, in the kernel's order.
///
/// # Errors
/// If the kernel has no memory or descriptors left.
pub fn hardware_addresses() -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut found = Vec::new();
    each_node(|node| found.extend(hardware(node)))?;
    Ok(found)
}

fn hardware(node: &libc::ifaddrs) -> Option<(String, Vec<u8>)> {
    if node.ifa_addr.is_null() {
        return None;
    }
    // SAFETY: a socket address that is not null begins with its family.
    if i32::from(unsafe { (*node.ifa_addr).sa_family }) != libc::AF_PACKET {
        return None;
    }
    // SAFETY: the family says that it is a `sockaddr_ll`; read unaligned, as the list promises nothing.
    let address = unsafe { node.ifa_addr.cast::<libc::sockaddr_ll>().read_unaligned() };
    let len = usize::from(address.sll_halen).min(address.sll_addr.len());
    // SAFETY: the kernel's list names every interface with a C string that lives as long as the node.
    let name = unsafe { CStr::from_ptr(node.ifa_name) };
    let name = name.to_string_lossy().into_owned();
    Some((name, address.sll_addr[..len].to_vec()))
}

fn read(node: &libc::ifaddrs) -> Option<InterfaceAddress> {
    let (up, loopback) = (libc::IFF_UP as u32, libc::IFF_LOOPBACK as u32);
    if node.ifa_flags & up == 0 {
        return None;
    }
    let address = address(node.ifa_addr)?;
    let prefix = match address_bits(node.ifa_netmask) {
        Some(mask) => u8::try_from(mask.leading_ones()).unwrap_or(128),
        None if address.is_ipv4() => 32,
        None => 128,
    };
    // SAFETY: the kernel's list names every interface with a C string that lives as long as the node.
    let name = unsafe { CStr::from_ptr(node.ifa_name) };
    // SAFETY: `name` is a valid C string.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    Some(InterfaceAddress {
        name: name.to_string_lossy().into_owned(),
        index,
        address,
        prefix,
        loopback: node.ifa_flags & loopback != 0 || address.is_loopback(),
    })
}

/// The address in a socket address of the Internet families.
fn address(at: *const libc::sockaddr) -> Option<IpAddr> {
    if at.is_null() {
        return None;
    }
    // SAFETY: a socket address that is not null begins with its family.
    match i32::from(unsafe { (*at).sa_family }) {
        libc::AF_INET => {
            // SAFETY: the family says that it is a `sockaddr_in`; read unaligned, as the list promises nothing.
            let inet = unsafe { at.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(u32::from_be(inet.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the family says that it is a `sockaddr_in6`; as above.
            let inet6 = unsafe { at.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(inet6.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

/// The bits of a netmask, from the top.
fn address_bits(at: *const libc::sockaddr) -> Option<u128> {
    Some(match address(at)? {
        IpAddr::V4(mask) => u128::from(mask.to_bits()) << 96,
        IpAddr::V6(mask) => mask.to_bits(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_a_hardware_address_of_zeros() {
        let all = hardware_addresses().unwrap();
        let (_, address) = all.iter().find(|(name, _)| name == "lo").unwrap();
        assert_eq!(address, &[0; 6]);
    }

    #[test]
    fn loopback_is_found_with_its_subnet() {
        let all = interface_addresses().unwrap();
        let lo = all
            .iter()
            .find(|a| a.address == IpAddr::V4(Ipv4Addr::LOCALHOST))
            .unwrap();
        assert!(lo.loopback);
        assert_eq!((lo.name.as_str(), lo.prefix), ("lo", 8));
        assert!(lo.index > 0);
    }
}
