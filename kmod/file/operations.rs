// SPDX-License-Identifier: GPL-2.0

//! The device and its file operations.
//!
//! The kernel crate's `MiscDevice` has no owner for its operations, which would let the module be
//! unloaded under an open file, so the table of operations is built here. It has no `poll`: a
//! completion must not walk a list of waiters as long as a user likes, with interrupts off. Without
//! it, `epoll_ctl(2)` refuses the file.

use crate::attach::attachment;
use crate::attach::vma;
use crate::file::handle::Handle;
use crate::file::ioctl;
use kernel::bindings;
use kernel::ffi::{c_int, c_long, c_uint, c_ulong};
use kernel::fs::file::flags;
use kernel::fs::File;
use kernel::mm::virt::VmaNew;
use kernel::prelude::*;
use kernel::seq_file::SeqFile;
use kernel::types::Opaque;

/// The registered device.
///
/// # Invariants
///
/// `misc` is registered from construction to drop and points to `operations`.
#[pin_data(PinnedDrop)]
pub(crate) struct Device {
    operations: KBox<bindings::file_operations>,
    #[pin]
    misc: Opaque<bindings::miscdevice>,
}

// SAFETY: The device may be deregistered from any thread.
unsafe impl Send for Device {}
// SAFETY: Nothing is touched through a shared reference.
unsafe impl Sync for Device {}

impl Device {
    /// Registers `/dev/libcopy`.
    pub(crate) fn register(module: &'static ThisModule) -> Result<impl PinInit<Self, Error>> {
        let operations = KBox::new(
            bindings::file_operations {
                owner: module.as_ptr(),
                open: Some(fop_open),
                release: Some(fop_release),
                unlocked_ioctl: Some(fop_ioctl),
                // No compat_ioctl: the ABI's pieces are 64-bit, and 32-bit callers get ENOTTY.
                mmap: Some(fop_mmap),
                #[cfg(CONFIG_TRANSPARENT_HUGEPAGE)]
                get_unmapped_area: Some(vma::get_unmapped_area),
                show_fdinfo: Some(fop_show_fdinfo),
                ..pin_init::zeroed()
            },
            GFP_KERNEL_ACCOUNT,
        )?;
        let fops: *const bindings::file_operations = &*operations;
        Ok(try_pin_init!(Self {
            operations,
            // INVARIANT: Registered if construction succeeds.
            misc <- Opaque::try_ffi_init(move |slot: *mut bindings::miscdevice| {
                let device = bindings::miscdevice {
                    minor: bindings::MISC_DYNAMIC_MINOR as c_int,
                    name: c"libcopy".as_char_ptr(),
                    fops,
                    ..pin_init::zeroed()
                };
                // SAFETY: The slot is ours to initialise and stays where it is.
                unsafe { slot.write(device) };
                // SAFETY: The device was just filled in; its operations live as long as it.
                kernel::error::to_result(unsafe { bindings::misc_register(slot) })
            }),
        }? Error))
    }
}

#[pinned_drop]
impl PinnedDrop for Device {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: Registered by the type invariant.
        unsafe { bindings::misc_deregister(self.misc.get()) };
    }
}

/// # Safety
///
/// `file` is an open file of ours and outlives the result.
unsafe fn handle_of<'a>(file: *mut bindings::file) -> &'a Handle {
    // SAFETY: `fop_open` stored the pointer and `fop_release` takes it back.
    unsafe { &*(*file).private_data.cast::<Handle>() }
}

/// # Safety
///
/// The VFS calls with a valid inode and a file that is being opened.
unsafe extern "C" fn fop_open(inode: *mut bindings::inode, file: *mut bindings::file) -> c_int {
    // SAFETY: Called with a valid inode and file.
    let ret = unsafe { bindings::generic_file_open(inode, file) };
    if ret != 0 {
        return ret;
    }
    match Handle::new() {
        Ok(new) => {
            // SAFETY: The box is not moved out of, only turned into a pointer and back.
            let new = KBox::into_raw(unsafe { Pin::into_inner_unchecked(new) });
            // SAFETY: The file is being opened, its private data is ours to set.
            unsafe { (*file).private_data = new.cast() };
            0
        }
        Err(error) => error.to_errno(),
    }
}

/// # Safety
///
/// The VFS calls with an open file of ours, for the last time.
unsafe extern "C" fn fop_release(_: *mut bindings::inode, file: *mut bindings::file) -> c_int {
    // SAFETY: This is the last call on the file; the pointer came from `fop_open`.
    let handle = unsafe { KBox::from_raw((*file).private_data.cast::<Handle>()) };
    handle.release();
    0
}

/// # Safety
///
/// The VFS calls with an open file of ours.
unsafe extern "C" fn fop_ioctl(file: *mut bindings::file, cmd: c_uint, arg: c_ulong) -> c_long {
    // SAFETY: Called on an open file of ours.
    let (handle, opened) = unsafe { (handle_of(file), File::from_raw_file(file)) };
    let may_change = opened.flags() & flags::O_ACCMODE == flags::O_RDWR;
    match ioctl::ioctl(handle, may_change, cmd, arg) {
        Ok(()) => 0,
        Err(error) => error.to_errno() as c_long,
    }
}

/// # Safety
///
/// The VFS calls with an open file of ours and a VMA under construction.
unsafe extern "C" fn fop_mmap(
    file: *mut bindings::file,
    vma: *mut bindings::vm_area_struct,
) -> c_int {
    // SAFETY: Called on an open file of ours.
    let handle = unsafe { handle_of(file) };
    // SAFETY: The VMA is being set up.
    let (vma, page_offset) = unsafe { (VmaNew::from_raw(vma), (*vma).vm_pgoff) };
    let (id, first) = attachment::decode(page_offset);
    let map = || {
        // No region has the id zero; its share of the offsets is the status table's.
        if page_offset == 0 {
            return handle.shared()?.requests.table()?.map(vma);
        }
        let room = attachment::Room::new()?;
        let region = handle.shared()?.regions.find(id)?;
        vma::map(room, region, first, vma)
    };
    match map() {
        Ok(()) => 0,
        Err(error) => error.to_errno(),
    }
}

/// # Safety
///
/// The VFS calls with an open file of ours and a valid sequence.
unsafe extern "C" fn fop_show_fdinfo(seq: *mut bindings::seq_file, file: *mut bindings::file) {
    // SAFETY: Called on an open file of ours with a valid sequence.
    unsafe { handle_of(file).show(SeqFile::from_raw(seq)) }
}
