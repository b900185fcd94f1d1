// SPDX-License-Identifier: MIT OR Apache-2.0

//! Messages that the receiver copies out of the sender's device memory, from layout to layout
//! (FALCON-X, section 5.2), through CUDA IPC.
//!
//! The sender [`offer`]s its elements: the message's header goes the way of all headers, its slot
//! says which memory it is. The receiver [`reach`]es it if it receives into device memory, if both
//! processes may use CUDA IPC, and if what the sender's process offers to be tried out is read as
//! it was written. Otherwise the sender packs.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, LazyLock, Mutex};

use libcopy::datatype::Layout;
use libcopy::lock::lock;
use libcopy::lru::LruMap;
use libcopy::p2p::header::Header;
use libcopy::p2p::{
    DescribedLayout, DeviceCopy, DeviceElements, DeviceHandle, HANDLE_WORDS, PackedBytes, View,
};
use libcopy::policy::backoff::Backoff;
use libcopy::transport::process_memory;
use libcopy_gpu::peer::{self, Exported, Probe, Remote};
use libcopy_gpu::{Driver, Error, GpuLayout, Pending};

use crate::decide::active::active;
use crate::gpu::elements::{Elements, Started};
use crate::gpu::landing::Target;
use crate::gpu::method::{Method, Size};
use crate::gpu::report::{Event, note, note_method};
use crate::gpu::staging::Staging;
use crate::gpu::{delayed, landing, method, waiting_functions, watch};
use crate::library::abi::{Abi, Word};

/// By receiver: whether messages are offered to it, which has not always been of use.
static BACKOFFS: Mutex<Option<HashMap<usize, Arc<Backoff>>>> = Mutex::new(None);

/// Elements in device memory that their receiver may copy.
#[derive(Debug)]
pub struct Offer {
    driver: &'static Driver,
    abi: &'static Abi,
    elements: Elements,
    exported: Exported,
    /// What the receiver tries out before it copies anything.
    probe: Arc<Probe>,
    backoff: Arc<Backoff>,
}

/// Offers `count` elements to the process with the number `receiver`; `None` if it could not copy
/// them, or if that would take longer than another way.
#[cold]
pub fn offer(
    (base, count, datatype): (*const c_void, usize, Word),
    comm: Word,
    receiver: usize,
) -> Option<Offer> {
    let (driver, abi) = (watch::driver()?, active()?);
    let elements = Elements::on_device((driver, abi), base, Some(count), (datatype, comm))?;
    offer_those((driver, abi), elements, receiver)
}

/// Offers elements that are known to be in device memory; `None` as for [`offer`].
pub fn offer_those(
    (driver, abi): (&'static Driver, &'static Abi),
    elements: Elements,
    receiver: usize,
) -> Option<Offer> {
    let is_dense = elements.kind.is_dense();
    if !is_dense && elements.layout().is_none() {
        return None;
    }
    let there = (driver, &elements.near);
    if !method::is_offered(there, elements.size(), is_dense) {
        return None;
    }
    let backoff = lock(&BACKOFFS)
        .get_or_insert_default()
        .entry(receiver)
        .or_default()
        .clone();
    if !method::is_always_offered() && !backoff.admits() {
        return None;
    }
    let (low, len) = if is_dense {
        (0, elements.bytes())
    } else {
        elements.span()?
    };
    let first = elements.first().wrapping_add_signed(low);
    let exported = peer::export(driver, first).ok()?;
    // Elements in several allocations cannot be reached with one of them.
    if !has_room(&exported, len as u64) {
        return None;
    }
    let probe = peer::offered(driver, &elements.near).ok()?;
    Some(Offer {
        driver,
        abi,
        elements,
        exported,
        probe,
        backoff,
    })
}

/// Whether there are `len` bytes from an address on that another process has exported.
fn has_room(exported: &Exported, len: u64) -> bool {
    len <= exported.bytes - exported.offset
}

impl Offer {
    /// What has to be done before the receiver may read: what the program has put into its legacy
    /// stream. `None` if the driver fails.
    pub fn written(&self) -> Option<Started> {
        let behind = Pending::behind_program(self.driver, &self.elements.near);
        Started::of(self.abi, behind).ok()
    }

    /// What is counted when the message is sent.
    pub fn size(&self) -> Size {
        self.elements.size()
    }
}

/// Counts a message that was offered to its receiver.
pub fn note_offered(size: Size) {
    note(Event::Offered, 1);
    note(Event::Bytes, size.bytes);
    note_method(size, Method::Peer, true);
}

/// Whether a nonblocking send may be left to its receiver: not where this process may wait without
/// packing before, and not behind sends that are not started yet.
pub fn may_be_left() -> bool {
    delayed::poll();
    !delayed::any() && waiting_functions::is_possible()
}

impl DeviceElements for Offer {
    fn handle(&self) -> DeviceHandle {
        let mut memory = [0; HANDLE_WORDS];
        for (word, bytes) in memory
            .iter_mut()
            .zip(self.exported.to_bytes().chunks_exact(8))
        {
            *word = bytes.try_into().map_or(0, u64::from_ne_bytes);
        }
        DeviceHandle {
            memory,
            trial: self.probe.message().as_ptr() as u64,
        }
    }

    fn described(&self) -> Option<&DescribedLayout> {
        self.elements
            .prepared()
            .map(|prepared| prepared.described.as_ref())
    }

    fn packed(&self) -> Result<Box<dyn PackedBytes>, i32> {
        note(Event::Packing, 1);
        let bytes = self.elements.bytes();
        let memory = Staging::new(self.driver, &self.elements.near, bytes)?;
        self.elements
            .pack((self.driver, self.abi), memory.address())?;
        Ok(Box::new(Packed { memory, bytes }))
    }

    fn is_wanted(&self) -> bool {
        method::is_always_offered()
    }

    fn over(&self, were_copied: bool) {
        self.backoff.note(were_copied);
    }
}

/// Packed bytes of device memory.
#[derive(Debug)]
struct Packed {
    memory: Staging,
    bytes: usize,
}

impl PackedBytes for Packed {
    fn bytes(&self) -> &[u8] {
        // SAFETY: the memory has these bytes, which were written, and which nobody changes any
        // more.
        unsafe { std::slice::from_raw_parts(self.memory.address() as *const u8, self.bytes) }
    }
}

/// Bytes of forms of peers' layouts that are kept.
const MOST_BYTES: usize = 64 << 20;

/// How many of them.
const MOST_LAYOUTS: usize = 1024;

/// Layouts of peers as kernels have them, by hash, with the number of words that describe one.
type Layouts = LruMap<[u64; 2], (Arc<GpuLayout>, u64)>;

static LAYOUTS: LazyLock<Mutex<Layouts>> = LazyLock::new(Mutex::default);

/// A sender's layout for kernels; `None` if they cannot do it.
fn for_kernels(header: &Header, layout: &Layout) -> Option<Arc<GpuLayout>> {
    if let Some((known, words)) = lock(&LAYOUTS).get(&header.layout_hash) {
        // Another layout may have the same hash.
        if *words == header.layout_words && known.layout().size() == layout.size() {
            return Some(known.clone());
        }
    }
    let made = Arc::new(GpuLayout::new(layout.clone()).ok()?);
    let kept = (made.clone(), header.layout_words);
    let limits = (MOST_LAYOUTS, MOST_BYTES);
    lock(&LAYOUTS).insert(header.layout_hash, kept, layout.form().memory(), limits);
    Some(made)
}

/// A message that is copied out of its sender's device memory.
#[derive(Debug)]
struct Copying {
    driver: &'static Driver,
    abi: &'static Abi,
    target: Arc<Target>,
    /// Host memory in the place of the target.
    staging: u64,
    bytes: usize,
    /// The sender's layout; `None` for dense bytes.
    layout: Option<Arc<GpuLayout>>,
    remote: Remote,
    /// What a GPU was told to do, and whether that is to copy to the elements themselves.
    started: Option<(Started, bool)>,
}

/// How a message of the process `pid` is copied into what stands for elements in device memory;
/// `None` if it cannot be.
#[cold]
pub fn reach(
    (pid, header): (i32, &Header),
    handle: &DeviceHandle,
    layout: Option<&Layout>,
    to: &View,
) -> Option<Box<dyn DeviceCopy>> {
    let View::Dense(staging) = to else {
        return None;
    };
    let staging = *staging as u64;
    let target = landing::find(staging)?;
    let (driver, abi) = (watch::driver()?, active()?);
    let exported = exported(handle)?;
    let bytes = usize::try_from(header.total).ok()?;
    let (len, layout) = match layout {
        None => (header.total, None),
        Some(layout) if layout.size() == header.total => {
            let bounds = layout.bounds();
            let len = u64::try_from(bounds.end.checked_sub(bounds.start)?).ok()?;
            (len, Some(for_kernels(header, layout)?))
        }
        Some(_) => return None,
    };
    if !has_room(&exported, len) {
        return None;
    }
    let near = &target.elements.near;
    let message = || {
        let mut message = [0; Probe::BYTES];
        // SAFETY: as many bytes.
        let read =
            unsafe { process_memory::read(pid, handle.trial, message.as_mut_ptr(), message.len()) };
        let failed = |error: std::io::Error| Error::NoPeer {
            process: exported.process,
            why: format!("reading what it offers: {error}"),
        };
        read.map(|()| message).map_err(failed)
    };
    peer::try_out_once(driver, near, &exported, message).ok()?;
    let remote = peer::open(driver, near, &exported).ok()?;
    Some(Box::new(Copying {
        driver,
        abi,
        target,
        staging,
        bytes,
        layout,
        remote,
        started: None,
    }))
}

/// What a sender has exported.
fn exported(handle: &DeviceHandle) -> Option<Exported> {
    const { assert!(Exported::BYTES == 8 * HANDLE_WORDS) };
    let mut bytes = [0; Exported::BYTES];
    for (to, word) in bytes.chunks_exact_mut(8).zip(handle.memory) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
    Exported::from_bytes(&bytes).ok()
}

impl Copying {
    /// Starts to copy to the elements; [`Error::Overlap`] if kernels cannot.
    fn start_to_elements(&self) -> libcopy_gpu::Result<Pending> {
        let (driver, elements, remote) = (self.driver, &self.target.elements, &self.remote);
        let (all, from) = (0..self.bytes as u64, remote.address());
        let base = elements.first();
        // SAFETY: `reach` has compared the sender's layout with what it has exported, and the
        // receive has room for the message (`Endpoint::receive`); both programs leave their
        // elements alone until then.
        unsafe {
            match (&self.layout, elements.layout()) {
                (None, _) if elements.kind.is_dense() => {
                    libcopy_gpu::start_copy(driver, base, from, self.bytes)
                }
                (None, Some(to)) => libcopy_gpu::start_unpack(driver, to, base, all, from),
                (Some(layout), _) if elements.kind.is_dense() => {
                    libcopy_gpu::start_pack(driver, layout, self.origin(layout), all, base)
                }
                (Some(layout), Some(to)) => {
                    let origin = self.origin(layout);
                    libcopy_gpu::start_copy_layout(driver, to, base, layout, origin)
                }
                (_, None) => Err(Error::Overlap),
            }
        }
    }

    /// Starts to pack into the host memory, from where the call that receives unpacks.
    fn start_to_host(&self) -> libcopy_gpu::Result<Pending> {
        let (driver, from) = (self.driver, self.remote.address());
        // SAFETY: as above; the host memory has room for what the elements have room for.
        unsafe {
            match &self.layout {
                None => libcopy_gpu::start_copy(driver, self.staging, from, self.bytes),
                Some(layout) => {
                    let (origin, all) = (self.origin(layout), 0..self.bytes as u64);
                    libcopy_gpu::start_pack(driver, layout, origin, all, self.staging)
                }
            }
        }
    }

    /// What the offsets of the sender's layout count from, whose lowest byte it has exported.
    fn origin(&self, layout: &GpuLayout) -> u64 {
        let low = layout.layout().bounds().start;
        self.remote.address().wrapping_add_signed(-low)
    }
}

impl DeviceCopy for Copying {
    fn start(&mut self) -> Result<(), String> {
        let (pending, is_direct) = match self.start_to_elements() {
            Err(Error::Overlap) => (self.start_to_host(), false),
            started => (started, true),
        };
        let mut pending = pending.map_err(|error| error.to_string())?;
        pending.keep(self.remote.clone());
        let started = Started::of(self.abi, Ok(pending)).map_err(numbered)?;
        self.started = Some((started, is_direct));
        Ok(())
    }

    fn is_done(&mut self) -> Result<bool, String> {
        let Some((started, is_direct)) = &mut self.started else {
            return Ok(false);
        };
        if !started.is_done().map_err(numbered)? {
            return Ok(false);
        }
        if *is_direct {
            self.target.landed();
        }
        note(Event::Copied, 1);
        note(Event::Bytes, self.bytes as u64);
        note_method(self.target.elements.size(), Method::Peer, false);
        Ok(true)
    }
}

/// An error code, of which the reason has been said.
fn numbered(code: i32) -> String {
    format!("error code {code}")
}
