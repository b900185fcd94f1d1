// SPDX-License-Identifier: GPL-2.0

//! Safe faces of `dma.c`, and [`DmaMap`]: pinned memory as one DMA device sees it.

use crate::mapping::Mapping;
use crate::pin::PinnedPages;
use core::ptr::NonNull;
use kernel::bindings;
use kernel::ffi::{c_int, c_void};
use kernel::prelude::*;
use kernel::rbtree::RBTree;
use kernel::sync::atomic::{Acquire, Atomic, Full, Relaxed};
use kernel::sync::{new_mutex, Arc, Mutex};

/// A dmaengine channel; only C looks inside.
#[repr(C)]
pub(crate) struct DmaChan {
    _opaque: [u8; 0],
}

/// What a driver says about the end of a descriptor; only C looks inside.
#[repr(C)]
pub(crate) struct DmaResult {
    _opaque: [u8; 0],
}

/// `struct libcopy_dma_info`: one channel that could be had.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Info {
    pub(crate) engine: u64,
    pub(crate) channel: u64,
    pub(crate) max_transfer: u64,
    pub(crate) alignment: u32,
    pub(crate) node: i32,
    pub(crate) driver: [u8; 24],
    pub(crate) device: [u8; 32],
}

/// Called when a descriptor has ended.
pub(crate) type Done = unsafe extern "C" fn(*mut c_void, *const DmaResult);

// The kernel's own bindings contain types without fields, which this lint dislikes.
#[allow(improper_ctypes)]
mod raw {
    use super::{DmaChan, DmaResult, Done, Info};
    use kernel::bindings;
    use kernel::ffi::{c_char, c_int, c_uint, c_ulong, c_void};

    extern "C" {
        pub(super) fn libcopy_param_engine() -> c_int;
        pub(super) fn libcopy_param_depth() -> c_uint;
        pub(super) fn libcopy_param_deadline_ms() -> c_uint;
        pub(super) fn libcopy_param_fragment_pages() -> c_uint;
        pub(super) fn libcopy_param_max_user_requests() -> c_uint;
        pub(super) fn libcopy_dma_request(
            accept: unsafe extern "C" fn(*mut c_void, *const Info) -> bool,
            data: *mut c_void,
        ) -> *mut DmaChan;
        pub(super) fn libcopy_dma_release(chan: *mut DmaChan);
        pub(super) fn libcopy_dma_terminate(chan: *mut DmaChan) -> c_int;
        pub(super) fn libcopy_dma_device(chan: *mut DmaChan) -> *mut bindings::device;
        pub(super) fn libcopy_dma_unordered(chan: *mut DmaChan) -> bool;
        pub(super) fn libcopy_dma_part_of(
            dev: *mut bindings::device,
            whole: *mut bindings::device,
        ) -> bool;
        pub(super) fn libcopy_dma_submit(
            chan: *mut DmaChan,
            to: u64,
            from: u64,
            len: usize,
            interrupt: bool,
            done: Done,
            param: *mut c_void,
        ) -> c_int;
        pub(super) fn libcopy_dma_issue(chan: *mut DmaChan);
        pub(super) fn libcopy_dma_succeeded(result: *const DmaResult) -> bool;
        pub(super) fn libcopy_dma_callback_sleeps() -> bool;
        pub(super) fn libcopy_dma_max_mapping(dev: *mut bindings::device) -> usize;
        pub(super) fn libcopy_dma_map(
            dev: *mut bindings::device,
            addr: *mut c_void,
            len: usize,
            write: bool,
            out: *mut u64,
        ) -> bool;
        pub(super) fn libcopy_dma_unmap(
            dev: *mut bindings::device,
            addr: u64,
            len: usize,
            write: bool,
        );
        pub(super) fn libcopy_dma_sync_for_device(
            dev: *mut bindings::device,
            addr: u64,
            len: usize,
            write: bool,
        );
        pub(super) fn libcopy_dma_sync_for_cpu(
            dev: *mut bindings::device,
            addr: u64,
            len: usize,
            write: bool,
        );
        pub(super) fn libcopy_dma_watch_start(
            leaves: unsafe extern "C" fn(*mut bindings::device, bool),
        ) -> c_int;
        pub(super) fn libcopy_dma_watch(dev: *mut bindings::device) -> c_int;
        pub(super) fn libcopy_dma_watch_stop();
        pub(super) fn libcopy_thread_run(
            body: unsafe extern "C" fn(*mut c_void) -> c_int,
            data: *mut c_void,
            node: c_int,
            name: *const c_char,
        ) -> *mut bindings::task_struct;
        pub(super) fn libcopy_thread_stop(task: *mut bindings::task_struct);
        pub(super) fn libcopy_next_node(after: c_int) -> c_int;
        pub(super) fn libcopy_current_node() -> c_int;
        pub(super) fn libcopy_lock_irqsave(lock: *mut bindings::spinlock_t) -> c_ulong;
        pub(super) fn libcopy_unlock_irqrestore(lock: *mut bindings::spinlock_t, flags: c_ulong);
        pub(super) fn libcopy_crc32c(crc: u32, data: *const c_void, len: usize) -> u32;
    }
}

// `dma_addr_t` is passed as `u64`.
const _: () = assert!(core::mem::size_of::<bindings::dma_addr_t>() == 8);

/// Who is to work on requests: the parameter `engine`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Choice {
    /// DMA engines.
    Auto,
    /// Kernel threads.
    Kthread,
    /// Nobody.
    Off,
}

/// The parameter `engine`.
pub(crate) fn choice() -> Choice {
    // SAFETY: No preconditions.
    match unsafe { raw::libcopy_param_engine() } {
        0 => Choice::Auto,
        1 => Choice::Kthread,
        _ => Choice::Off,
    }
}

/// The parameter `engine_depth`, as given.
pub(crate) fn param_depth() -> u32 {
    // SAFETY: No preconditions.
    unsafe { raw::libcopy_param_depth() }
}

/// The parameter `engine_deadline_ms`, as given.
pub(crate) fn param_deadline_ms() -> u32 {
    // SAFETY: No preconditions.
    unsafe { raw::libcopy_param_deadline_ms() }
}

/// The parameter `fragment_pages`, as given.
pub(crate) fn param_fragment_pages() -> u32 {
    // SAFETY: No preconditions.
    unsafe { raw::libcopy_param_fragment_pages() }
}

/// The parameter `max_user_requests`.
pub(crate) fn param_max_user_requests() -> u32 {
    // SAFETY: No preconditions.
    unsafe { raw::libcopy_param_max_user_requests() }
}

/// An acquired dmaengine channel, which nobody else uses; dropping releases it, which stops the
/// hardware: after that no descriptor is worked on and no callback comes.
///
/// # Invariants
///
/// The pointer is an exclusively acquired channel.
pub(crate) struct Hardware(NonNull<DmaChan>);

// SAFETY: dmaengine's functions may be called from any thread.
unsafe impl Send for Hardware {}
// SAFETY: As above; drivers have their own locks.
unsafe impl Sync for Hardware {}

impl Hardware {
    /// Offers every free channel to `accept` and acquires the first one that it accepts. `accept`
    /// must not sleep long, nor use dmaengine: its list of devices is locked.
    pub(crate) fn request<F: FnMut(&Info) -> bool>(mut accept: F) -> Option<Self> {
        unsafe extern "C" fn call<F: FnMut(&Info) -> bool>(
            data: *mut c_void,
            info: *const Info,
        ) -> bool {
            // SAFETY: `data` is the closure below, `info` is valid for the call.
            unsafe { (*data.cast::<F>())(&*info) }
        }
        // SAFETY: `call` is given what it expects, and is not called any more after this returns.
        let chan =
            unsafe { raw::libcopy_dma_request(call::<F>, core::ptr::from_mut(&mut accept).cast()) };
        // INVARIANT: The channel was acquired for us.
        NonNull::new(chan).map(Self)
    }

    /// The raw channel.
    pub(crate) fn as_ptr(&self) -> *mut DmaChan {
        self.0.as_ptr()
    }

    /// Stops the channel and waits for its callbacks; fails if the driver cannot.
    pub(crate) fn terminate(&self) -> Result {
        // SAFETY: Valid by the invariant; all callers may sleep.
        kernel::error::to_result(unsafe { raw::libcopy_dma_terminate(self.as_ptr()) })
    }

    /// The device that does the transfers.
    pub(crate) fn device(&self) -> *mut bindings::device {
        // SAFETY: Valid by the invariant.
        unsafe { raw::libcopy_dma_device(self.as_ptr()) }
    }

    /// Whether descriptors may end in another order than they were submitted in.
    pub(crate) fn unordered(&self) -> bool {
        // SAFETY: Valid by the invariant.
        unsafe { raw::libcopy_dma_unordered(self.as_ptr()) }
    }
}

impl Drop for Hardware {
    fn drop(&mut self) {
        // SAFETY: By the invariant it is ours to release; this is done where sleeping is allowed.
        unsafe { raw::libcopy_dma_release(self.as_ptr()) }
    }
}

/// Submits one descriptor; `done` is called exactly once if this succeeds, unless the channel is
/// stopped before.
///
/// - `EAGAIN`: the driver has no descriptor for this, because its ring is full or because it wants
///   shorter ones; `done` is not called.
/// - `EIO`: the driver did not accept it; `done` may be called or not until the channel is stopped.
///
/// # Safety
///
/// `chan` is acquired and stays so for the call; the addresses are mapped for its device until `done`
/// was called or the channel was stopped; `param` is what `done` expects.
pub(crate) unsafe fn submit(
    chan: *mut DmaChan,
    to: u64,
    from: u64,
    len: usize,
    interrupt: bool,
    done: Done,
    param: *mut c_void,
) -> Result {
    // SAFETY: The caller's promise.
    kernel::error::to_result(unsafe {
        raw::libcopy_dma_submit(chan, to, from, len, interrupt, done, param)
    })
}

/// Makes the hardware look at what was submitted.
///
/// # Safety
///
/// `chan` is acquired and stays so for the call.
pub(crate) unsafe fn issue(chan: *mut DmaChan) {
    // SAFETY: The caller's promise.
    unsafe { raw::libcopy_dma_issue(chan) }
}

/// Whether a descriptor ended well.
///
/// # Safety
///
/// `result` is what the callback was given.
pub(crate) unsafe fn succeeded(result: *const DmaResult) -> bool {
    // SAFETY: The caller's promise.
    unsafe { raw::libcopy_dma_succeeded(result) }
}

/// Whether a callback, which calls this, runs in a thread: then the driver's submission may sleep,
/// and may wait for what that thread does next.
pub(crate) fn callback_sleeps() -> bool {
    // SAFETY: No preconditions.
    unsafe { raw::libcopy_dma_callback_sleeps() }
}

/// Hears when devices lose their drivers; dropping ends that.
pub(crate) struct Watching(());

impl Watching {
    /// Starts; `leaves` is called before a device loses its driver, and with `true` when it has lost
    /// it; it may sleep.
    pub(crate) fn start(leaves: unsafe extern "C" fn(*mut bindings::device, bool)) -> Result<Self> {
        // SAFETY: `leaves` stays until the module is unloaded, which is after `drop`.
        kernel::error::to_result(unsafe { raw::libcopy_dma_watch_start(leaves) })?;
        Ok(Self(()))
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        // SAFETY: No preconditions; waits for calls under way.
        unsafe { raw::libcopy_dma_watch_stop() }
    }
}

/// A kernel thread; dropping stops it and waits for its end.
pub(crate) struct Thread(NonNull<bindings::task_struct>);

// SAFETY: A kernel thread may be stopped from any thread.
unsafe impl Send for Thread {}
// SAFETY: Nothing can be done through a shared reference.
unsafe impl Sync for Thread {}

impl Thread {
    /// Starts a thread near a NUMA node (negative: anywhere).
    ///
    /// # Safety
    ///
    /// `body` may be called with `data`, from another thread, until the result is dropped; whoever drops
    /// it makes `body` return.
    pub(crate) unsafe fn run(
        body: unsafe extern "C" fn(*mut c_void) -> c_int,
        data: *mut c_void,
        node: i32,
        name: &CStr,
    ) -> Result<Self> {
        // SAFETY: The caller's promise; the name is copied.
        let task = unsafe { raw::libcopy_thread_run(body, data, node, name.as_char_ptr()) };
        NonNull::new(task).map(Self).ok_or(ENOMEM)
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        // SAFETY: We hold the reference that `run` took; waits for a thread that has not ended yet.
        unsafe { raw::libcopy_thread_stop(self.0.as_ptr()) }
    }
}

/// NUMA nodes, ascending.
pub(crate) fn nodes() -> impl Iterator<Item = i32> {
    // SAFETY: No preconditions.
    let next = |after| unsafe { raw::libcopy_next_node(after) };
    core::iter::successors(Some(next(-1)), move |node| Some(next(*node)))
        .take_while(|node| *node >= 0)
}

/// The caller's NUMA node.
pub(crate) fn current_node() -> i32 {
    // SAFETY: No preconditions.
    unsafe { raw::libcopy_current_node() }
}

/// # Safety
///
/// The lock is initialised.
pub(crate) unsafe fn lock_irqsave(lock: *mut bindings::spinlock_t) -> usize {
    // SAFETY: The caller's promise.
    unsafe { raw::libcopy_lock_irqsave(lock) }
}

/// # Safety
///
/// The caller holds the lock and got `flags` when it took it.
pub(crate) unsafe fn unlock_irqrestore(lock: *mut bindings::spinlock_t, flags: usize) {
    // SAFETY: The caller's promise.
    unsafe { raw::libcopy_unlock_irqrestore(lock, flags) }
}

/// Continues a CRC32C over `len` bytes.
///
/// # Safety
///
/// `data` is readable for `len` bytes.
pub(crate) unsafe fn crc32c(crc: u32, data: *const u8, len: usize) -> u32 {
    // SAFETY: The caller's promise.
    unsafe { raw::libcopy_crc32c(crc, data.cast(), len) }
}

/// Sleeps a moment.
pub(crate) fn nap(milliseconds: u32) {
    // SAFETY: All callers may sleep.
    unsafe { bindings::msleep(milliseconds) }
}

/// A reference to a device.
///
/// # Invariants
///
/// The pointer is valid and owns one reference.
struct DeviceRef(*mut bindings::device);

// SAFETY: Devices are reference counted and may be used from any thread.
unsafe impl Send for DeviceRef {}
// SAFETY: As above.
unsafe impl Sync for DeviceRef {}

impl Drop for DeviceRef {
    fn drop(&mut self) {
        // SAFETY: Releases the reference that `DmaDevice::new` took.
        unsafe { bindings::put_device(self.0) }
    }
}

/// A device that does transfers, with the memory that is mapped for it.
#[pin_data]
pub(crate) struct DmaDevice {
    device: DeviceRef,
    /// What is mapped, by the id of the [`Mapping`]; `None` once the device has left.
    #[pin]
    maps: Mutex<Option<RBTree<u64, Arc<DmaMap>>>>,
    /// Mappings that exist.
    live: Atomic<u32>,
}

impl DmaDevice {
    /// The device of an acquired channel.
    pub(crate) fn new(hardware: &Hardware) -> Result<Arc<Self>> {
        // SAFETY: The channel keeps its device while we take a reference.
        let device = unsafe { bindings::get_device(hardware.device()) };
        Arc::pin_init(
            pin_init!(Self {
                device: DeviceRef(device),
                maps <- new_mutex!(Some(RBTree::new())),
                live: Atomic::new(0),
            }),
            GFP_KERNEL,
        )
    }

    /// Whether this is the device of `hardware`.
    pub(crate) fn is(&self, hardware: &Hardware) -> bool {
        self.device.0 == hardware.device()
    }

    /// Whether `dev` is this device or a part of it.
    pub(crate) fn contains(&self, dev: *mut bindings::device) -> bool {
        // SAFETY: We hold a reference; the caller, a notifier, keeps `dev`.
        unsafe { raw::libcopy_dma_part_of(dev, self.device.0) }
    }

    /// Makes sure that we hear when the device goes. Called without locks.
    pub(crate) fn watch(&self) -> Result {
        // SAFETY: We hold a reference.
        kernel::error::to_result(unsafe { raw::libcopy_dma_watch(self.device.0) })
    }

    /// Memory as the device sees it; mapped by the first call, kept for as long as the memory is
    /// pinned.
    ///
    /// - `ENODEV`: the device has left.
    /// - `EIO`: the DMA API refuses.
    pub(crate) fn map(self: &Arc<Self>, mapping: &Mapping) -> Result<Arc<DmaMap>> {
        let known = |maps: &Option<RBTree<u64, Arc<DmaMap>>>| -> Result<Option<Arc<DmaMap>>> {
            let maps = maps.as_ref().ok_or(ENODEV)?;
            Ok(maps.get(&mapping.id()).cloned())
        };
        if let Some(map) = known(&self.maps.lock())? {
            return Ok(map);
        }
        // Without the lock: a large mapping takes a while.
        let map = Arc::new(DmaMap::new(self, mapping.pages())?, GFP_KERNEL_ACCOUNT)?;
        mapping.mapped_for(self)?;
        let node = kernel::rbtree::RBTreeNode::new(mapping.id(), map.clone(), GFP_KERNEL_ACCOUNT)?;
        let mut maps = self.maps.lock();
        let other = known(&maps)?;
        if let (None, Some(maps)) = (&other, &mut *maps) {
            maps.insert(node);
        }
        drop(maps);
        Ok(other.unwrap_or(map))
    }

    /// The memory is about to be unpinned.
    pub(crate) fn forget(&self, id: u64) {
        let gone = match &mut *self.maps.lock() {
            Some(maps) => maps.remove(&id),
            None => None,
        };
        drop(gone);
    }

    /// The device leaves: takes back every mapping, those too that others are about to let go.
    pub(crate) fn leave(&self) {
        let maps = self.maps.lock().take();
        drop(maps);
        while self.live.load(Acquire) != 0 {
            nap(1);
        }
    }
}

/// Contiguous bytes of mapped memory.
#[derive(Clone, Copy)]
struct Segment {
    /// Where they start, counted in bytes from the start of the region.
    offset: u64,
    /// Where the device finds them.
    address: u64,
    len: usize,
}

/// Pinned memory as one device sees it.
///
/// # Invariants
///
/// The segments cover the memory in order without gaps, each is mapped, and the memory stays pinned
/// for as long as this exists: it is held by the mapping it belongs to and by those who hold that.
pub(crate) struct DmaMap {
    device: Arc<DmaDevice>,
    segments: KVVec<Segment>,
    write: bool,
}

// SAFETY: What is mapped may be used and unmapped from any thread.
unsafe impl Send for DmaMap {}
// SAFETY: As above.
unsafe impl Sync for DmaMap {}

impl DmaMap {
    fn new(device: &Arc<DmaDevice>, pages: &PinnedPages) -> Result<Self> {
        device.live.fetch_add(1, Full);
        let mut this = Self {
            device: device.clone(),
            segments: KVVec::new(),
            write: pages.writable(),
        };
        let dev = device.device.0;
        // SAFETY: The device is referenced.
        let most = unsafe { raw::libcopy_dma_max_mapping(dev) }.clamp(1, 1 << 30);
        this.segments
            .reserve(pages.runs().len(), GFP_KERNEL_ACCOUNT | __GFP_NOWARN)?;
        for run in pages.runs() {
            let mut done = 0;
            while done < run.len {
                let len = usize::min(run.len - done, most);
                // Before the mapping exists, so that it cannot be lost.
                this.segments
                    .reserve(1, GFP_KERNEL_ACCOUNT | __GFP_NOWARN)?;
                let mut address = 0;
                let from = run.address.wrapping_add(done);
                // SAFETY: The run is pinned, contiguous memory of the direct map.
                let mapped = unsafe {
                    raw::libcopy_dma_map(dev, from.cast(), len, this.write, &mut address)
                };
                if !mapped {
                    return Err(EIO);
                }
                // INVARIANT: Mapped just now.
                let _ = this.segments.push_within_capacity(Segment {
                    offset: run.offset + done as u64,
                    address,
                    len,
                });
                done += len;
            }
        }
        Ok(this)
    }

    /// Whether every segment starts and ends at multiples of `alignment`.
    pub(crate) fn aligned(&self, alignment: u64) -> bool {
        alignment <= 1
            || self
                .segments
                .iter()
                .all(|segment| (segment.address | segment.len as u64) & (alignment - 1) == 0)
    }

    /// The contiguous bytes at `offset`: where the device finds them, and how many follow. `hint` is
    /// where the caller was last and is updated.
    pub(crate) fn locate(&self, offset: u64, hint: &mut usize) -> Option<(u64, usize)> {
        let inside = |segment: &Segment| {
            (segment.offset..segment.offset + segment.len as u64).contains(&offset)
        };
        if !self.segments.get(*hint).is_some_and(inside) {
            *hint = self
                .segments
                .partition_point(|segment| segment.offset + segment.len as u64 <= offset);
        }
        let segment = self.segments.get(*hint).filter(|segment| inside(segment))?;
        let skip = offset - segment.offset;
        Some((segment.address + skip, segment.len - skip as usize))
    }

    /// Calls `each` for the pieces of a range.
    fn pieces(&self, offset: u64, length: u64, mut each: impl FnMut(u64, usize)) {
        let (mut done, mut hint) = (0, usize::MAX);
        while done < length {
            let Some((address, len)) = self.locate(offset + done, &mut hint) else {
                return;
            };
            let len = u64::min(len as u64, length - done);
            each(address, len as usize);
            done += len;
        }
    }

    /// Hands a range to the device.
    pub(crate) fn for_device(&self, offset: u64, length: u64) {
        self.pieces(offset, length, |address, len| {
            // SAFETY: Part of a live mapping.
            unsafe {
                raw::libcopy_dma_sync_for_device(self.device.device.0, address, len, self.write)
            }
        });
    }

    /// Takes a range back from the device, whose writes are then visible.
    pub(crate) fn for_cpu(&self, offset: u64, length: u64) {
        self.pieces(offset, length, |address, len| {
            // SAFETY: Part of a live mapping.
            unsafe { raw::libcopy_dma_sync_for_cpu(self.device.device.0, address, len, self.write) }
        });
    }
}

impl Drop for DmaMap {
    fn drop(&mut self) {
        for segment in &self.segments {
            // SAFETY: Mapped by `new`, unmapped once; whoever uses the mapping holds it.
            unsafe {
                raw::libcopy_dma_unmap(
                    self.device.device.0,
                    segment.address,
                    segment.len,
                    self.write,
                )
            };
        }
        self.device.live.fetch_sub(1, Full);
    }
}

/// Two pages that a channel copies to each other to prove itself. If that fails, the channel may still
/// write to them, so that they are kept until it has been stopped.
pub(crate) struct Trial {
    pages: [KVec<u8>; 2],
    addresses: [u64; 2],
    device: Arc<DmaDevice>,
    ended: Atomic<u32>,
}

/// Bytes of a trial; a page's worth, so that it lies in one.
const TRIAL: usize = 4096;

impl Trial {
    /// Prepares pages that differ.
    pub(crate) fn new(device: &Arc<DmaDevice>, seed: u8) -> Result<KBox<Self>> {
        let mut pages = [
            KVec::from_elem(0, TRIAL, GFP_KERNEL)?,
            KVec::from_elem(0, TRIAL, GFP_KERNEL)?,
        ];
        for (at, byte) in pages[0].iter_mut().enumerate() {
            *byte = (at as u8).wrapping_mul(7).wrapping_add(seed | 1);
        }
        let mut addresses = [0; 2];
        for (at, page) in pages.iter_mut().enumerate() {
            let data: *mut u8 = page.as_mut_ptr();
            // SAFETY: Our own memory, in the direct map.
            let mapped = unsafe {
                raw::libcopy_dma_map(
                    device.device.0,
                    data.cast(),
                    TRIAL,
                    true,
                    &mut addresses[at],
                )
            };
            if !mapped {
                if at == 1 {
                    // SAFETY: Mapped in the first round.
                    unsafe { raw::libcopy_dma_unmap(device.device.0, addresses[0], TRIAL, true) };
                }
                return Err(EIO);
            }
        }
        device.live.fetch_add(1, Full);
        Ok(KBox::new(
            Self {
                pages,
                addresses,
                device: device.clone(),
                ended: Atomic::new(0),
            },
            GFP_KERNEL,
        )?)
    }

    unsafe extern "C" fn done(param: *mut c_void, result: *const DmaResult) {
        // SAFETY: The trial lives until the callback came or the channel was stopped.
        let this = unsafe { &*param.cast::<Self>() };
        // SAFETY: Passed on.
        let outcome = if unsafe { succeeded(result) } { 1 } else { 2 };
        this.ended.xchg(outcome, Full);
    }

    /// Lets `hardware` copy one page to the other within so many milliseconds. The trial may be
    /// dropped when this succeeds, or when the hardware has been stopped.
    pub(crate) fn run(&self, hardware: &Hardware, milliseconds: u32) -> Result {
        for address in self.addresses {
            // SAFETY: Mapped by `new`.
            unsafe { raw::libcopy_dma_sync_for_device(self.device.device.0, address, TRIAL, true) };
        }
        // SAFETY: Both pages are mapped until the trial is dropped, which is after the end.
        unsafe {
            submit(
                hardware.as_ptr(),
                self.addresses[1],
                self.addresses[0],
                TRIAL,
                true,
                Self::done,
                core::ptr::from_ref(self).cast_mut().cast(),
            )?;
            issue(hardware.as_ptr());
        }
        for _ in 0..milliseconds.div_ceil(2) {
            if self.ended.load(Acquire) != 0 {
                break;
            }
            nap(2);
        }
        match self.ended.load(Relaxed) {
            0 => return Err(ETIMEDOUT),
            1 => {}
            _ => return Err(EIO),
        }
        for address in self.addresses {
            // SAFETY: Mapped by `new`.
            unsafe { raw::libcopy_dma_sync_for_cpu(self.device.device.0, address, TRIAL, true) };
        }
        for (left, right) in self.pages[0].iter().zip(&self.pages[1]) {
            // SAFETY: Valid references; the device wrote behind the compiler's back, so that the
            // bytes are read anew.
            if unsafe { core::ptr::read_volatile(left) != core::ptr::read_volatile(right) } {
                return Err(EIO);
            }
        }
        Ok(())
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        for address in self.addresses {
            // SAFETY: Mapped by `new`, unmapped once.
            unsafe { raw::libcopy_dma_unmap(self.device.device.0, address, TRIAL, true) };
        }
        self.device.live.fetch_sub(1, Full);
    }
}
