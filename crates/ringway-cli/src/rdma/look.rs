//! What is there.

use std::{collections::BTreeMap, path::Path};

use anyhow::{Context as _, Result};
use ringway_sys::{InterfaceAddress, interface_addresses};
use ringway_verbs::{Context, ForkSafety, Library, Memlock, sysfs};

/// All that is shown.
pub(super) struct Found {
    pub(super) devices: Vec<sysfs::DeviceFiles>,
    /// Why a device cannot be opened, by its name.
    pub(super) closed: BTreeMap<String, String>,
    /// The libraries: what `fork` does to registered memory, or why they cannot be used.
    pub(super) library: Result<ForkSafety, String>,
    pub(super) memlock: Memlock,
    /// Addresses for the endpoint in software.
    pub(super) addresses: Vec<InterfaceAddress>,
    /// Why there is no device, and how to get one.
    pub(super) absence: Option<String>,
}

/// Looks below `root`, the root of the file system, and asks libibverbs.
pub(super) fn look(root: &Path) -> Result<Found> {
    let devices = sysfs::devices(root).context("reading /sys/class/infiniband")?;
    let addresses = interface_addresses().context("reading the addresses of this host")?;
    let mut closed = BTreeMap::new();
    let library = match Library::load() {
        Ok(library) => {
            for device in &devices {
                if let Err(error) = Context::open(&library, &device.name) {
                    closed.insert(device.name.clone(), error.to_string());
                }
            }
            Ok(library.fork_safety())
        }
        Err(error) => Err(error.to_string()),
    };
    let absence = devices
        .is_empty()
        .then(|| absence(root.join("sys/class/infiniband").exists(), &addresses));
    Ok(Found {
        devices,
        closed,
        library,
        memlock: Memlock::of_process(),
        addresses,
        absence,
    })
}

/// Why there is no device, and how to get one.
fn absence(in_kernel: bool, addresses: &[InterfaceAddress]) -> String {
    let why = if in_kernel {
        "the kernel has RDMA, but no driver has found a device"
    } else {
        "the kernel has no RDMA, or this is a container that does not show it (/sys/class/infiniband is missing)"
    };
    let interface = addresses
        .iter()
        .find(|address| !address.loopback)
        .map_or("eth0", |address| address.name.as_str());
    format!(
        "no RDMA device: {why}\n\
         \x20 a NIC of this machine needs its driver: modprobe mlx5_ib (or bnxt_re, irdma ...), then `rdma link` shows it\n\
         \x20 any other network interface can have one in the kernel's software, for trying things out:\n\
         \x20   modprobe rdma_rxe && rdma link add rxe0 type rxe netdev {interface}\n\
         \x20   (as root; `rdma` is in the package iproute2; kernels for clouds are built without rdma_rxe)\n\
         \x20 a container must be given the devices of its host: --device /dev/infiniband --ulimit memlock=-1"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absence_names_the_remedy_for_an_interface_that_is_there() {
        let address = |name: &str, loopback| InterfaceAddress {
            name: name.to_owned(),
            index: 1,
            address: "10.0.0.1".parse().unwrap(),
            prefix: 24,
            loopback,
        };
        let text = absence(false, &[address("lo", true), address("ens3", false)]);
        assert!(
            text.contains("modprobe rdma_rxe && rdma link add rxe0 type rxe netdev ens3"),
            "{text}"
        );
        assert!(text.contains("the kernel has no RDMA"), "{text}");
        assert!(absence(true, &[]).contains("no driver has found a device"));
    }
}
