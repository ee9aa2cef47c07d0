//! The configuration space of a PCI function, as /sys/bus/pci/devices/*/config has it (PCI Local Bus 3.0, section 6.1; PCI
//! Express Base 5.0, sections 7.5 and 7.7). Others than root see the first 64 bytes only.

/// The capability of PCI Express.
const EXPRESS: u8 = 0x10;
/// The extended capability of access control services.
const ACS: u16 = 0x000d;
/// The extended capability that holds the serial number, which an Ethernet card makes of its MAC address.
const SERIAL_NUMBER: u16 = 0x0003;

/// What the capability of PCI Express says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciExpress {
    /// The Device Control word.
    pub device_control: u16,
    /// The Link Control word.
    pub link_control: u16,
}

impl PciExpress {
    /// From the configuration space; `None` if it is cut short or the function is not on PCI Express.
    pub fn parse(config: &[u8]) -> Option<Self> {
        // Bit 4 of Status: there is a list of capabilities, which starts where byte 0x34 says.
        if word(config, 6)? & 0x10 == 0 {
            return None;
        }
        let mut at = usize::from(*config.get(0x34)? & !3);
        // 48 capabilities fit into 192 bytes; a list that is longer runs in a circle.
        for _ in 0..48 {
            if at < 0x40 {
                return None;
            }
            if *config.get(at)? == EXPRESS {
                return Some(Self {
                    device_control: word(config, at + 8)?,
                    link_control: word(config, at + 16)?,
                });
            }
            at = usize::from(*config.get(at + 1)? & !3);
        }
        None
    }

    /// The largest read request in bytes.
    pub fn read_request(self) -> u32 {
        128 << (self.device_control >> 12 & 7)
    }

    /// The largest payload in bytes.
    pub fn payload(self) -> u32 {
        128 << (self.device_control >> 5 & 7)
    }

    /// Whether it may let its requests overtake one another.
    pub fn relaxed_ordering(self) -> bool {
        self.device_control >> 4 & 1 == 1
    }

    /// Whether its link may sleep (L0s or L1).
    pub fn aspm(self) -> bool {
        self.link_control & 3 != 0
    }
}

/// Access control services of a bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acs {
    /// The control word: a bit for each service that is on.
    pub control: u16,
}

impl Acs {
    /// The bits of the control word that send requests between devices below the bridge up to the root: Request Redirect,
    /// Completion Redirect, and Upstream Forwarding (PCI Express Base 5.0, 7.7.8.3).
    pub const REDIRECTS: u16 = 0b1_1100;

    /// From the configuration space; `None` if the bridge has none.
    pub fn parse(config: &[u8]) -> Option<Self> {
        let at = extended(config, ACS)?;
        Some(Self {
            control: word(config, at + 6)?,
        })
    }

    /// Whether requests between devices below the bridge are sent up to the root.
    pub fn redirects(self) -> bool {
        self.control & Self::REDIRECTS != 0
    }
}

/// Where the serial number of the card is: 8 bytes from here.
pub fn serial_number(config: &[u8]) -> Option<usize> {
    Some(extended(config, SERIAL_NUMBER)? + 4)
}

/// Where an extended capability begins.
fn extended(config: &[u8], wanted: u16) -> Option<usize> {
    let mut at = 0x100;
    // As many as fit.
    for _ in 0..(4096 - 256) / 8 {
        let head = u32::from(word(config, at)?) | u32::from(word(config, at + 2)?) << 16;
        if head == 0 || head == u32::MAX {
            return None;
        }
        if head as u16 == wanted {
            return Some(at);
        }
        at = (head >> 20) as usize & !3;
        if at < 0x100 {
            return None;
        }
    }
    None
}

fn word(config: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes([*config.get(at)?, *config.get(at + 1)?]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Vec<u8> {
        let mut config = vec![0; 4096];
        config[6] = 0x10;
        config[0x34] = 0x40;
        config[0x40..0x42].copy_from_slice(&[0x01, 0x60]);
        config[0x60..0x62].copy_from_slice(&[EXPRESS, 0]);
        // 4096 bytes, relaxed ordering, payload 256
        config[0x68..0x6a].copy_from_slice(&0x5030u16.to_le_bytes());
        config[0x70] = 2;
        config[0x100..0x104].copy_from_slice(&(0x0003u32 | 1 << 16 | 0x148 << 20).to_le_bytes());
        config[0x148..0x14c].copy_from_slice(&(0x000du32 | 1 << 16).to_le_bytes());
        config[0x14e] = 0x1d;
        config
    }

    #[test]
    fn capabilities_are_found_where_their_lists_lead() {
        let config = config();
        let express = PciExpress::parse(&config).unwrap();
        assert_eq!((express.read_request(), express.payload()), (4096, 256));
        assert!(express.relaxed_ordering() && express.aspm());
        assert_eq!(Acs::parse(&config), Some(Acs { control: 0x1d }));
        assert!(Acs { control: 0x1d }.redirects() && !Acs { control: 1 }.redirects());
        assert_eq!(serial_number(&config), Some(0x104));
        // What others than root see.
        assert_eq!(PciExpress::parse(&config[..64]), None);
        assert_eq!(Acs::parse(&config[..256]), None);
    }

    #[test]
    fn a_list_in_a_circle_ends() {
        let mut config = config();
        config[0x60] = 1;
        config[0x61] = 0x40;
        assert_eq!(PciExpress::parse(&config), None);
        config[0x148..0x14c].copy_from_slice(&(0x0001u32 | 0x100 << 20).to_le_bytes());
        config[0x100..0x104].copy_from_slice(&(0x0002u32 | 0x148 << 20).to_le_bytes());
        assert_eq!(Acs::parse(&config), None);
    }
}
