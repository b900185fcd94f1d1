// SPDX-License-Identifier: MIT OR Apache-2.0

//! GPU memory of other processes of the machine, through CUDA IPC: what FALCON-X's copies from
//! layout to layout read (FALCON-X, section 5.2).
//!
//! The owner [`export`]s an address; who gets the [`Exported`] bytes opens it. Opening takes a
//! hundred microseconds and more, so mappings are kept, by (context, process, its start time, base
//! address, buffer number). The driver gives no two allocations of a process the same buffer
//! number: memory that was freed and whose address is used again has another one, which is how a
//! stale mapping is found. Mappings in use are never closed.
//!
//! Not all that can be opened can be read, so a [`Probe`] comes before the first copy between two
//! processes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use libcopy_datatype::{Datatype, Layout, Named};

use crate::buffer::{Buffer, copy};
use crate::context::{Context, lock};
use crate::device::{Device, Uuid};
use crate::driver::{Driver, IpcHandle};
use crate::error::{Error, Result};
use crate::gpu::{GpuLayout, copy_layout};
use crate::memory::{Pointer, Space};

/// Mappings that are kept although nobody uses them, at most.
const MOST_IDLE: usize = 128;

/// Handles of this process that are remembered, at most.
const MOST_HANDLES: usize = 1024;

/// What another process needs to reach an address of this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exported {
    /// The owner.
    pub process: u32,
    /// When it was started, in clock ticks since the machine was (field 22 of proc_pid_stat(5)):
    /// process numbers are used again.
    pub start_time: u64,
    /// The allocation's number in the owner.
    pub buffer: u64,
    /// Where the allocation begins in the owner.
    pub base: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// The exported address minus `base`.
    pub offset: u64,
    /// The GPU that it is on.
    pub device: Uuid,
    handle: IpcHandle,
}

impl Exported {
    /// Length of [`Exported::to_bytes`].
    pub const BYTES: usize = 128;

    /// First of the bytes: the format's name and version.
    const MAGIC: [u8; 4] = *b"LCG1";

    /// What is sent to the other process.
    pub fn to_bytes(&self) -> [u8; Exported::BYTES] {
        let mut bytes = [0; Exported::BYTES];
        bytes[..4].copy_from_slice(&Self::MAGIC);
        bytes[4..8].copy_from_slice(&self.process.to_le_bytes());
        let numbers = [
            self.start_time,
            self.buffer,
            self.base,
            self.bytes,
            self.offset,
        ];
        for (to, number) in bytes[8..48].chunks_exact_mut(8).zip(numbers) {
            to.copy_from_slice(&number.to_le_bytes());
        }
        bytes[48..64].copy_from_slice(&self.device.0);
        bytes[64..].copy_from_slice(&self.handle.0);
        bytes
    }

    /// What was sent.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`]: another version of libcopy sent it, or it is damaged.
    pub fn from_bytes(bytes: &[u8; Exported::BYTES]) -> Result<Exported> {
        let malformed = |why: String| {
            Err(Error::Malformed {
                what: "the description of another process's GPU memory",
                why,
            })
        };
        if bytes[..4] != Self::MAGIC {
            return malformed(format!(
                "it begins with {:02x?} instead of {:02x?}; do both processes use the same libcopy?",
                &bytes[..4],
                Self::MAGIC
            ));
        }
        let number = |at: usize| {
            let mut number = [0; 8];
            number.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(number)
        };
        let mut exported = Exported {
            process: (number(0) >> 32) as u32,
            start_time: number(8),
            buffer: number(16),
            base: number(24),
            bytes: number(32),
            offset: number(40),
            device: Uuid::default(),
            handle: IpcHandle([0; 64]),
        };
        exported.device.0.copy_from_slice(&bytes[48..64]);
        exported.handle.0.copy_from_slice(&bytes[64..]);
        if exported.offset >= exported.bytes || exported.base.checked_add(exported.bytes).is_none()
        {
            return malformed(format!(
                "offset {} of {} bytes at {:#x}",
                exported.offset, exported.bytes, exported.base
            ));
        }
        Ok(exported)
    }
}

/// This process, and when it was started.
fn own_process() -> (u32, u64) {
    static KNOWN: Mutex<Option<(u32, u64)>> = Mutex::new(None);
    let process = std::process::id();
    let mut known = lock(&KNOWN);
    match *known {
        // A child after a fork is another process.
        Some(of) if of.0 == process => of,
        _ => *known.insert((process, start_time().unwrap_or(0))),
    }
}

/// Field 22 of /proc/self/stat.
fn start_time() -> Option<u64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The second field is the program's name in parentheses, which may contain anything.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(19)?.parse().ok()
}

/// An allocation's number, and its handle or why it has none.
type Handles = HashMap<u64, Result<IpcHandle>>;

/// Handles of this process's own memory. Numbers of allocations are not used again.
static HANDLES: Mutex<Option<Handles>> = Mutex::new(None);

/// Describes an address in memory of this process's GPU for others.
///
/// # Errors
///
/// [`Error::NotExportable`]: memory that is not a GPU's, or of a kind that has no handle
/// (`cuMemCreate`, `cuMemAllocAsync`, managed), or IPC is not to be had here; go another way then.
/// A driver that fails.
pub fn export(driver: &Driver, address: u64) -> Result<Exported> {
    let no = |why: String| Err(Error::NotExportable { address, why });
    let pointer = Pointer::of(driver, address)?;
    match pointer.space {
        Space::Device => {}
        Space::Host => return no("it is host memory".to_owned()),
        Space::Pinned => return no("it is pinned host memory".to_owned()),
        Space::Managed => {
            return no("it is managed memory, which moves between host and GPU".to_owned());
        }
    }
    if pointer.context.is_null() {
        return no("the driver names no context for it (cuMemAllocAsync, cuMemCreate)".to_owned());
    }
    let (_current, context) = Context::at(driver, &pointer)?;
    let (mut base, mut bytes) = (0, 0);
    // SAFETY: both are written to.
    driver.check("cuMemGetAddressRange", unsafe {
        (driver.functions.mem_get_address_range)(&raw mut base, &raw mut bytes, address)
    })?;
    let mut handles = lock(&HANDLES);
    let handles = handles.get_or_insert_default();
    if handles.len() >= MOST_HANDLES {
        handles.clear();
    }
    let handle = handles
        .entry(pointer.buffer)
        .or_insert_with(|| handle(driver, base))
        .clone();
    let handle = match handle {
        Ok(handle) => handle,
        Err(error) => {
            return no(format!(
                "{error}; memory of cuMemCreate and cuMemAllocAsync has no handle, and containers may lack IPC"
            ));
        }
    };
    let (process, start_time) = own_process();
    Ok(Exported {
        process,
        start_time,
        buffer: pointer.buffer,
        base,
        bytes: bytes as u64,
        offset: address - base,
        device: context.device().uuid,
        handle,
    })
}

/// The handle of an allocation that begins at `base`, in the current context.
fn handle(driver: &Driver, base: u64) -> Result<IpcHandle> {
    let mut handle = IpcHandle([0; 64]);
    // SAFETY: `handle` is written to.
    driver.check("cuIpcGetMemHandle", unsafe {
        (driver.functions.ipc_get_mem_handle)(&raw mut handle, base)
    })?;
    /// `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`: copies of the program's to this memory are done when
    /// they return, so that others who are told of it then find the bytes.
    const SYNC_MEMOPS: i32 = 6;
    let yes: u32 = 1;
    // SAFETY: the attribute's value is an unsigned number.
    driver.check("cuPointerSetAttribute", unsafe {
        (driver.functions.pointer_set_attribute)((&raw const yes).cast(), SYNC_MEMOPS, base)
    })?;
    Ok(handle)
}

/// An allocation of another process, mapped into this one.
#[derive(Debug)]
struct Mapping {
    address: u64,
    /// Where it was opened; none for memory of this process.
    opened_in: Option<Arc<Context>>,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let (Some(context), Some(Ok(driver))) = (&self.opened_in, Driver::loaded()) else {
            return;
        };
        if let Ok(_current) = context.enter(driver) {
            // SAFETY: opened in this context, and used by nobody any more.
            unsafe { (driver.functions.ipc_close_mem_handle)(self.address) };
        }
    }
}

/// An address of another process that this one can reach, as long as this lives.
#[derive(Clone, Debug)]
pub struct Remote {
    mapping: Arc<Mapping>,
    offset: u64,
}

impl Remote {
    /// The address that was exported, as kernels and the driver of this process see it.
    pub fn address(&self) -> u64 {
        self.mapping.address + self.offset
    }
}

/// What a mapping is found by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    context: u64,
    process: u32,
    start_time: u64,
    base: u64,
    buffer: u64,
}

/// A mapping that is kept.
#[derive(Debug)]
struct Kept {
    key: Key,
    bytes: u64,
    mapping: Arc<Mapping>,
}

impl Kept {
    fn is_idle(&self) -> bool {
        Arc::strong_count(&self.mapping) == 1
    }

    /// Whether the owner has freed it, as an export of `other` shows: its address is in use for
    /// something else, or its process number is.
    fn is_stale(&self, other: &Key, bytes: u64) -> bool {
        let own = &self.key;
        own.context == other.context
            && own.process == other.process
            && (own.start_time != other.start_time
                || (own.buffer != other.buffer
                    && own.base < other.base + bytes
                    && other.base < own.base + self.bytes))
    }
}

/// The mappings, those last used at the end.
static MAPPINGS: Mutex<Vec<Kept>> = Mutex::new(Vec::new());

/// Makes memory of another process reachable in the context that `near` is in, or finds it
/// reachable already. Memory of this process needs no mapping.
///
/// # Errors
///
/// [`Error::NoPeer`]: the driver refuses; go another way then.
pub fn open(driver: &Driver, near: &Pointer, exported: &Exported) -> Result<Remote> {
    if (exported.process, exported.start_time) == own_process() {
        // What names it came from elsewhere.
        let there = Pointer::of(driver, exported.base)?;
        if (there.space, there.buffer) != (Space::Device, exported.buffer) {
            return Err(Error::NoPeer {
                process: exported.process,
                why: "its memory was freed".to_owned(),
            });
        }
        return Ok(Remote {
            mapping: Arc::new(Mapping {
                address: exported.base,
                opened_in: None,
            }),
            offset: exported.offset,
        });
    }
    let (_current, context) = Context::at(driver, near)?;
    let key = Key {
        context: context.id(),
        process: exported.process,
        start_time: exported.start_time,
        base: exported.base,
        buffer: exported.buffer,
    };
    let mut kept = lock(&MAPPINGS);
    if let Some(at) = kept.iter().position(|one| one.key == key) {
        let found = kept.remove(at);
        let mapping = found.mapping.clone();
        kept.push(found);
        return Ok(Remote {
            mapping,
            offset: exported.offset,
        });
    }
    // Those in use are closed by their last user.
    kept.retain(|one| !one.is_stale(&key, exported.bytes));
    while kept.len() >= MOST_IDLE {
        let Some(oldest) = kept.iter().position(Kept::is_idle) else {
            break;
        };
        kept.remove(oldest);
    }
    let mut address = open_handle(driver, exported);
    if address.is_err() && kept.iter().any(Kept::is_idle) {
        // Address space or handles may have run out.
        kept.retain(|one| !one.is_idle());
        address = open_handle(driver, exported);
    }
    let address = address.map_err(|error| Error::NoPeer {
        process: exported.process,
        why: format!(
            "{error} (its GPU is {}, ours {}); processes in other containers cannot always reach each other",
            exported.device,
            context.device().uuid
        ),
    })?;
    let mapping = Arc::new(Mapping {
        address,
        opened_in: Some(context),
    });
    kept.push(Kept {
        key,
        bytes: exported.bytes,
        mapping: mapping.clone(),
    });
    Ok(Remote {
        mapping,
        offset: exported.offset,
    })
}

fn open_handle(driver: &Driver, exported: &Exported) -> Result<u64> {
    /// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`.
    const LAZY_PEER_ACCESS: u32 = 1;
    let mut address = 0;
    // SAFETY: `address` is written to; the driver checks the handle.
    driver.check("cuIpcOpenMemHandle", unsafe {
        (driver.functions.ipc_open_mem_handle)(&raw mut address, exported.handle, LAZY_PEER_ACCESS)
    })?;
    Ok(address)
}

/// Closes the mappings that nobody uses: when a team ends, or a process has died. Says how many are
/// left.
pub fn close_idle() -> usize {
    let mut kept = lock(&MAPPINGS);
    kept.retain(|one| !one.is_idle());
    kept.len()
}

/// A trial of whether another process reaches this one's GPU memory: not all that can be opened can
/// be read (devices in cgroups, GPUs without a path between them).
#[derive(Debug)]
pub struct Probe {
    _memory: Buffer,
    message: [u8; Probe::BYTES],
}

/// Bytes that a [`Probe`] lets the other process read.
const PROBED: usize = 4096;

impl Probe {
    /// Length of [`Probe::message`].
    pub const BYTES: usize = Exported::BYTES + 8;

    /// Offers memory in the context that `near` is in.
    ///
    /// # Errors
    ///
    /// Those of [`export`].
    pub fn offer(driver: &Driver, near: &Pointer) -> Result<Probe> {
        let memory = Buffer::device(driver, near, PROBED)?;
        let (process, start_time) = own_process();
        // Different for each process and each probe.
        let seed = (start_time << 20) ^ (u64::from(process) << 8) ^ memory.address();
        let bytes = pattern(seed);
        // SAFETY: as many bytes on both sides.
        unsafe { copy(driver, memory.address(), bytes.as_ptr() as u64, PROBED) }?;
        let mut message = [0; Probe::BYTES];
        let exported = export(driver, memory.address())?;
        message[..Exported::BYTES].copy_from_slice(&exported.to_bytes());
        message[Exported::BYTES..].copy_from_slice(&seed.to_le_bytes());
        Ok(Probe {
            _memory: memory,
            message,
        })
    }

    /// What the other process calls [`Probe::try_out`] with. The probe must live until it has
    /// answered.
    pub fn message(&self) -> &[u8; Probe::BYTES] {
        &self.message
    }

    /// Reads what another process offers, with the kernels that messages are copied with, into the
    /// context that `near` is in.
    ///
    /// # Errors
    ///
    /// Those of [`open`], [`Error::NoPeer`] if other bytes are read than were written.
    pub fn try_out(driver: &Driver, near: &Pointer, message: &[u8; Probe::BYTES]) -> Result<()> {
        let (mut exported, mut seed) = ([0; Exported::BYTES], [0; 8]);
        exported.copy_from_slice(&message[..Exported::BYTES]);
        seed.copy_from_slice(&message[Exported::BYTES..]);
        let exported = Exported::from_bytes(&exported)?;
        let remote = open(driver, near, &exported)?;
        let memory = Buffer::device(driver, near, PROBED)?;
        let bytes = Datatype::named(Named::Byte);
        let layout = Layout::new(&bytes, PROBED as u64).expect("a few bytes");
        let layout = GpuLayout::new(layout)?;
        let no = |why: String| Error::NoPeer {
            process: exported.process,
            why,
        };
        let mut found = vec![0_u8; PROBED];
        // SAFETY: the other process offers as many bytes, and keeps them until it has an answer.
        let copied = unsafe {
            copy_layout(driver, &layout, memory.address(), &layout, remote.address())
                .and_then(|()| copy(driver, found.as_mut_ptr() as u64, memory.address(), PROBED))
        };
        copied.map_err(|error| no(error.to_string()))?;
        if found != pattern(u64::from_le_bytes(seed)) {
            return Err(no("other bytes are read than were written".to_owned()));
        }
        Ok(())
    }
}

/// By context: the probe that this process offers there, or why it offers none.
type Offered = HashMap<u64, Result<Arc<Probe>>>;

static OFFERED: Mutex<Option<Offered>> = Mutex::new(None);

/// Who has offered a probe, and the context that it was tried out in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Trial {
    context: u64,
    process: u32,
    start_time: u64,
    device: Uuid,
}

/// Trials that are remembered, at most.
const MOST_TRIALS: usize = 4096;

static TRIED: Mutex<Option<HashMap<Trial, Result<()>>>> = Mutex::new(None);

/// The probe that this process offers in the context that `near` is in: always the same one.
///
/// # Errors
///
/// Those of [`export`].
pub fn offered(driver: &Driver, near: &Pointer) -> Result<Arc<Probe>> {
    let context = {
        let (_current, context) = Context::at(driver, near)?;
        context.id()
    };
    let mut offered = lock(&OFFERED);
    offered
        .get_or_insert_default()
        .entry(context)
        .or_insert_with(|| Probe::offer(driver, near).map(Arc::new))
        .clone()
}

/// [`Probe::try_out`], once for each process, each of its GPUs, and each context of ours: `message`
/// gets the [`Probe::message`] of the process that has exported `exported`, on the same GPU.
///
/// # Errors
///
/// Those of [`Probe::try_out`], and those of `message`.
pub fn try_out_once(
    driver: &Driver,
    near: &Pointer,
    exported: &Exported,
    message: impl FnOnce() -> Result<[u8; Probe::BYTES]>,
) -> Result<()> {
    if (exported.process, exported.start_time) == own_process() {
        return Ok(());
    }
    let trial = {
        let (_current, context) = Context::at(driver, near)?;
        Trial {
            context: context.id(),
            process: exported.process,
            start_time: exported.start_time,
            device: exported.device,
        }
    };
    if let Some(known) = lock(&TRIED).get_or_insert_default().get(&trial) {
        return known.clone();
    }
    let answer = message().and_then(|message| Probe::try_out(driver, near, &message));
    let mut tried = lock(&TRIED);
    let tried = tried.get_or_insert_default();
    if tried.len() >= MOST_TRIALS {
        tried.clear();
    }
    tried.insert(trial, answer.clone());
    answer
}

/// Bytes that follow from a number.
fn pattern(seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    (0..PROBED)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 56) as u8
        })
        .collect()
}

/// The GPU that memory is on.
///
/// # Errors
///
/// Memory without a context, a driver that fails.
pub fn device_of(driver: &Driver, memory: &Pointer) -> Result<Device> {
    let (_current, context) = Context::at(driver, memory)?;
    Ok(context.device().clone())
}
