//! Which type of service the packets of RDMA carry: DSCP and ECN in one byte.

use super::{Device, Host};
use crate::variable;

/// A type of service that something sets.
pub(in crate::host) struct Mark {
    /// The byte: DSCP << 2 | ECN.
    pub(in crate::host) tos: u8,
    /// The file or variable.
    pub(in crate::host) source: String,
    /// What it said.
    pub(in crate::host) value: String,
}

impl Mark {
    pub(in crate::host) fn dscp(&self) -> u8 {
        self.tos >> 2
    }
}

impl Host<'_> {
    /// What a variable of the application sets.
    pub(in crate::host) fn variable_mark(&self, name: &str) -> Option<Mark> {
        let value = self.environment.get(name)?;
        Some(Mark {
            tos: variable::number(name, value)?.try_into().ok()?,
            source: format!("environment variable {name}"),
            value: value.clone(),
        })
    }

    /// What the driver stamps on packets of all queue pairs that the kernel makes: `Global tclass=106` (NVIDIA's drivers).
    pub(in crate::host) fn global_mark(&self, device: &Device) -> Option<Mark> {
        let source = format!("{}/tc/1/traffic_class", device.dir);
        let value = self.root.text(&source).ok()?;
        let tos = value.lines().find_map(|line| {
            let number = line.trim().rsplit('=').next()?;
            number.trim().parse().ok()
        })?;
        Some(Mark { tos, source, value })
    }

    /// What connections by rdma_cm get unless the application says otherwise (configfs-rdma_cm).
    pub(in crate::host) fn connection_mark(&self, device: &Device) -> Option<Mark> {
        let source = format!(
            "sys/kernel/config/rdma_cm/{}/ports/1/default_roce_tos",
            device.name
        );
        let value = self.root.text(&source).ok()?;
        Some(Mark {
            tos: value.parse().ok()?,
            source,
            value,
        })
    }

    /// What the data of a device's queue pairs carries, as far as it is known: the driver's stamp, else what the application
    /// asks for, else what connections get. `None`: nothing says it.
    pub(in crate::host) fn data_mark(&self, device: &Device) -> Option<Mark> {
        self.global_mark(device)
            .filter(|mark| mark.tos != 0)
            .or_else(|| self.variable_mark("NCCL_IB_TC"))
            .or_else(|| self.variable_mark("UCX_IB_TRAFFIC_CLASS"))
            .or_else(|| self.connection_mark(device))
            .or_else(|| self.unset_mark())
    }

    /// NCCL marks nothing unless it is told to.
    fn unset_mark(&self) -> Option<Mark> {
        let nccl = self.environment.keys().any(|it| it.starts_with("NCCL_"));
        nccl.then(|| Mark {
            tos: 0,
            source: "environment variable NCCL_IB_TC".to_owned(),
            value: "not set, and its default is 0".to_owned(),
        })
    }
}
