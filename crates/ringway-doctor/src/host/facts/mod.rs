//! What more than one check asks of a host.

mod device;
mod marks;
mod quality;
mod surroundings;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::OnceLock,
};

pub(super) use device::{Device, Port};
pub(super) use marks::Mark;
pub(super) use quality::Quality;
pub(super) use surroundings::Surroundings;

use super::{
    Root, Unread,
    parse::{self, CpuSet, PciExpress},
};

/// CAP_IPC_LOCK and CAP_SYS_ADMIN (linux/capability.h).
const IPC_LOCK: u32 = 14;
const SYS_ADMIN: u32 = 21;

/// Names of the environment's variables that checks look at begin with these.
pub(super) const VARIABLES: [&str; 9] = [
    "NCCL_",
    "UCX_",
    "SLURM_JOB_ID",
    "SLURM_RLIMIT_MEMLOCK",
    "KUBERNETES_SERVICE_HOST",
    "INVOCATION_ID",
    "OMPI_COMM_WORLD_RANK",
    "WORLD_SIZE",
    "RDMAV_FORK_SAFE",
];

/// A host, as far as it is looked at before the checks run.
pub(super) struct Host<'r> {
    pub(super) root: &'r Root,
    /// The RDMA devices, by name.
    pub(super) devices: Vec<Device>,
    /// PCI functions of NVIDIA's and Mellanox's, and other network cards.
    pub(super) functions: Vec<Function>,
    /// The variables of the program that asks: of a job if it runs in one.
    pub(super) environment: BTreeMap<String, String>,
    pub(super) surroundings: Surroundings,
    /// CAP_IPC_LOCK: locked memory has no limit.
    pub(super) may_lock: bool,
    /// CAP_SYS_ADMIN: all of a card's configuration space can be read.
    pub(super) privileged: bool,
    /// The names of all processes, once somebody has asked.
    programs: OnceLock<BTreeSet<String>>,
    /// Quality of service by network interface.
    quality: BTreeMap<String, Result<Quality, Unread>>,
}

/// A PCI function.
pub(super) struct Function {
    pub(super) address: String,
    pub(super) vendor: u64,
    pub(super) class: u64,
    pub(super) driver: Option<String>,
}

impl Function {
    /// Whether it is a GPU of NVIDIA's.
    pub(super) fn is_gpu(&self) -> bool {
        self.vendor == 0x10de && matches!(self.class >> 8, 0x0300 | 0x0302)
    }

    /// Whether it is a network card.
    pub(super) fn is_nic(&self) -> bool {
        matches!(self.class >> 8, 0x0200 | 0x0207)
    }

    /// Where its files are.
    pub(super) fn dir(&self) -> String {
        pci_dir(&self.address)
    }
}

/// Where the files of a PCI function are.
pub(super) fn pci_dir(address: &str) -> String {
    format!("sys/bus/pci/devices/{address}")
}

impl<'r> Host<'r> {
    pub(super) fn look(root: &'r Root) -> Self {
        let devices = device::devices(root);
        let functions = functions(root);
        let status = root.text("proc/self/status").unwrap_or_default();
        let capabilities = parse::capabilities(&status).unwrap_or(0);
        let environment: BTreeMap<_, _> =
            parse::environment(&root.bytes("proc/self/environ").unwrap_or_default())
                .into_iter()
                .filter(|(name, _)| VARIABLES.iter().any(|it| name.starts_with(it)))
                .collect();
        let surroundings = Surroundings::look(root, &environment);
        let mut host = Self {
            root,
            devices,
            functions,
            environment,
            surroundings,
            may_lock: capabilities >> IPC_LOCK & 1 == 1,
            privileged: capabilities >> SYS_ADMIN & 1 == 1,
            programs: OnceLock::new(),
            quality: BTreeMap::new(),
        };
        host.prepare();
        host.quality = host
            .interfaces()
            .into_iter()
            .filter(|(_, device, _)| !device.software && !device.virtual_function)
            .map(|(interface, device, _)| {
                let quality = Quality::look(root, &interface, device.is_mlx5());
                (interface, quality)
            })
            .collect();
        host
    }

    /// Runs the commands that checks will ask for, at once.
    fn prepare(&self) {
        let interfaces = self.interfaces();
        let mut commands = Vec::new();
        for (interface, device, _) in &interfaces {
            if device.software {
                commands.push(vec!["nft", "list", "ruleset"]);
                continue;
            }
            commands.push(vec!["ethtool", "-a", interface]);
            commands.extend(quality::commands(self.root, interface, device.is_mlx5()));
            if let (true, true, Some(address)) =
                (device.is_mlx5(), self.privileged, &device.address)
            {
                commands.push(vec!["mlxconfig", "-d", address, "query"]);
            }
        }
        if !self.devices.is_empty() {
            commands.push(vec!["rdma", "system", "show"]);
        }
        if self.gpus().next().is_some() {
            commands.push(vec!["nvidia-smi", "topo", "-m"]);
        }
        commands.sort_unstable();
        commands.dedup();
        self.root.prepare(&commands);
    }

    /// The network interfaces of RDMA ports, each with the device and port it was first found at.
    pub(super) fn interfaces(&self) -> Vec<(String, &Device, &Port)> {
        let mut found: Vec<(String, &Device, &Port)> = Vec::new();
        for (device, port) in self.ports() {
            for netdev in &port.netdevs {
                if found.iter().all(|(name, _, _)| name != netdev) {
                    found.push((netdev.clone(), device, port));
                }
            }
        }
        found
    }

    /// All Ethernet ports of all devices.
    pub(super) fn ports(&self) -> impl Iterator<Item = (&Device, &Port)> {
        self.devices.iter().flat_map(|device| {
            let ports = device.ports.iter().filter(|port| port.ethernet);
            ports.map(move |port| (device, port))
        })
    }

    /// Devices that are cards.
    pub(super) fn cards(&self) -> impl Iterator<Item = (&Device, &str)> {
        self.devices
            .iter()
            .filter_map(|device| Some((device, device.address.as_deref()?)))
    }

    pub(super) fn gpus(&self) -> impl Iterator<Item = &Function> {
        self.functions.iter().filter(|function| function.is_gpu())
    }

    /// Interfaces whose quality of service is known.
    pub(super) fn quality(&self) -> impl Iterator<Item = (&str, &Quality)> {
        self.quality
            .iter()
            .filter_map(|(interface, it)| Some((interface.as_str(), it.as_ref().ok()?)))
    }

    /// Interfaces whose quality of service could not be read, and why.
    pub(super) fn unknown_quality(&self) -> impl Iterator<Item = (&str, &Unread)> {
        self.quality
            .iter()
            .filter_map(|(interface, it)| Some((interface.as_str(), it.as_ref().err()?)))
    }

    /// A setting of the kernel in /proc/sys.
    pub(super) fn sysctl(&self, path: &str) -> Option<u64> {
        self.root.number(&format!("proc/sys/{path}"))
    }

    /// Whether a process of this name runs.
    pub(super) fn runs(&self, name: &str) -> bool {
        self.programs
            .get_or_init(|| programs(self.root))
            .contains(name)
    }

    /// The CPUs of the NUMA nodes: how many nodes there are.
    pub(super) fn nodes(&self) -> usize {
        let online = self.root.text("sys/devices/system/node/online");
        CpuSet::parse(&online.unwrap_or_default()).len()
    }

    /// The capability of PCI Express of a function; the words say why it is not known.
    pub(super) fn express(&self, address: &str) -> Result<PciExpress, String> {
        let path = format!("{}/config", pci_dir(address));
        let config = self.root.bytes(&path).map_err(|it| it.to_string())?;
        PciExpress::parse(&config).ok_or_else(|| {
            format!(
                "only {} bytes of /{path} can be read: the rest is for root",
                config.len()
            )
        })
    }
}

fn programs(root: &Root) -> BTreeSet<String> {
    let entries = root.names("proc").into_iter();
    let numbers = entries.filter(|entry| entry.bytes().all(|byte| byte.is_ascii_digit()));
    numbers
        .filter_map(|pid| root.text(&format!("proc/{pid}/comm")).ok())
        .collect()
}

fn functions(root: &Root) -> Vec<Function> {
    let dir = "sys/bus/pci/devices";
    root.names(dir)
        .into_iter()
        .filter_map(|address| {
            let number = |file: &str| {
                let text = root.text(&format!("{dir}/{address}/{file}")).ok()?;
                u64::from_str_radix(text.trim_start_matches("0x"), 16).ok()
            };
            let function = Function {
                vendor: number("vendor")?,
                class: number("class")?,
                driver: root.link_name(&format!("{dir}/{address}/driver")),
                address,
            };
            Some(function).filter(|it| it.is_gpu() || it.is_nic())
        })
        .collect()
}
