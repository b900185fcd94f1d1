// SPDX-License-Identifier: GPL-2.0

//! [`MiscDevice`]: a device with a number of its own, and what its files do
//! (`include/linux/miscdevice.h`).
//!
//! The kernel crate's trait of this name has no owner for its operations, which would let the
//! module be unloaded under an open file, and no `get_unmapped_area`.

use kernel::bindings;
use kernel::ffi::{c_int, c_long, c_uint, c_ulong};
use kernel::fs::File;
use kernel::mm::virt::VmaNew;
use kernel::prelude::*;
use kernel::seq_file::SeqFile;
use kernel::types::Opaque;

/// What an open file of a device stands for.
pub(crate) trait MiscDevice: Send + Sync + Sized + 'static {
    /// Of the file in `/dev`.
    const NAME: &'static CStr;

    /// A file is opened.
    fn open() -> Result<Pin<KBox<Self>>>;

    /// It is closed for good.
    fn release(&self);

    /// An ioctl. There is no `compat_ioctl`: 32-bit callers get `ENOTTY`.
    fn ioctl(&self, file: &File, cmd: u32, arg: usize) -> Result;

    /// A VMA is being set up, from this page of the file's offsets on.
    fn mmap(&self, vma: &VmaNew, page_offset: usize) -> Result;

    /// What `/proc/<pid>/fdinfo/<fd>` shows.
    fn show_fdinfo(&self, seq: &SeqFile);
}

/// The registered device.
///
/// # Invariants
///
/// `misc` is registered from construction to drop and points to `operations`.
#[pin_data(PinnedDrop)]
pub(crate) struct Registration {
    operations: KBox<bindings::file_operations>,
    #[pin]
    misc: Opaque<bindings::miscdevice>,
}

// SAFETY: The device may be deregistered from any thread.
unsafe impl Send for Registration {}
// SAFETY: Nothing is touched through a shared reference.
unsafe impl Sync for Registration {}

impl Registration {
    /// Registers the device; its open files hold the module.
    pub(crate) fn new<T: MiscDevice>(
        module: &'static ThisModule,
    ) -> Result<impl PinInit<Self, Error>> {
        let operations = KBox::new(
            bindings::file_operations {
                owner: module.as_ptr(),
                open: Some(open::<T>),
                release: Some(release::<T>),
                unlocked_ioctl: Some(ioctl::<T>),
                mmap: Some(mmap::<T>),
                // Where to map: at an address that is as far past a huge-page boundary as the
                // offset says. A kernel without huge pages leaves that to its memory manager.
                #[cfg(CONFIG_TRANSPARENT_HUGEPAGE)]
                get_unmapped_area: Some(bindings::thp_get_unmapped_area),
                show_fdinfo: Some(show_fdinfo::<T>),
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
                    name: T::NAME.as_char_ptr(),
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
impl PinnedDrop for Registration {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: Registered by the type invariant.
        unsafe { bindings::misc_deregister(self.misc.get()) };
    }
}

fn errno(result: Result) -> c_int {
    result.map_or_else(Error::to_errno, |()| 0)
}

/// # Safety
///
/// `file` is an open file of the device and outlives the result.
unsafe fn of<'a, T>(file: *mut bindings::file) -> &'a T {
    // SAFETY: `open` stored the pointer and `release` takes it back.
    unsafe { &*(*file).private_data.cast::<T>() }
}

/// # Safety
///
/// The VFS calls with a valid inode and a file that is being opened.
unsafe extern "C" fn open<T: MiscDevice>(
    inode: *mut bindings::inode,
    file: *mut bindings::file,
) -> c_int {
    // SAFETY: Called with a valid inode and file.
    let ret = unsafe { bindings::generic_file_open(inode, file) };
    if ret != 0 {
        return ret;
    }
    errno(T::open().map(|new| {
        // SAFETY: The box is not moved out of, only turned into a pointer and back.
        let new = KBox::into_raw(unsafe { Pin::into_inner_unchecked(new) });
        // SAFETY: The file is being opened, its private data is ours to set.
        unsafe { (*file).private_data = new.cast() };
    }))
}

/// # Safety
///
/// The VFS calls with an open file of the device, for the last time.
unsafe extern "C" fn release<T: MiscDevice>(
    _: *mut bindings::inode,
    file: *mut bindings::file,
) -> c_int {
    // SAFETY: This is the last call on the file; the pointer came from `open`.
    unsafe { KBox::from_raw((*file).private_data.cast::<T>()) }.release();
    0
}

/// # Safety
///
/// The VFS calls with an open file of the device.
unsafe extern "C" fn ioctl<T: MiscDevice>(
    file: *mut bindings::file,
    cmd: c_uint,
    arg: c_ulong,
) -> c_long {
    // SAFETY: Called on an open file of the device.
    let (this, file) = unsafe { (of::<T>(file), File::from_raw_file(file)) };
    errno(this.ioctl(file, cmd, arg)) as c_long
}

/// # Safety
///
/// The VFS calls with an open file of the device and a VMA under construction.
unsafe extern "C" fn mmap<T: MiscDevice>(
    file: *mut bindings::file,
    vma: *mut bindings::vm_area_struct,
) -> c_int {
    // SAFETY: Called on an open file of the device, for a VMA that is being set up.
    let (this, page_offset) = unsafe { (of::<T>(file), (*vma).vm_pgoff) };
    // SAFETY: As above.
    errno(this.mmap(unsafe { VmaNew::from_raw(vma) }, page_offset))
}

/// # Safety
///
/// The VFS calls with an open file of the device and a valid sequence.
unsafe extern "C" fn show_fdinfo<T: MiscDevice>(
    seq: *mut bindings::seq_file,
    file: *mut bindings::file,
) {
    // SAFETY: Called on an open file of the device with a valid sequence.
    unsafe { of::<T>(file).show_fdinfo(SeqFile::from_raw(seq)) }
}
