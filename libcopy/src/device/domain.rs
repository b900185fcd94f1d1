// SPDX-License-Identifier: MIT OR Apache-2.0

//! [`Device`], and [`Domain`], which an open device becomes when it joins one.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

use super::ioctl::ioctl;
use super::key::DomainKey;
use crate::error::{Error, Result};
use crate::process::Home;
use crate::uapi;

/// The oldest version of the ABI that is spoken here. Version 2 takes the zeros that stand where it
/// had the NUMA node of an engine for node 0, and refuses requests where there is no engine.
const OLDEST_ABI: u32 = 3;

/// An open `/dev/libcopy` that belongs to no domain.
#[derive(Debug)]
pub struct Device {
    file: OwnedFd,
}

impl Device {
    /// Opens the device and checks that its ABI is one that we speak.
    ///
    /// # Errors
    ///
    /// [`Error::Device`] if the device cannot be opened: the module is not loaded, or this user may
    /// not. [`Error::AbiVersion`] if the module is too old.
    pub fn open() -> Result<Self> {
        let mut path = uapi::DEVICE_PATH.as_bytes().to_vec();
        path.push(0);
        // SAFETY: `path` is a NUL-terminated string that outlives the call.
        let fd = unsafe { libc::open(path.as_ptr().cast(), libc::O_RDWR | libc::O_CLOEXEC) };
        if fd < 0 {
            let source = io::Error::last_os_error();
            return Err(Error::Device {
                path: uapi::DEVICE_PATH,
                source,
            });
        }
        // SAFETY: `open` just returned this descriptor and nobody else owns it.
        let file = unsafe { OwnedFd::from_raw_fd(fd) };
        let device = Device { file };
        let module = device.info()?.abi_version;
        // Later versions only add, and what they add has feature bits.
        if module < OLDEST_ABI {
            return Err(Error::AbiVersion {
                module,
                library: OLDEST_ABI,
            });
        }
        Ok(device)
    }

    /// What the module is and can do.
    ///
    /// # Errors
    ///
    /// [`Error::Ioctl`], which a loaded module has no reason for.
    pub fn info(&self) -> Result<uapi::Info> {
        let mut info = uapi::Info::default();
        // SAFETY: GET_INFO only writes the structure.
        unsafe { ioctl(self.file.as_fd(), "GET_INFO", uapi::GET_INFO, &mut info) }?;
        Ok(info)
    }

    /// Makes this file the first member of a new domain.
    ///
    /// # Errors
    ///
    /// [`Error::Ioctl`]: the user has too many domains (`ENOSPC`), or the kernel is out of memory
    /// (`ENOMEM`).
    pub fn create_domain(self) -> Result<Domain> {
        let mut arg = uapi::DomainCreate::default();
        // SAFETY: DOMAIN_CREATE only writes the structure.
        unsafe {
            ioctl(
                self.file.as_fd(),
                "DOMAIN_CREATE",
                uapi::DOMAIN_CREATE,
                &mut arg,
            )
        }?;
        Ok(Domain {
            file: self.file,
            key: DomainKey::from_bytes(arg.key),
            home: Home::here(),
        })
    }

    /// Makes this file a member of the domain with this key.
    ///
    /// # Errors
    ///
    /// [`Error::Ioctl`]: no domain has this key (`ENOENT`), or another user created it (`EPERM`).
    pub fn join(self, key: &DomainKey) -> Result<Domain> {
        let mut arg = uapi::DomainJoin {
            flags: uapi::JOIN_BY_KEY,
            key: key.to_bytes(),
            ..Default::default()
        };
        let file = self.file;
        // SAFETY: DOMAIN_JOIN only reads the structure.
        unsafe { ioctl(file.as_fd(), "DOMAIN_JOIN", uapi::DOMAIN_JOIN, &mut arg) }?;
        Ok(Domain {
            file,
            key: *key,
            home: Home::here(),
        })
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Membership in a domain; dropping it leaves the domain in good order.
///
/// A forked child has inherited the file, and with it the membership; dropping it there leaves
/// nothing.
#[derive(Debug)]
pub struct Domain {
    file: OwnedFd,
    key: DomainKey,
    home: Home,
}

impl Domain {
    /// Opens the device and creates a domain.
    ///
    /// # Errors
    ///
    /// As for [`Device::open`] and [`Device::create_domain`].
    pub fn create() -> Result<Self> {
        Device::open()?.create_domain()
    }

    /// Opens the device and joins a domain by its key.
    ///
    /// # Errors
    ///
    /// As for [`Device::open`] and [`Device::join`].
    pub fn join(key: &DomainKey) -> Result<Self> {
        Device::open()?.join(key)
    }

    /// Whether this is the process that joined, and no forked child of it.
    pub(super) fn is_at_home(&self) -> bool {
        self.home.is_here()
    }

    /// The key of the domain, by which other processes of the user join.
    pub fn key(&self) -> DomainKey {
        self.key
    }
}

impl AsFd for Domain {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        let mut arg = uapi::DomainLeave::default();
        // A forked child would end the membership of its parent.
        if !self.is_at_home() {
            return;
        }
        // Fails if the module is going: nothing is left to undo.
        // SAFETY: DOMAIN_LEAVE only reads the structure.
        let _ = unsafe {
            ioctl(
                self.file.as_fd(),
                "DOMAIN_LEAVE",
                uapi::DOMAIN_LEAVE,
                &mut arg,
            )
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_the_module_the_error_says_so() {
        if let Err(error) = Device::open() {
            assert!(error.to_string().contains(uapi::DEVICE_PATH), "{error}");
        }
    }
}
