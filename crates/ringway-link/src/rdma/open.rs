//! Which device a rank uses.

use std::net::IpAddr;

use ringway_verbs::{Library, devices, gid::Wish};

use super::{Device, DeviceError, SoftwareDevice, SoftwareOptions, Verbs};

/// The port of the machine's RDMA devices that has this address of the host, or else the first that can be used; if there
/// is none, a device in software at the address. Why a device can't be used is logged, as information.
///
/// # Errors
/// If the device in software can't be opened either.
pub fn open(ip: IpAddr) -> Result<Box<dyn Device>, DeviceError> {
    if let Some(device) = port(ip) {
        return Ok(Box::new(device));
    }
    let options = SoftwareOptions {
        ip,
        roce_port: false,
    };
    let device = SoftwareDevice::open(&options)?;
    tracing::info!(%ip, "RDMA in software");
    Ok(Box::new(device))
}

fn port(ip: IpAddr) -> Option<Verbs> {
    let library = match Library::load() {
        Ok(library) => library,
        Err(error) => {
            tracing::info!("no RDMA device: {error}");
            return None;
        }
    };
    let all = devices(&library).unwrap_or_else(|error| {
        tracing::info!("no RDMA device: {error}");
        Vec::new()
    });
    let opened = |name: &str, address| {
        let wish = Wish {
            address,
            ..Wish::default()
        };
        match Verbs::open(&library, name, PORT, wish) {
            Ok(opened) => {
                tracing::info!(device = name, "RDMA device");
                Some(opened)
            }
            Err(error) => {
                tracing::info!(device = name, "not used: {error}");
                None
            }
        }
    };
    let names = || all.iter().map(|device| device.name.as_str());
    names()
        .find_map(|name| opened(name, Some(ip)))
        .or_else(|| names().find_map(|name| opened(name, None)))
}

/// Ethernet adapters have a device for each port, whose number is 1.
const PORT: u8 = 1;
