//! Which device a side uses, and which of its addresses.

use std::{
    net::IpAddr,
    ops::{Deref, DerefMut},
    path::Path,
};

use anyhow::{Context as _, Result};
use ringway_link::rdma::{Device, SoftwareDevice, SoftwareOptions, Verbs};
use ringway_verbs::{
    Context, Library,
    gid::{Family, GidKind, Wish},
    sysfs,
};

/// The name of the endpoint in software, as a device.
const SOFTWARE: &str = "software";

/// A device as users name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    /// RoCE v2 over UDP sockets.
    Software,
    /// A device of libibverbs, and its port.
    Verbs(String, u8),
}

/// A device that is opened.
pub(super) enum Opened {
    Software(Box<SoftwareDevice>),
    Verbs(Box<Verbs>),
}

impl Deref for Opened {
    type Target = dyn Device;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Software(device) => &**device,
            Self::Verbs(device) => &**device,
        }
    }
}

impl DerefMut for Opened {
    fn deref_mut(&mut self) -> &mut Self::Target {
        match self {
            Self::Software(device) => &mut **device,
            Self::Verbs(device) => &mut **device,
        }
    }
}

impl Name {
    /// From `software`, `mlx5_0` or `mlx5_0:2`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (name, port) = match text.split_once(':') {
            Some((name, port)) => (name, port.parse().ok().filter(|&port: &u8| port > 0)),
            None => (text, Some(1)),
        };
        match port {
            _ if name.is_empty() => Err("expected a name, such as mlx5_0".to_owned()),
            Some(port) if name != SOFTWARE => Ok(Self::Verbs(name.to_owned(), port)),
            Some(_) if text == SOFTWARE => Ok(Self::Software),
            _ => Err(
                "expected `software`, or a device and its port from 1, as in mlx5_0:1".to_owned(),
            ),
        }
    }

    /// The first device with a port that is up; the one in software if there is none.
    pub(super) fn usual() -> Result<Self> {
        let devices = sysfs::devices(Path::new("/")).context("reading /sys/class/infiniband")?;
        let up = devices.iter().find_map(|device| {
            let port = device.ports.iter().find(|port| port.state == "ACTIVE")?;
            Some(Self::Verbs(device.name.clone(), port.number))
        });
        Ok(up.unwrap_or(Self::Software))
    }

    /// Opens it. `reached` is this host's address by which the other side reaches it, `family` that of the address that
    /// the other side has chosen already. `managed` is whether queue pairs will be connected by rdma_cm.
    pub(super) fn open(
        &self,
        reached: IpAddr,
        family: Option<Family>,
        managed: bool,
    ) -> Result<Opened> {
        match self {
            Self::Software => {
                let options = SoftwareOptions {
                    ip: reached,
                    roce_port: managed,
                };
                let device = SoftwareDevice::open(&options)?;
                Ok(Opened::Software(Box::new(device)))
            }
            Self::Verbs(name, port) => {
                let library = Library::load()?;
                // The GID of the address that is known to reach the other side, if the device has it.
                let known = Context::open(&library, name)?
                    .gid_table(*port)?
                    .iter()
                    .any(|it| it.kind == GidKind::RoceV2 && it.gid.address() == reached);
                let family = family.unwrap_or_else(|| family_of(reached));
                let wish = Wish {
                    family,
                    address: (known && family == family_of(reached)).then_some(reached),
                };
                let device = Verbs::open(&library, name, *port, wish)?;
                Ok(Opened::Verbs(Box::new(device)))
            }
        }
    }
}

/// The family of an address: both sides' must be of the same.
pub(super) const fn family_of(ip: IpAddr) -> Family {
    match ip {
        IpAddr::V4(_) => Family::V4,
        IpAddr::V6(_) => Family::V6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_as_users_name_them() {
        assert_eq!(Name::parse("software"), Ok(Name::Software));
        let verbs = |name: &str, port| Ok(Name::Verbs(name.to_owned(), port));
        assert_eq!(Name::parse("mlx5_0"), verbs("mlx5_0", 1));
        assert_eq!(Name::parse("mlx5_0:2"), verbs("mlx5_0", 2));
        for bad in ["", ":1", "mlx5_0:", "mlx5_0:0", "mlx5_0:300", "software:1"] {
            assert!(Name::parse(bad).is_err(), "{bad}");
        }
    }
}
