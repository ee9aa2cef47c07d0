//! Which device a rank uses.

use std::net::IpAddr;

use ringway_verbs::{Library, devices, gid::Wish};

use super::{Device, DeviceError, SoftwareDevice, SoftwareOptions, Verbs};

/// The first port of the machine's RDMA devices that can be used; if there is none, a device in software at this
/// address of the host. Why a device can't be used is logged, as information.
///
/// # Errors
/// If the device in software can't be opened either.
pub fn open(ip: IpAddr) -> Result<Box<dyn Device>, DeviceError> {
    if let Some(device) = first_port() {
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

fn first_port() -> Option<Verbs> {
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
    all.into_iter().find_map(|device| {
        match Verbs::open(&library, &device.name, PORT, Wish::default()) {
            Ok(opened) => {
                tracing::info!(device = device.name, "RDMA device");
                Some(opened)
            }
            Err(error) => {
                tracing::info!(device = device.name, "not used: {error}");
                None
            }
        }
    })
}

/// Ethernet adapters have a device for each port, whose number is 1.
const PORT: u8 = 1;
