// SPDX-License-Identifier: MIT OR Apache-2.0

//! Packing and unpacking: a layout in any memory, packed bytes in any memory.

use std::collections::HashMap;
use std::ffi::c_void;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use libcopy_datatype::{Layout, memcpy};

use crate::context::{Context, SCRATCH, lock};
use crate::driver::{Driver, Handle};
use crate::error::{Error, Result};
use crate::launch::{Kernel, Launch, Placed};
use crate::memory::{Pointer, Space};
use crate::pending::{Pending, Work};
use crate::plan::Plan;

/// A layout's plan, and where its tables are in the memory of which context.
#[derive(Debug)]
pub struct GpuLayout {
    layout: Layout,
    plan: Plan,
    /// By the context's number.
    tables: Mutex<HashMap<u64, Arc<Tables>>>,
}

/// A plan's tables in the memory of a context.
#[derive(Debug)]
struct Tables {
    address: u64,
    context: Arc<Context>,
}

impl Drop for Tables {
    fn drop(&mut self) {
        // No kernel is using it: who submits one holds this.
        self.context.leave(self.address);
    }
}

/// Most multiprocessors that kernels of this process use; 0: all.
static MULTIPROCESSORS: AtomicU32 = AtomicU32::new(0);

/// Whether copy units are used where they fit.
static COPY_UNITS: AtomicBool = AtomicBool::new(true);

/// Blocks per multiprocessor that hide the latency of memory: 2048 threads.
const BLOCKS_PER_MULTIPROCESSOR: u32 = 8;

/// Lets packing and copying use `count` multiprocessors at most, so that the GPU stays the
/// program's; `None`: all. From then on blocks from 1 KiB are moved by copy units where there are
/// some (compute capability 9.0), which need few multiprocessors.
pub fn limit_multiprocessors(count: Option<u32>) {
    MULTIPROCESSORS.store(count.unwrap_or(0), Ordering::Relaxed);
}

/// Whether a limit on multiprocessors has long blocks moved by copy units; otherwise by threads of
/// as few multiprocessors, to compare with. They are at the start.
pub fn use_copy_units(are_used: bool) {
    COPY_UNITS.store(are_used, Ordering::Relaxed);
}

/// Launches as the limit on multiprocessors wants them.
fn limited(context: &Context, launches: Vec<Launch>) -> Vec<Launch> {
    let most = MULTIPROCESSORS.load(Ordering::Relaxed);
    if most == 0 {
        return launches;
    }
    let can_bulk = context.has(Kernel::CopyBulk) && COPY_UNITS.load(Ordering::Relaxed);
    let within = |launch: Launch| {
        let bulk = launch.as_bulk(most).filter(|_| can_bulk);
        bulk.unwrap_or(Launch {
            blocks: launch.blocks.min(most * BLOCKS_PER_MULTIPROCESSOR),
            ..launch
        })
    };
    launches.into_iter().map(within).collect()
}

impl GpuLayout {
    /// Makes the plan.
    ///
    /// # Errors
    ///
    /// A layout with too many irregular pieces.
    pub fn new(layout: Layout) -> Result<GpuLayout> {
        let plan = Plan::of(&layout)?;
        Ok(GpuLayout {
            layout,
            plan,
            tables: Mutex::default(),
        })
    }

    /// The layout.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The address of the lowest byte of data, since the origin itself may lie elsewhere.
    pub(crate) fn first_byte(&self, origin: u64) -> u64 {
        origin.wrapping_add_signed(self.layout.bounds().start)
    }
}

/// Where the tables of a layout are in a context, which is current; `None` if it has none.
fn tables(
    driver: &Driver,
    context: &Arc<Context>,
    layout: &GpuLayout,
) -> Result<Option<Arc<Tables>>> {
    let bytes = layout.plan.tables();
    if bytes.is_empty() {
        return Ok(None);
    }
    let mut known = lock(&layout.tables);
    if let Some(tables) = known.get(&context.id()) {
        return Ok(Some(tables.clone()));
    }
    let mut address = 0;
    // SAFETY: `address` is written to.
    let code = unsafe { (driver.functions.mem_alloc)(&raw mut address, bytes.len()) };
    driver.check("cuMemAlloc", code)?;
    let tables = Arc::new(Tables {
        address,
        context: context.clone(),
    });
    let stream = context.stream();
    context.copy(driver, address, bytes.as_ptr() as u64, bytes.len(), stream)?;
    context.settle(driver, stream)?;
    known.insert(context.id(), tables.clone());
    Ok(Some(tables))
}

/// Packs a range of a layout's packed stream from `origin`, what its displacements count from, to
/// `packed`. Each may be memory of any [`Space`]. Returns when the bytes are there.
///
/// # Errors
///
/// A range that is not one of the layout's, memory without a context, a driver that fails.
///
/// # Safety
///
/// All bytes of the range are valid for reads in the layout, and for writes at `packed`; they do
/// not overlap.
pub unsafe fn pack(
    driver: &Driver,
    layout: &GpuLayout,
    origin: u64,
    range: Range<u64>,
    packed: u64,
) -> Result<()> {
    let part = Part::new(layout, origin, range, packed, Way::Pack)?;
    move_part(driver, &part, None).map(|_| ())
}

/// Unpacks a range; see [`pack()`].
///
/// # Errors
///
/// Those of [`pack()`], and a layout that has bytes twice in memory that only kernels reach.
///
/// # Safety
///
/// All bytes of the range are valid for writes in the layout, and for reads at `packed`; they do
/// not overlap.
pub unsafe fn unpack(
    driver: &Driver,
    layout: &GpuLayout,
    origin: u64,
    range: Range<u64>,
    packed: u64,
) -> Result<()> {
    let part = Part::new(layout, origin, range, packed, Way::Unpack)?;
    move_part(driver, &part, None).map(|_| ())
}

/// [`pack()`] without waiting, where kernels reach both sides; waits where they do not. Several may
/// be under way.
///
/// # Errors
///
/// Those of [`pack()`].
///
/// # Safety
///
/// As for [`pack()`], until the result is done.
pub unsafe fn start_pack(
    driver: &'static Driver,
    layout: &GpuLayout,
    origin: u64,
    range: Range<u64>,
    packed: u64,
) -> Result<Pending> {
    let part = Part::new(layout, origin, range, packed, Way::Pack)?;
    start(driver, |pending| move_part(driver, &part, Some(pending)))
}

/// [`unpack()`] without waiting; see [`start_pack`].
///
/// # Errors
///
/// Those of [`unpack()`].
///
/// # Safety
///
/// As for [`unpack()`], until the result is done.
pub unsafe fn start_unpack(
    driver: &'static Driver,
    layout: &GpuLayout,
    origin: u64,
    range: Range<u64>,
    packed: u64,
) -> Result<Pending> {
    let part = Part::new(layout, origin, range, packed, Way::Unpack)?;
    start(driver, |pending| move_part(driver, &part, Some(pending)))
}

/// [`start_unpack`] of packed bytes that are there when what is `pending` is done, which then
/// includes this.
///
/// # Errors
///
/// Those of [`unpack()`]; what was pending stays so.
///
/// # Safety
///
/// As for [`start_unpack`].
pub unsafe fn unpack_after(
    pending: &mut Pending,
    layout: &GpuLayout,
    origin: u64,
    range: Range<u64>,
    packed: u64,
) -> Result<()> {
    let part = Part::new(layout, origin, range, packed, Way::Unpack)?;
    let (driver, work) = pending.work();
    move_part(driver, &part, Some(work))
}

/// Copies all bytes of one layout to another, which has at least as many: the receive of a message
/// without packed bytes in between (FALCON-X, section 5.2). Each may be memory of any [`Space`],
/// mapped from another process too. Returns when the bytes are there.
///
/// # Errors
///
/// Those of [`pack()`] and [`unpack()`], [`Error::Range`] if `to` is smaller.
///
/// # Safety
///
/// All bytes are valid for reads and writes; the layouts do not overlap each other.
pub unsafe fn copy_layout(
    driver: &Driver,
    to: &GpuLayout,
    to_origin: u64,
    from: &GpuLayout,
    from_origin: u64,
) -> Result<()> {
    move_layout(driver, (to, to_origin), (from, from_origin), None)
}

/// [`copy_layout`] without waiting, where kernels reach both sides; waits where they do not.
/// Several may be under way.
///
/// # Errors
///
/// Those of [`copy_layout`].
///
/// # Safety
///
/// As for [`copy_layout`], until the result is done.
pub unsafe fn start_copy_layout(
    driver: &'static Driver,
    to: &GpuLayout,
    to_origin: u64,
    from: &GpuLayout,
    from_origin: u64,
) -> Result<Pending> {
    start(driver, |pending| {
        move_layout(driver, (to, to_origin), (from, from_origin), Some(pending))
    })
}

/// One message of an exchange: which bytes of which layout, and where they are packed.
#[derive(Clone, Debug)]
pub struct Message<'a> {
    /// The layout.
    pub layout: &'a GpuLayout,
    /// What its displacements count from.
    pub origin: u64,
    /// The part of its packed stream.
    pub range: Range<u64>,
    /// Where that part is, or is put, packed.
    pub packed: u64,
}

/// Packs many messages, those between memory that kernels reach with one launch per context.
///
/// # Errors
///
/// Those of [`pack()`]; messages before one that fails are packed.
///
/// # Safety
///
/// As for [`pack()`], for each message; none writes what another reads or writes.
pub unsafe fn pack_all(driver: &Driver, messages: &[Message<'_>]) -> Result<()> {
    move_all(driver, messages, Way::Pack)
}

/// Unpacks many messages; see [`pack_all`].
///
/// # Errors
///
/// Those of [`unpack()`]; messages before one that fails are unpacked.
///
/// # Safety
///
/// As for [`unpack()`], for each message; none writes what another reads or writes.
pub unsafe fn unpack_all(driver: &Driver, messages: &[Message<'_>]) -> Result<()> {
    move_all(driver, messages, Way::Unpack)
}

/// Submits a pack to a stream of the program's, in the order of that stream, and returns at once.
/// The stream is one of the context that the memory belongs to.
///
/// # Errors
///
/// Those of [`pack()`], and [`Error::NotReached`] for memory that kernels do not reach.
///
/// # Safety
///
/// As for [`pack()`], until the stream has done it; `stream` is a `CUstream`, and the layout is
/// dropped later than that.
pub unsafe fn pack_on(
    driver: &Driver,
    layout: &GpuLayout,
    origin: u64,
    range: Range<u64>,
    packed: u64,
    stream: *mut c_void,
) -> Result<()> {
    let part = Part::new(layout, origin, range, packed, Way::Pack)?;
    move_part_on(driver, &part, stream)
}

/// Submits an unpack to a stream of the program's; see [`pack_on`].
///
/// # Errors
///
/// Those of [`unpack()`], and [`Error::NotReached`] for memory that kernels do not reach.
///
/// # Safety
///
/// As for [`unpack()`] and [`pack_on`].
pub unsafe fn unpack_on(
    driver: &Driver,
    layout: &GpuLayout,
    origin: u64,
    range: Range<u64>,
    packed: u64,
    stream: *mut c_void,
) -> Result<()> {
    let part = Part::new(layout, origin, range, packed, Way::Unpack)?;
    move_part_on(driver, &part, stream)
}

/// Which way bytes go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Pack,
    Unpack,
}

/// A range of a layout's packed stream, which is not too long, and where both are.
#[derive(Clone)]
struct Part<'a> {
    layout: &'a GpuLayout,
    origin: u64,
    range: Range<u64>,
    packed: u64,
    way: Way,
}

impl<'a> Part<'a> {
    fn new(
        layout: &'a GpuLayout,
        origin: u64,
        range: Range<u64>,
        packed: u64,
        way: Way,
    ) -> Result<Part<'a>> {
        let size = layout.plan.size();
        if range.start > range.end || range.end > size {
            return Err(Error::Range {
                start: range.start,
                end: range.end,
                size,
            });
        }
        Ok(Part {
            layout,
            origin,
            range,
            packed,
            way,
        })
    }

    /// What the driver says of both sides.
    fn pointers(&self, driver: &Driver) -> Result<Sides> {
        let user = Pointer::of(driver, self.layout.first_byte(self.origin))?;
        let flat = Pointer::of(driver, self.packed)?;
        // Bytes that are there twice are written in their order, which only the processor keeps.
        let in_order = self.way == Way::Unpack && !self.layout.plan.is_disjoint();
        Ok(Sides {
            user,
            flat,
            in_order,
        })
    }

    /// What kernels do for a range, packed at `stream`.
    fn launches(&self, tables: u64, range: Range<u64>, stream: u64) -> Result<Vec<Launch>> {
        let place = Placed {
            plan: &self.layout.plan,
            origin: self.origin,
            tables,
        };
        match self.way {
            Way::Pack => Ok(place.pack(range, stream)),
            Way::Unpack => place.unpack(range, stream).ok_or(Error::Overlap),
        }
    }
}

/// Both sides of a [`Part`].
struct Sides {
    user: Pointer,
    flat: Pointer,
    in_order: bool,
}

impl Sides {
    /// Whether the processor does it.
    fn is_for_processor(&self) -> bool {
        self.user.space.is_reached_by_processor() && self.flat.space.is_reached_by_processor()
    }

    /// Whether kernels do it without anything in between.
    fn is_for_kernels(&self) -> bool {
        !self.in_order
            && self.user.space.is_reached_by_kernels()
            && self.flat.space.is_reached_by_kernels()
    }

    /// The memory in whose context it is done.
    fn device(&self) -> &Pointer {
        if self.user.space == Space::Device {
            &self.user
        } else {
            &self.flat
        }
    }
}

fn address_of(tables: Option<&Arc<Tables>>) -> u64 {
    tables.map_or(0, |tables| tables.address)
}

/// Runs `submit`, which fills what it is given if there is something to wait for.
fn start(
    driver: &'static Driver,
    submit: impl FnOnce(&mut Option<Work>) -> Result<()>,
) -> Result<Pending> {
    let mut work = None;
    submit(&mut work)?;
    Ok(Pending::new(driver, work))
}

/// Launches on a stream of the context, which is current. Waits if `pending` is none, and otherwise
/// says there what is to be waited for.
fn submit(
    driver: &Driver,
    context: &Arc<Context>,
    launches: Vec<Launch>,
    kept: Vec<Option<Arc<Tables>>>,
    pending: Option<&mut Option<Work>>,
) -> Result<()> {
    let launches = limited(context, launches);
    let Some(pending) = pending else {
        let stream = context.stream();
        let launched = context.launch_together(driver, &launches, stream);
        // Those before one that failed still use the program's memory.
        let settled = context.settle(driver, stream);
        if let Some(table) = launched? {
            context.give_table(driver, table);
        }
        return settled;
    };
    let (stream, kept) = (|| context.next_stream(), vec![Box::new(kept) as _]);
    Work::submit(driver, context, pending, stream, kept, |stream| {
        context.launch_together(driver, &launches, stream)
    })
}

/// Waits for what was submitted before.
fn after(driver: &Driver, pending: Option<&mut Option<Work>>) -> Result<()> {
    pending.map_or(Ok(()), |work| Work::finish(driver, work))
}

fn move_part(driver: &Driver, part: &Part<'_>, pending: Option<&mut Option<Work>>) -> Result<()> {
    if part.range.is_empty() {
        return Ok(());
    }
    let sides = part.pointers(driver)?;
    if sides.is_for_processor() {
        after(driver, pending)?;
        on_processor(part, &part.range, part.packed);
        return Ok(());
    }
    if sides.in_order && !sides.user.space.is_reached_by_processor() {
        return Err(Error::Overlap);
    }
    let (_current, context) = Context::at(driver, sides.device())?;
    if sides.is_for_kernels() {
        let tables = tables(driver, &context, part.layout)?;
        let launches =
            part.launches(address_of(tables.as_ref()), part.range.clone(), part.packed)?;
        return submit(driver, &context, launches, vec![tables], pending);
    }
    after(driver, pending)?;
    if sides.in_order || !sides.user.space.is_reached_by_kernels() {
        return through_scratch(&context, &part.range, |chunk, scratch| {
            let packed = part.packed + chunk.start;
            let bytes = (chunk.end - chunk.start) as usize;
            let stream = context.stream();
            if part.way == Way::Pack {
                on_processor(part, &chunk.of, scratch);
                let copied = context.copy(driver, packed, scratch, bytes, stream);
                copied.and(context.settle(driver, stream))
            } else {
                let copied = context.copy(driver, scratch, packed, bytes, stream);
                copied.and(context.settle(driver, stream))?;
                on_processor(part, &chunk.of, scratch);
                Ok(())
            }
        });
    }
    let tables = tables(driver, &context, part.layout)?;
    let launched = |range: Range<u64>, scratch: u64| {
        let launches = part.launches(address_of(tables.as_ref()), range, scratch)?;
        submit(driver, &context, launches, Vec::new(), None)
    };
    through_scratch(&context, &part.range, |chunk, scratch| {
        let bytes = (chunk.end - chunk.start) as usize;
        let (host, scratch_bytes) = ((part.packed + chunk.start) as *mut u8, scratch as *mut u8);
        if part.way == Way::Pack {
            launched(chunk.of, scratch)?;
            // SAFETY: pageable memory of the caller, and the scratch memory, which is this thread's
            // for now.
            unsafe { memcpy::copy(host, scratch_bytes, bytes) };
            Ok(())
        } else {
            // SAFETY: as above.
            unsafe { memcpy::copy(scratch_bytes, host, bytes) };
            launched(chunk.of, scratch)
        }
    })
}

fn move_part_on(driver: &Driver, part: &Part<'_>, stream: Handle) -> Result<()> {
    if part.range.is_empty() {
        return Ok(());
    }
    let sides = part.pointers(driver)?;
    if sides.in_order {
        return Err(Error::Overlap);
    }
    for pointer in [&sides.user, &sides.flat] {
        if !pointer.space.is_reached_by_kernels() {
            return Err(Error::NotReached {
                address: pointer.address,
            });
        }
    }
    let (_current, context) = Context::at(driver, sides.device())?;
    let tables = tables(driver, &context, part.layout)?;
    let launches = part.launches(address_of(tables.as_ref()), part.range.clone(), part.packed)?;
    context.launch(driver, &limited(&context, launches), stream)
}

fn move_all(driver: &Driver, messages: &[Message<'_>], way: Way) -> Result<()> {
    let mut groups: Vec<(Pointer, Vec<Part<'_>>)> = Vec::new();
    for message in messages {
        let part = Part::new(
            message.layout,
            message.origin,
            message.range.clone(),
            message.packed,
            way,
        )?;
        if part.range.is_empty() {
            continue;
        }
        let sides = part.pointers(driver)?;
        if sides.is_for_processor() || !sides.is_for_kernels() {
            move_part(driver, &part, None)?;
            continue;
        }
        let device = *sides.device();
        match groups
            .iter_mut()
            .find(|(of, _)| of.context == device.context)
        {
            Some((_, parts)) => parts.push(part),
            None => groups.push((device, vec![part])),
        }
    }
    for (device, parts) in groups {
        let (_current, context) = Context::at(driver, &device)?;
        let (mut launches, mut kept) = (Vec::new(), Vec::new());
        for part in parts {
            let tables = tables(driver, &context, part.layout)?;
            launches.extend(part.launches(
                address_of(tables.as_ref()),
                part.range.clone(),
                part.packed,
            )?);
            kept.push(tables);
        }
        submit(driver, &context, launches, kept, None)?;
    }
    Ok(())
}

fn move_layout(
    driver: &Driver,
    (to, to_origin): (&GpuLayout, u64),
    (from, from_origin): (&GpuLayout, u64),
    pending: Option<&mut Option<Work>>,
) -> Result<()> {
    let size = from.plan.size();
    if size > to.plan.size() {
        return Err(Error::Range {
            start: 0,
            end: size,
            size: to.plan.size(),
        });
    }
    if size == 0 {
        return Ok(());
    }
    let target = Pointer::of(driver, to.first_byte(to_origin))?;
    let source = Pointer::of(driver, from.first_byte(from_origin))?;
    let is_for_processor =
        target.space.is_reached_by_processor() && source.space.is_reached_by_processor();
    let is_for_kernels = target.space.is_reached_by_kernels()
        && source.space.is_reached_by_kernels()
        && to.plan.is_disjoint();
    if is_for_processor || !is_for_kernels {
        return through_packed(driver, (to, to_origin), (from, from_origin));
    }
    // The receiver reads the sender's memory.
    let device = if target.space == Space::Device {
        target
    } else {
        source
    };
    let (_current, context) = Context::at(driver, &device)?;
    let kept = vec![
        tables(driver, &context, to)?,
        tables(driver, &context, from)?,
    ];
    let placed = |layout, origin, which: usize| Placed {
        plan: layout,
        origin,
        tables: address_of(kept[which].as_ref()),
    };
    let launches = placed(&to.plan, to_origin, 0)
        .copy_from(&placed(&from.plan, from_origin, 1))
        .ok_or(Error::Overlap)?;
    submit(driver, &context, launches, kept, pending)
}

/// Copies between layouts by way of packed bytes in host memory.
fn through_packed(
    driver: &Driver,
    (to, to_origin): (&GpuLayout, u64),
    (from, from_origin): (&GpuLayout, u64),
) -> Result<()> {
    let size = from.plan.size();
    let mut packed = vec![0_u8; size.min(SCRATCH as u64) as usize];
    let at = packed.as_mut_ptr() as u64;
    let mut start = 0;
    while start < size {
        let range = start..(start + SCRATCH as u64).min(size);
        let part = Part::new(from, from_origin, range.clone(), at, Way::Pack)?;
        move_part(driver, &part, None)?;
        let part = Part::new(to, to_origin, range.clone(), at, Way::Unpack)?;
        move_part(driver, &part, None)?;
        start = range.end;
    }
    Ok(())
}

/// A part of a range that fits into the scratch memory.
struct Chunk {
    /// From the first byte of the range.
    start: u64,
    end: u64,
    /// In the packed stream.
    of: Range<u64>,
}

/// Goes through a range in chunks that fit into the context's scratch memory.
fn through_scratch(
    context: &Context,
    range: &Range<u64>,
    mut each: impl FnMut(Chunk, u64) -> Result<()>,
) -> Result<()> {
    let scratch = context.scratch();
    let mut start = 0;
    let bytes = range.end - range.start;
    while start < bytes {
        let end = (start + SCRATCH as u64).min(bytes);
        let of = range.start + start..range.start + end;
        each(Chunk { start, end, of }, *scratch)?;
        start = end;
    }
    Ok(())
}

/// Packs or unpacks a range, packed at `packed`, where the processor reaches both sides.
fn on_processor(part: &Part<'_>, range: &Range<u64>, packed: u64) {
    let layout = &part.layout.layout;
    let bounds = layout.bounds();
    let low = part.origin.wrapping_add_signed(bounds.start) as *mut u8;
    let len = (bounds.end - bounds.start) as usize;
    let bytes = (range.end - range.start) as usize;
    // SAFETY: the caller's promise: the bytes of the layout are valid. Between them there may be
    // others, which are neither read nor written.
    let moved = unsafe {
        match part.way {
            Way::Pack => layout.pack_range(
                std::slice::from_raw_parts(low, len),
                -bounds.start as isize,
                range.start,
                std::slice::from_raw_parts_mut(packed as *mut u8, bytes),
            ),
            Way::Unpack => layout.unpack_range(
                std::slice::from_raw_parts(packed as *const u8, bytes),
                range.start,
                std::slice::from_raw_parts_mut(low, len),
                -bounds.start as isize,
            ),
        }
    };
    moved.expect("the range was checked");
}
