//! RDMA devices: one interface over NICs, which verbs drive, and over RoCE v2 in software.
//!
//! [`Device`] is shaped after verbs, for the work of a NIC is fixed and software can follow: memory is registered,
//! queue pairs are connected by addresses that the two sides exchange over their session, requests are posted, and
//! completions polled. `docs/decisions/0007-rdma-devices.md` says why it is as it is.

mod address;
mod device;
mod error;
mod open;
mod random;
mod software;
mod transport;
mod verbs;

pub use address::{Address, BadAddress, Mismatch, Software, Terms};
pub use device::{
    Completion, Device, DeviceEvent, Failure, Limits, QueuePair, QueuePairOptions, Region,
};
pub use error::DeviceError;
pub use open::{NoNic, open, open_nic};
pub use ringway_roce::{
    Access, Key, Psn, Qpn,
    cm::{CmError, ConnectionId, Reason},
    rc::{Done, Local, Mtu, PostError, ReceiveRequest, Remote, SendRequest, Source, Status, Work},
    timer::{AckTimeout, RnrTimer},
};
pub use software::{ConnectionChange, ConnectionEvent, SoftwareDevice, SoftwareOptions};
pub use transport::{RdmaSettings, RdmaTransport};
pub use verbs::Verbs;
