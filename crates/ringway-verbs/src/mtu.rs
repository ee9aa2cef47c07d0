//! The path MTU: how many bytes of payload a packet carries.

use std::fmt;

/// An MTU that the InfiniBand specification knows (volume 1, 9.2.2: the code that stands for it).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mtu {
    /// 256 bytes.
    B256 = 1,
    /// 512 bytes.
    B512 = 2,
    /// 1024 bytes: what fits into Ethernet's usual 1500.
    B1024 = 3,
    /// 2048 bytes.
    B2048 = 4,
    /// 4096 bytes, the largest.
    B4096 = 5,
}

/// What RoCE v2 adds to the payload within Ethernet's MTU, as Linux reckons it (`iboe_get_mtu` in
/// include/rdma/ib_addr.h): GRH 40, UDP 8, BTH 12, XRC 4, atomic header 28, ICRC 4.
const HEADERS: u32 = 96;

impl Mtu {
    /// All, smallest first.
    pub const ALL: [Self; 5] = [
        Self::B256,
        Self::B512,
        Self::B1024,
        Self::B2048,
        Self::B4096,
    ];

    /// The one of this code (`enum ibv_mtu`), if it is known.
    pub fn from_code(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| mtu.code() == code)
    }

    /// The code that stands for it in verbs and on the wire.
    pub const fn code(self) -> u32 {
        self as u32
    }

    /// The bytes of payload in a packet.
    pub const fn bytes(self) -> u32 {
        128 << self as u32
    }

    /// The largest that a network interface with this MTU in bytes can carry.
    pub fn fitting(interface: u32) -> Option<Self> {
        Self::ALL
            .into_iter()
            .rev()
            .find(|mtu| mtu.bytes() + HEADERS <= interface)
    }

    /// The MTU of a path between two ports: a packet must be one that both can take.
    pub fn of_path(ours: Self, theirs: Self) -> Self {
        ours.min(theirs)
    }
}

impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_the_header() {
        let table = [(1, 256), (2, 512), (3, 1024), (4, 2048), (5, 4096)];
        for (code, bytes) in table {
            assert_eq!(Mtu::from_code(code).unwrap().bytes(), bytes);
        }
        assert_eq!(Mtu::from_code(0), None);
        assert_eq!(Mtu::from_code(6), None);
    }

    #[test]
    fn of_an_interface_and_of_a_path() {
        assert_eq!(Mtu::fitting(1500), Some(Mtu::B1024));
        assert_eq!(Mtu::fitting(4191), Some(Mtu::B2048));
        assert_eq!(Mtu::fitting(4192), Some(Mtu::B4096));
        assert_eq!(Mtu::fitting(9000), Some(Mtu::B4096));
        assert_eq!(Mtu::fitting(300), None);
        assert_eq!(Mtu::of_path(Mtu::B4096, Mtu::B1024), Mtu::B1024);
        assert_eq!(Mtu::of_path(Mtu::B1024, Mtu::B4096), Mtu::B1024);
    }
}
