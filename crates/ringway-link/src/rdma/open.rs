//! Which device a rank uses.

use std::{net::IpAddr, sync::Arc};

use ringway_verbs::{Library, devices, gid::Wish};

use super::{Device, DeviceError, SoftwareDevice, SoftwareOptions, Verbs};

/// Why no port of the machine's RDMA devices is used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoNic {
    /// There is none that libibverbs finds, or no libibverbs.
    #[error("no RDMA device: {0}")]
    None(String),
    /// None of those that there are can be used: each with the check that failed.
    #[error("no RDMA device can be used: {0}")]
    Unusable(String),
}

/// The port of the machine's RDMA devices that has this address of the host, or else the first that can be used; if there
/// is none, a device in software at the address, and the log says why.
///
/// # Errors
/// If the device in software can't be opened either.
pub fn open(ip: IpAddr) -> Result<Box<dyn Device>, DeviceError> {
    match open_nic(ip) {
        Ok(device) => return Ok(device),
        Err(reason @ NoNic::None(_)) => tracing::info!(%ip, %reason, "RDMA in software"),
        Err(reason @ NoNic::Unusable(_)) => tracing::warn!(%ip, %reason, "RDMA in software"),
    }
    let options = SoftwareOptions {
        ip,
        roce_port: false,
    };
    Ok(Box::new(SoftwareDevice::open(&options)?))
}

/// The port of the machine's RDMA devices that has this address of the host, or else the first that can be used.
///
/// # Errors
/// If there is none: which check failed.
pub fn open_nic(ip: IpAddr) -> Result<Box<dyn Device>, NoNic> {
    let library = Library::load().map_err(|error| NoNic::None(error.to_string()))?;
    let all = devices(&library).map_err(|error| NoNic::None(error.to_string()))?;
    let names: Vec<&str> = all.iter().map(|device| device.name.as_str()).collect();
    first_usable(&library, &names, ip)
}

/// The first of these devices that has the address, or else that can be used.
fn first_usable(
    library: &Arc<Library>,
    names: &[&str],
    ip: IpAddr,
) -> Result<Box<dyn Device>, NoNic> {
    let mut faults = Vec::new();
    for address in [Some(ip), None] {
        for &name in names {
            let wish = Wish {
                address,
                ..Wish::default()
            };
            match Verbs::open(library, name, PORT, wish) {
                Ok(opened) => {
                    tracing::info!(device = name, "RDMA device");
                    return Ok(Box::new(opened));
                }
                // That it lacks the address is no fault.
                Err(_) if address.is_some() => {}
                Err(error) => faults.push(format!("{name}: {error}")),
            }
        }
    }
    if faults.is_empty() {
        return Err(NoNic::None("libibverbs finds none".into()));
    }
    Err(NoNic::Unusable(faults.join("; ")))
}

/// Ethernet adapters have a device for each port, whose number is 1.
const PORT: u8 = 1;

#[cfg(test)]
mod tests {
    use ringway_fake_verbs::{LOCKED_DEVICE, OPEN_DEVICE};

    use super::*;

    #[test]
    fn a_device_that_can_not_be_used_is_named_with_the_check_that_failed() {
        let file = std::env::current_exe()
            .unwrap()
            .with_file_name("libringway_fake_verbs.so");
        let library = Library::open(&file, &file).unwrap();
        let ip = IpAddr::from([192, 0, 2, 1]);
        let opened =
            |names: &[&str]| first_usable(&library, names, ip).map(|it| it.name().to_owned());
        let Err(NoNic::Unusable(reason)) = opened(&[LOCKED_DEVICE]) else {
            panic!("it can't be opened");
        };
        assert!(
            reason.starts_with("fake1: ") && reason.contains("/dev/infiniband"),
            "{reason}"
        );
        assert!(matches!(opened(&[]), Err(NoNic::None(_))));
        let used = opened(&[LOCKED_DEVICE, OPEN_DEVICE]).unwrap();
        assert!(used.contains(OPEN_DEVICE), "{used}");
    }
}
