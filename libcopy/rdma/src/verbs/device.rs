// SPDX-License-Identifier: MIT OR Apache-2.0

//! Devices, and memory that is registered with them.

use std::ffi::{CStr, c_void};
use std::sync::Arc;

use super::library::{Mlx5, Verbs, check, failed};
use super::sys::{Context, DeviceAttr, GidEntry, Mr, Opaque, PortAttr, constant};
use crate::choice::Abilities;
use crate::cut::Limits;
use crate::error::{Error, Result};
use crate::iov::Iov;

/// Entries of a list in a work request that posts a memory key inline: of `max_inline_data` bytes,
/// an entry takes 16 and a header 4 less (rdma-core, providers/mlx5/qp.c: `mlx5_send_wr_mr_list`).
pub fn inline_entries(max_inline_data: u32) -> usize {
    ((max_inline_data as usize + 4) / 16).max(2)
}

/// Inline data that is asked for where memory keys are used: enough for 32 entries.
pub(crate) const INLINE_DATA: u32 = 508;

/// One address of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gid {
    /// Its index in the port's table.
    pub index: u8,
    /// The address, in network byte order.
    pub bytes: [u8; 16],
}

/// A device with an active port.
pub struct Device {
    verbs: &'static Verbs,
    context: *mut Context,
    pd: Opaque,
    name: String,
    attr: DeviceAttr,
    port: PortAttr,
    gid: Option<Gid>,
    mlx5: Option<&'static Mlx5>,
}

// SAFETY: contexts and protection domains may be used by any thread (ibv_open_device(3): libibverbs
// is thread-safe).
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = f.debug_struct("Device");
        out.field("name", &self.name).field("gid", &self.gid);
        out.finish_non_exhaustive()
    }
}

/// The number of the port that is used.
pub(crate) const PORT: u8 = 1;

/// The names of the devices of this machine, without looking whether they can be used.
///
/// # Errors
///
/// [`Error::Library`] without libibverbs, [`Error::Verbs`] if the devices cannot be listed. No
/// device is no error.
pub fn device_names() -> Result<Vec<String>> {
    let verbs = Verbs::load()?;
    let list = List::new(verbs)?;
    Ok(list.iter().map(|(name, _)| name).collect())
}

/// `ibv_get_device_list`.
struct List {
    verbs: &'static Verbs,
    list: *mut Opaque,
    count: usize,
}

impl List {
    fn new(verbs: &'static Verbs) -> Result<List> {
        let mut count = 0;
        // SAFETY: `count` is written.
        let list = unsafe { (verbs.get_device_list)(&raw mut count) };
        if list.is_null() {
            let error = failed("ibv_get_device_list");
            // A kernel without RDMA has no devices.
            let is_absent = matches!(error, Error::Verbs { errno, .. } if errno == libc::ENOSYS);
            if !is_absent {
                return Err(error);
            }
            count = 0;
        }
        Ok(List {
            verbs,
            list,
            count: usize::try_from(count).unwrap_or(0),
        })
    }

    fn iter(&self) -> impl Iterator<Item = (String, Opaque)> {
        (0..self.count).map(|index| {
            // SAFETY: the list has `count` devices.
            let device = unsafe { *self.list.add(index) };
            // SAFETY: the name is a string within the device.
            let name = unsafe { CStr::from_ptr((self.verbs.get_device_name)(device)) };
            (name.to_string_lossy().into_owned(), device)
        })
    }
}

impl Drop for List {
    fn drop(&mut self) {
        if !self.list.is_null() {
            // SAFETY: made by ibv_get_device_list; an open device keeps what it needs.
            unsafe { (self.verbs.free_device_list)(self.list) };
        }
    }
}

impl Device {
    /// Opens the devices of both ends of a connection by their names, which may be the same.
    ///
    /// # Errors
    ///
    /// As [`Device::open`].
    pub fn open_both(first: &str, second: &str) -> Result<[Arc<Device>; 2]> {
        let device = Device::open(first)?;
        let other = if first == second {
            device.clone()
        } else {
            Device::open(second)?
        };
        Ok([device, other])
    }

    /// How many devices there are, and the first `most` of them that can be used.
    ///
    /// # Errors
    ///
    /// As [`device_names`].
    pub fn usable(most: usize) -> Result<(usize, Vec<Arc<Device>>)> {
        let names = device_names()?;
        let usable = names.iter().filter_map(|name| Device::open(name).ok());
        Ok((names.len(), usable.take(most).collect()))
    }

    /// Opens a device by its name.
    ///
    /// # Errors
    ///
    /// [`Error::NoDevice`] if there is none of the name, or its port is not active; a library that
    /// cannot be loaded.
    pub fn open(name: &str) -> Result<Arc<Device>> {
        let verbs = Verbs::load()?;
        let list = List::new(verbs)?;
        let Some((name, handle)) = list.iter().find(|(its, _)| its == name) else {
            let names: Vec<String> = list.iter().map(|(name, _)| name).collect();
            let known = if names.is_empty() {
                "there are none".to_owned()
            } else {
                format!("there are {}", names.join(", "))
            };
            return Err(Error::NoDevice(format!(
                "there is no RDMA device '{name}'; {known}"
            )));
        };
        // SAFETY: the device is of the list, which still exists.
        let context = unsafe { (verbs.open_device)(handle) };
        if context.is_null() {
            return Err(failed("ibv_open_device"));
        }
        // SAFETY: mlx5dv_is_supported only looks at the device's driver.
        let mlx5 = Mlx5::load()
            .ok()
            .filter(|mlx5| unsafe { (mlx5.is_supported)(handle) });
        // SAFETY: the context is open.
        let pd = unsafe { (verbs.alloc_pd)(context) };
        if pd.is_null() {
            let error = failed("ibv_alloc_pd");
            // SAFETY: nothing of the context exists.
            unsafe { (verbs.close_device)(context) };
            return Err(error);
        }
        // SAFETY: integers, for which zero is a value.
        let attr = unsafe { std::mem::zeroed() };
        let mut device = Device {
            verbs,
            context,
            pd,
            name,
            attr,
            port: PortAttr::default(),
            gid: None,
            mlx5,
        };
        device.query()?;
        Ok(Arc::new(device))
    }

    fn query(&mut self) -> Result<()> {
        // SAFETY: the context is open, and both structures are as long as the header's
        // (tests/headers.rs).
        let code = unsafe { (self.verbs.query_device)(self.context, &raw mut self.attr) };
        check("ibv_query_device", code)?;
        // SAFETY: as above.
        let code = unsafe { (self.verbs.query_port)(self.context, PORT, &raw mut self.port) };
        check("ibv_query_port", code)?;
        if self.port.state != constant::PORT_ACTIVE {
            return Err(Error::NoDevice(format!(
                "port {PORT} of {} is not active (state {})",
                self.name, self.port.state
            )));
        }
        self.gid = self.find_gid();
        if self.is_ethernet() && self.gid.is_none() {
            return Err(Error::NoDevice(format!(
                "port {PORT} of {} has no RoCE v2 address: its network interface needs an IP address",
                self.name
            )));
        }
        Ok(())
    }

    /// The address to use: on Ethernet a RoCE v2 one, of IPv4 if there is one, else not link-local
    /// if there is one.
    fn find_gid(&self) -> Option<Gid> {
        let mut best = None;
        for index in 0..u8::try_from(self.port.gid_tbl_len).unwrap_or(u8::MAX) {
            let mut entry = GidEntry::default();
            // SAFETY: the entry is written, at most as many bytes as it has.
            let code = unsafe {
                (self.verbs.query_gid_ex)(
                    self.context,
                    u32::from(PORT),
                    u32::from(index),
                    &raw mut entry,
                    0,
                    size_of::<GidEntry>(),
                )
            };
            let is_wanted = !self.is_ethernet() || entry.gid_type == constant::GID_TYPE_ROCE_V2;
            if code != 0 || !is_wanted || entry.gid == [0; 2] {
                continue;
            }
            let mut bytes = [0; 16];
            for (to, word) in bytes.chunks_exact_mut(8).zip(entry.gid) {
                to.copy_from_slice(&word.to_ne_bytes());
            }
            let rank = match bytes {
                [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, ..] => 2,
                [0xfe, 0x80, ..] => 0,
                _ => 1,
            };
            if best.is_none_or(|(its, _)| rank > its) {
                best = Some((rank, Gid { index, bytes }));
            }
        }
        best.map(|(_, gid)| gid)
    }

    /// Its name, for example `mlx5_0`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The address of its port; none on InfiniBand without a subnet prefix.
    pub fn gid(&self) -> Option<Gid> {
        self.gid
    }

    /// The local identifier of its port; 0 on Ethernet.
    pub fn lid(&self) -> u16 {
        self.port.lid
    }

    /// `enum ibv_mtu` of its port.
    pub fn mtu(&self) -> u32 {
        self.port.active_mtu
    }

    /// Whether its port is one of Ethernet (RoCE).
    pub fn is_ethernet(&self) -> bool {
        self.port.link_layer == constant::LINK_LAYER_ETHERNET
    }

    /// Bytes that one work request can move.
    pub fn max_message(&self) -> u64 {
        u64::from(self.port.max_msg_sz)
    }

    /// Entries of a gather or scatter list.
    pub fn max_sge(&self) -> usize {
        usize::try_from(self.attr.max_sge).unwrap_or(0)
    }

    /// Work requests of a queue.
    pub(crate) fn max_work_requests(&self) -> u32 {
        u32::try_from(self.attr.max_qp_wr).unwrap_or(1)
    }

    /// Whether indirect memory keys can be made (an mlx5 device, or what stands in for one).
    pub fn has_memory_keys(&self) -> bool {
        self.mlx5.is_some()
    }

    /// Whether it is emulated by the kernel, as soft RoCE (`RXE_VENDOR_ID`) and soft iWARP
    /// (`SIW_VENDOR_ID`) are: its times say nothing of a card (drivers/infiniband/sw).
    pub fn is_emulated(&self) -> bool {
        matches!(self.attr.vendor_id, 0xff_ffff | 0x62_6d74)
    }

    /// What it can do.
    pub fn abilities(&self) -> Abilities {
        let limits = |max_iovs| Limits {
            max_iovs,
            max_bytes: self.max_message().max(1),
        };
        Abilities {
            sge: (self.max_sge() >= 2).then(|| limits(self.max_sge().min(32))),
            umr: self.mlx5.map(|_| limits(inline_entries(INLINE_DATA))),
        }
    }

    pub(crate) fn verbs(&self) -> &'static Verbs {
        self.verbs
    }

    pub(crate) fn mlx5(&self) -> Option<&'static Mlx5> {
        self.mlx5
    }

    pub(crate) fn context(&self) -> *mut Context {
        self.context
    }

    pub(crate) fn pd(&self) -> Opaque {
        self.pd
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: all that was made of them has a reference to this and is gone.
        unsafe {
            (self.verbs.dealloc_pd)(self.pd);
            (self.verbs.close_device)(self.context);
        }
    }
}

/// Registered memory: its pages stay where they are until this is dropped.
pub struct Region {
    device: Arc<Device>,
    mr: *mut Mr,
}

// SAFETY: as for `Device`.
unsafe impl Send for Region {}
// SAFETY: as for `Device`.
unsafe impl Sync for Region {}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Region").field(&self.range()).finish()
    }
}

impl Region {
    /// Registers memory; for peers to write into if `is_target`.
    ///
    /// # Errors
    ///
    /// [`Error::Register`]: memory that is not mapped, not writable, or more than may be locked.
    ///
    /// # Safety
    ///
    /// As for [`Card::register`](crate::card::Card::register).
    pub unsafe fn new(device: &Arc<Device>, range: Iov, is_target: bool) -> Result<Region> {
        let access = if is_target {
            constant::ACCESS_LOCAL_WRITE | constant::ACCESS_REMOTE_WRITE
        } else {
            0
        };
        // SAFETY: registering pins pages and changes no byte; what peers write the caller allows.
        let mr = unsafe {
            (device.verbs.reg_mr)(
                device.pd,
                range.addr as *mut c_void,
                range.len as usize,
                access as i32,
            )
        };
        if mr.is_null() {
            let errno = std::io::Error::last_os_error().raw_os_error();
            return Err(Error::Register {
                addr: range.addr,
                len: range.len,
                errno: errno.unwrap_or(0),
            });
        }
        Ok(Region {
            device: device.clone(),
            mr,
        })
    }

    /// The memory.
    pub fn range(&self) -> Iov {
        // SAFETY: the region exists.
        let mr = unsafe { &*self.mr };
        Iov {
            addr: mr.addr as u64,
            len: mr.length as u64,
        }
    }

    /// Names it in work requests of this process.
    pub fn lkey(&self) -> u32 {
        // SAFETY: the region exists.
        unsafe { (*self.mr).lkey }
    }

    /// Names it in work requests of peers.
    pub fn rkey(&self) -> u32 {
        // SAFETY: the region exists.
        unsafe { (*self.mr).rkey }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: made by ibv_reg_mr. Requests that use it fail from now on, they do no harm.
        unsafe { (self.device.verbs.dereg_mr)(self.mr) };
    }
}

/// The regions of a list of pieces.
#[derive(Debug)]
pub struct Regions {
    regions: Vec<Region>,
}

/// Memory between two pieces that is registered with them: less than what a region of its own
/// costs.
const MAX_GAP: u64 = 1 << 20;

impl Regions {
    /// Registers the memory of pieces: with the gaps between them where that is possible, else page
    /// by page.
    ///
    /// # Errors
    ///
    /// As for [`Region::new`].
    ///
    /// # Safety
    ///
    /// As for [`Card::register`](crate::card::Card::register), of the gaps between the pieces as
    /// well: peers that are given the number write to pieces alone.
    pub unsafe fn new(device: &Arc<Device>, iovs: &[Iov], is_target: bool) -> Result<Regions> {
        let register = |max_gap| -> Result<Vec<Region>> {
            let ranges = crate::iov::regions(iovs, max_gap)?;
            let most = ranges.len() as u64;
            let regions = ranges.into_iter();
            // SAFETY: the caller keeps the promises.
            let regions = regions.map(|range| unsafe { Region::new(device, range, is_target) });
            libcopy_datatype::room::collect(regions, most)
        };
        // Something in a gap may be unmapped or read-only.
        let regions = register(MAX_GAP).or_else(|_| register(0))?;
        Ok(Regions { regions })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.regions.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// The number by which peers write, of the only region.
    ///
    /// # Errors
    ///
    /// [`Error::Register`] with `EINVAL` if there is more than one, or none.
    pub fn rkey(&self) -> Result<u32> {
        match &self.regions[..] {
            [only] => Ok(only.rkey()),
            other => Err(Error::Register {
                addr: other.first().map_or(0, |region| region.range().addr),
                len: other.iter().map(|region| region.range().len).sum(),
                errno: libc::EINVAL,
            }),
        }
    }

    /// The local key of the region that a piece is in.
    pub fn lkey(&self, iov: &Iov) -> Option<u32> {
        let index = self
            .regions
            .partition_point(|region| region.range().addr <= iov.addr);
        let region = self.regions.get(index.checked_sub(1)?)?;
        (iov.end() <= region.range().end()).then(|| region.lkey())
    }
}
