//! The devices of this machine.

use std::{ffi::CStr, ptr::NonNull};

use crate::{error::VerbsError, ffi, library::Library};

/// A device that can be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceName {
    /// The name, as `ibv_devices` shows it.
    pub name: String,
    /// The globally unique identifier.
    pub guid: u64,
}

/// The list of devices as the library has it, given back when it is dropped.
pub(crate) struct List<'a> {
    library: &'a Library,
    devices: NonNull<*mut ffi::ibv_device>,
    count: usize,
}

impl<'a> List<'a> {
    pub(crate) fn get(library: &'a Library) -> Result<Self, VerbsError> {
        let mut count = 0;
        // SAFETY: `count` is a place for an integer.
        let devices = unsafe { (library.verbs.ibv_get_device_list)(&raw mut count) };
        let Some(devices) = NonNull::new(devices) else {
            let error = VerbsError::last("ibv_get_device_list", "this machine");
            // A kernel without RDMA: as good as one without devices.
            if error.errno() == Some(libc::ENOSYS) {
                return Ok(Self {
                    library,
                    devices: NonNull::dangling(),
                    count: 0,
                });
            }
            return Err(error);
        };
        Ok(Self {
            library,
            devices,
            count: usize::try_from(count).unwrap_or(0),
        })
    }

    pub(crate) fn each(&self) -> impl Iterator<Item = *mut ffi::ibv_device> {
        let devices: &[*mut ffi::ibv_device] = match self.count {
            0 => &[],
            // SAFETY: the library's array has `count` entries and lives until the list is freed, which `drop` does.
            count => unsafe { std::slice::from_raw_parts(self.devices.as_ptr(), count) },
        };
        devices.iter().copied()
    }

    pub(crate) fn name(&self, device: *mut ffi::ibv_device) -> String {
        // SAFETY: the device is of the list, which is not freed.
        let name = unsafe { (self.library.verbs.ibv_get_device_name)(device) };
        // SAFETY: the library returns a C string within the device.
        unsafe { CStr::from_ptr(name) }
            .to_string_lossy()
            .into_owned()
    }
}

impl Drop for List<'_> {
    fn drop(&mut self) {
        if self.devices != NonNull::dangling() {
            // SAFETY: the list is from the library and is freed once.
            unsafe { (self.library.verbs.ibv_free_device_list)(self.devices.as_ptr()) }
        }
    }
}

/// The devices of this machine that the library has a driver for, in the kernel's order.
///
/// # Errors
/// If the kernel's list cannot be read. A kernel without RDMA has no devices.
pub fn devices(library: &Library) -> Result<Vec<DeviceName>, VerbsError> {
    let list = List::get(library)?;
    let named = list.each().map(|device| DeviceName {
        name: list.name(device),
        // SAFETY: the device is of the list, which is not freed.
        guid: u64::from_be(unsafe { (library.verbs.ibv_get_device_guid)(device) }),
    });
    Ok(named.collect())
}
