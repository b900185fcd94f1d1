// SPDX-License-Identifier: GPL-2.0

//! [`Engine`]: what moves bytes without the caller, and the list of all that there are.
//!
//! The free channels of dmaengine are listed without being acquired; a channel is acquired when the
//! first request needs it, and given back when the module or the device goes. The functions of one
//! PCI slot are one engine. With the parameter `engine=kthread` there is one engine per NUMA node
//! that is a kernel thread.
//!
//! # Lock order of engines, channels and requests
//!
//! 0. `CHANGES`, which only who makes the list anew holds, while channels are stopped and threads started
//! 1. `ENGINES`, the list of engines: nothing is waited for under it
//! 2. `Engine::channels`
//! 3. `Channel::held`, one at a time
//! 4. `Engine::devices`
//! 5. `DmaDevice::maps`
//! 6. `LEAVING`, `Requests::slots`, dmaengine's own list of devices: nothing of ours is locked under them
//! 7. `Channel::queue` and `Request::wait_lock`, which callbacks take; see channel.rs
//!
//! A device's unbind ([`device_leaves`]) takes them in the same order. It comes with the device locked,
//! so that nobody waits for a device's lock with one of these held. None of them is held while another
//! bus is put under watch, because that waits for notifiers, which take them.
//!
//! # A device that leaves
//!
//! The notifier first notes the device in `LEAVING`, then stops its channels one by one (`held`), then
//! takes back what is mapped for it. Who acquires a channel first says whose it is (`held`), then looks
//! at `LEAVING`, and gives it back if its device is there. So one of the two sees the other.

use crate::channel::{self, Channel};
use crate::dma::{self, Choice, DmaDevice, Hardware, Info, Thread, Watching};
use crate::irqlock::{self, IrqLock};
use crate::member::Member;
use crate::request::Request;
use crate::uapi::{self, ENGINE_DMA, ENGINE_KTHREAD, NODE_ANY};
use kernel::bindings;
use kernel::ffi::{c_int, c_void};
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Full, Relaxed};
use kernel::sync::{new_mutex, Arc, CondVar, Mutex};
use kernel::{c_str, static_lock_class};

/// Channels that are looked at; a machine with more does not need them.
const MAX_CHANNELS: usize = 512;

/// Milliseconds without work after which the supervisor sleeps until it is called.
const DOZE_AFTER: i64 = 2_000;

/// A group of channels that are alike and close to each other.
#[pin_data]
pub(crate) struct Engine {
    kind: u32,
    key: u64,
    node: i32,
    alignment: u32,
    driver: [u8; 24],
    device: [u8; 32],
    max_transfer: Atomic<u64>,
    fragments: Atomic<u64>,
    bytes: Atomic<u64>,
    /// Counts the processes that were given a channel.
    next: Atomic<u32>,
    #[pin]
    channels: Mutex<KVec<Arc<Channel>>>,
    /// Devices of the channels that were acquired.
    #[pin]
    devices: Mutex<KVec<Arc<DmaDevice>>>,
}

kernel::sync::global_lock! {
    // SAFETY: Initialised in the module's init before the device is registered.
    unsafe(uninit) static ENGINES: Mutex<Engines> = Engines {
        list: KVec::new(),
        applied: None,
    };
}

/// Devices that are losing their drivers, by address.
struct Leaving {
    devices: KVec<usize>,
    /// Those that there was no memory to note: as long as there are any, every device may be one.
    unknown: usize,
}

kernel::sync::global_lock! {
    // SAFETY: Initialised in the module's init before the device is registered.
    unsafe(uninit) static LEAVING: Mutex<Leaving> = Leaving {
        devices: KVec::new(),
        unknown: 0,
    };
}

impl Leaving {
    /// Whether the device or a part of it is known to be losing its driver.
    fn has(&self, device: &DmaDevice) -> bool {
        self.devices
            .iter()
            .any(|dev| device.contains(*dev as *mut bindings::device))
    }
}

/// Whether the device or a part of it may be losing its driver just now.
pub(crate) fn is_leaving(device: &DmaDevice) -> bool {
    let leaving = LEAVING.lock();
    leaving.unknown != 0 || leaving.has(device)
}

struct Engines {
    list: KVec<Arc<Engine>>,
    /// The choice that the list was made for.
    applied: Option<Choice>,
}

/// Shortens a name to fit, ended by a zero.
fn name<const N: usize>(text: &[u8]) -> [u8; N] {
    let mut name = [0; N];
    let len = usize::min(text.len(), N - 1);
    name[..len].copy_from_slice(&text[..len]);
    name
}

impl Engine {
    fn new(kind: u32, info: &Info) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                kind,
                key: info.engine,
                node: info.node,
                alignment: u32::max(info.alignment, 1),
                driver: info.driver,
                device: info.device,
                max_transfer: Atomic::new(u64::max(info.max_transfer, 64)),
                fragments: Atomic::new(0),
                bytes: Atomic::new(0),
                next: Atomic::new(0),
                channels <- new_mutex!(KVec::new()),
                devices <- new_mutex!(KVec::new()),
            }),
            GFP_KERNEL,
        )
    }

    /// Whether the work is done by a kernel thread.
    pub(crate) fn is_thread(&self) -> bool {
        self.kind == ENGINE_KTHREAD
    }

    /// What addresses and lengths must be multiples of.
    pub(crate) fn alignment(&self) -> u64 {
        self.alignment.into()
    }

    /// Bytes per descriptor.
    pub(crate) fn max_transfer(&self) -> u64 {
        self.max_transfer.load(Relaxed)
    }

    /// The driver has no descriptors of `len` bytes: the next ones are shorter. Returns whether they
    /// can be.
    pub(crate) fn refused(&self, len: usize) -> bool {
        let shorter = u64::max(len as u64 / 2, 4096);
        if shorter < len as u64 {
            let _ = self.max_transfer.cmpxchg(len as u64, shorter, Full);
        }
        shorter < len as u64
    }

    /// A fragment was moved.
    pub(crate) fn moved(&self, bytes: u64) {
        self.fragments.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
    }

    /// Name of the driver.
    pub(crate) fn driver(&self) -> &str {
        let len = self.driver.iter().position(|byte| *byte == 0);
        core::str::from_utf8(&self.driver[..len.unwrap_or(0)]).unwrap_or("?")
    }

    /// The device of a channel of this engine, which others may share.
    pub(crate) fn device_of(&self, hardware: &Hardware) -> Result<Arc<DmaDevice>> {
        let mut devices = self.devices.lock();
        if let Some(known) = devices.iter().find(|known| known.is(hardware)) {
            return Ok(known.clone());
        }
        let device = DmaDevice::new(hardware)?;
        devices.push(device.clone(), GFP_KERNEL)?;
        Ok(device)
    }

    /// Takes back what is mapped for devices that no channel uses any more.
    fn leave_devices(&self, which: impl Fn(&DmaDevice) -> bool) {
        loop {
            let device = {
                let mut devices = self.devices.lock();
                let index = devices.iter().position(|device| which(device));
                index.and_then(|index| devices.remove(index).ok())
            };
            // Without the lock, because that waits for those who use what is mapped.
            match device {
                Some(device) => device.leave(),
                None => return,
            }
        }
    }

    /// Takes back what is mapped for a device if it is losing its driver: its notifier may have come
    /// before the device was known.
    pub(crate) fn leave_device(&self, device: &Arc<DmaDevice>) {
        if LEAVING.lock().has(device) {
            self.leave_devices(|known| core::ptr::eq(known, &**device));
        }
    }

    /// The channel of this number, for going through them without a lock; they only ever grow.
    fn channel(&self, index: usize) -> Option<Arc<Channel>> {
        self.channels.lock().get(index).cloned()
    }

    fn each_channel(&self) -> impl Iterator<Item = Arc<Channel>> + '_ {
        (0..).map_while(|index| self.channel(index))
    }

    fn add(self: &Arc<Self>, key: u64) -> Result {
        let known = |channels: &[Arc<Channel>]| channels.iter().any(|known| known.key() == key);
        if known(&self.channels.lock()) {
            return Ok(());
        }
        let channel = Channel::new(self, key)?;
        self.channels.lock().push(channel, GFP_KERNEL)?;
        Ok(())
    }

    /// Gives everything back. Devices are left when all their channels are quiet.
    fn stop(&self) {
        for channel in self.each_channel() {
            channel.stop();
        }
        self.leave_devices(|_| true);
    }

    /// Describes itself.
    fn info(&self, index: u32) -> uapi::EngineInfo {
        let mut info = uapi::EngineInfo {
            index,
            kind: self.kind,
            node: self.node,
            alignment: self.alignment,
            max_transfer: self.max_transfer(),
            fragments: self.fragments.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            driver: self.driver,
            device: self.device,
            ..Default::default()
        };
        for channel in self.channels.lock().iter() {
            if channel.is_gone() {
                continue;
            }
            let (acquired, out) = channel.condition();
            info.channels += 1;
            info.acquired += u32::from(acquired);
            info.out_of_service += u32::from(out);
        }
        info
    }
}

kernel::sync::global_lock! {
    // SAFETY: Initialised in the module's init before the device is registered.
    unsafe(uninit) static CHANGES: Mutex<()> = ();
}

/// Makes the list what the parameter and the machine say. With `look`, looks for devices that came or
/// went.
///
/// Who finds the parameter changed makes the change or waits for who does. Everybody else, and the
/// supervisor, goes on with the list as it is: channels take long to stop.
fn update(look: bool) -> Result {
    let choice = dma::choice();
    let is_applied = || ENGINES.lock().applied == Some(choice);
    if is_applied() {
        return match look && choice == Choice::Auto {
            true => ENGINES.lock().find_channels(),
            false => Ok(()),
        };
    }
    let _changes = CHANGES.lock();
    if is_applied() {
        return Ok(());
    }
    for engine in each_engine() {
        if engine.is_thread() != (choice == Choice::Kthread) || choice == Choice::Off {
            engine.stop();
        }
    }
    match choice {
        Choice::Auto => ENGINES.lock().find_channels()?,
        Choice::Kthread => start_threads()?,
        Choice::Off => {}
    }
    ENGINES.lock().applied = Some(choice);
    Ok(())
}

/// Starts a thread per NUMA node. The caller holds `CHANGES`.
fn start_threads() -> Result {
    for node in dma::nodes() {
        let engine = ENGINES.lock().thread_of(node)?;
        for channel in engine.each_channel() {
            Channel::start_thread(&channel, node)?;
        }
    }
    Ok(())
}

impl Engines {
    fn find_channels(&mut self) -> Result {
        let mut found = KVVec::with_capacity(MAX_CHANNELS, GFP_KERNEL)?;
        // Nothing is accepted, so that nothing is acquired; all free channels are offered.
        let none = Hardware::request(|info| {
            let _ = found.push_within_capacity(*info);
            false
        });
        drop(none);
        for info in &found {
            let engine = self
                .list
                .iter()
                .find(|engine| {
                    engine.kind == ENGINE_DMA
                        && engine.key == info.engine
                        && engine.node == info.node
                        && engine.driver == info.driver
                })
                .cloned();
            let engine = match engine {
                Some(engine) => engine,
                None => {
                    let engine = Engine::new(ENGINE_DMA, info)?;
                    self.list.push(engine.clone(), GFP_KERNEL)?;
                    engine
                }
            };
            engine.add(info.channel)?;
        }
        for engine in self.list.iter().filter(|engine| !engine.is_thread()) {
            for channel in engine.channels.lock().iter() {
                channel.offered(found.iter().any(|info| info.channel == channel.key()));
            }
        }
        Ok(())
    }

    /// The engine that is a thread of a NUMA node.
    fn thread_of(&mut self, node: i32) -> Result<Arc<Engine>> {
        let mut threads = self.list.iter().filter(|engine| engine.is_thread());
        let engine = match threads.find(|engine| engine.node == node) {
            Some(known) => known.clone(),
            None => {
                let info = Info {
                    engine: node as u64,
                    channel: node as u64,
                    max_transfer: u64::MAX,
                    alignment: 1,
                    node,
                    driver: name(b"libcopy"),
                    device: name(b"kthread"),
                };
                let engine = Engine::new(ENGINE_KTHREAD, &info)?;
                self.list.push(engine.clone(), GFP_KERNEL)?;
                engine
            }
        };
        engine.add(node as u64)?;
        Ok(engine)
    }
}

/// Number of engines, after looking for them.
pub(crate) fn count() -> u32 {
    // What cannot be listed for want of memory is not there.
    let _ = update(true);
    ENGINES.lock().list.len() as u32
}

/// Performs [`uapi::ENGINE_INFO`].
pub(crate) fn info(index: u32) -> Result<uapi::EngineInfo> {
    update(true)?;
    let engine = engine(index as usize).ok_or(ENOENT)?;
    Ok(engine.info(index))
}

/// Chooses an engine for a request, and the channel of it that the process was given.
///
/// - `ENODEV`: there is none, or none on this node.
pub(crate) fn choose(member: &Member, node: i32) -> Result<(u32, Arc<Channel>)> {
    let look = ENGINES.lock().list.is_empty();
    update(look)?;
    let engines = ENGINES.lock();
    let wanted = match node {
        NODE_ANY => dma::current_node(),
        node => node,
    };
    // The near ones first; a channel out of service is better than none, because it comes back.
    let mut best: Option<(u32, usize)> = None;
    for (index, engine) in engines.list.iter().enumerate() {
        let near = engine.node == wanted;
        if !near && node != NODE_ANY {
            continue;
        }
        let channels = engine.channels.lock();
        let live = channels.iter().any(|channel| !channel.is_gone());
        let works = channels.iter().any(|channel| channel.usable());
        if !live {
            continue;
        }
        let rank = u32::from(works) * 2 + u32::from(near) + 1;
        if best.is_none_or(|(other, _)| rank > other) {
            best = Some((rank, index));
        }
    }
    let (_, index) = best.ok_or(ENODEV)?;
    let engine = engines.list[index].clone();
    drop(engines);
    let start = member.channel_of(index, || engine.next.fetch_add(1, Relaxed) as usize);
    let channels = engine.channels.lock();
    // Channels that are gone or out of service take no part in the round-robin, or two processes
    // would share one while another has nothing to do.
    let pick = |test: fn(&Channel) -> bool| {
        let fit = || channels.iter().filter(|channel| test(channel));
        let turn = start.checked_rem(fit().count())?;
        fit().nth(turn)
    };
    let chosen = pick(|channel| channel.usable()).or_else(|| pick(|channel| !channel.is_gone()));
    let chosen = chosen.cloned().ok_or(ENODEV)?;
    Ok((index as u32, chosen))
}

/// Gives a request whose channel does not work any more to another one of the same engine, or of its
/// node. May sleep, and is called without locks.
///
/// - `ENODEV`: there is none.
pub(crate) fn pass_on(request: &Arc<Request>) -> Result {
    let found = {
        let engines = ENGINES.lock();
        let first = request.engine() as usize;
        let node = engines.list.get(first).ok_or(ENODEV)?.node;
        let (own, others) = (first..first + 1, 0..engines.list.len());
        // The engine itself first; that it comes again among the others does no harm.
        Iterator::chain(own, others).find_map(|index| {
            let engine: &Arc<Engine> = &engines.list[index];
            if engine.node != node {
                return None;
            }
            let channels = engine.channels.lock();
            let fit = || channels.iter().filter(|channel| channel.usable());
            let turn = engine.next.fetch_add(1, Relaxed) as usize;
            let channel = fit().nth(turn.checked_rem(fit().count())?)?;
            Some((index, channel.clone()))
        })
    };
    let (index, channel) = found.ok_or(ENODEV)?;
    request.set_engine(index as u32);
    Channel::try_submit(&channel, request)
}

/// The engine of this number, for going through them without the lock; they only ever grow.
fn engine(index: usize) -> Option<Arc<Engine>> {
    ENGINES.lock().list.get(index).cloned()
}

/// All engines, without the lock.
fn each_engine() -> impl Iterator<Item = Arc<Engine>> {
    (0..).map_while(engine)
}

/// The engines that are no threads.
fn hardware_engines() -> impl Iterator<Item = Arc<Engine>> {
    each_engine().filter(|engine| !engine.is_thread())
}

/// A device is about to lose its driver, or has lost it (`gone`).
unsafe extern "C" fn device_leaves(dev: *mut bindings::device, gone: bool) {
    if gone {
        let mut leaving = LEAVING.lock();
        match leaving
            .devices
            .iter()
            .position(|known| *known == dev as usize)
        {
            Some(index) => drop(leaving.devices.remove(index)),
            // Not noted for want of memory; or its beginning was not heard, because the bus came under
            // watch in between.
            None => leaving.unknown = leaving.unknown.saturating_sub(1),
        }
        return;
    }
    {
        let mut leaving = LEAVING.lock();
        if leaving.devices.push(dev as usize, GFP_KERNEL).is_err() {
            leaving.unknown += 1;
        }
    }
    // No lock is held from one step to the next: a channel that is being acquired holds its own for
    // long, and takes others under it.
    for engine in hardware_engines() {
        let mut concerned = false;
        for channel in engine.each_channel() {
            concerned |= channel.leave(dev);
        }
        if concerned {
            engine.leave_devices(|device| device.contains(dev));
        }
    }
}

struct Calls {
    called: bool,
    stop: bool,
}

/// Watches over the channels.
#[pin_data]
struct Supervisor {
    #[pin]
    calls: IrqLock<Calls>,
    #[pin]
    changed: CondVar,
    /// Whether it sleeps until it is called.
    dozing: Atomic<u32>,
    #[pin]
    thread: Mutex<Option<Thread>>,
}

static SUPERVISOR: Atomic<*const Supervisor> = Atomic::new(core::ptr::null());

impl Supervisor {
    fn call(&self) {
        self.calls.lock().called = true;
        self.changed.notify_all();
    }

    unsafe extern "C" fn body(data: *mut c_void) -> c_int {
        // SAFETY: `start_supervisor` passed the supervisor, which outlives its thread.
        let this = unsafe { &*data.cast::<Self>() };
        let mut idle = 0i64;
        loop {
            let tick = i64::clamp(channel::deadline() / 4_000_000, 5, 250);
            {
                let mut calls = this.calls.lock();
                while !calls.called && !calls.stop {
                    if idle > DOZE_AFTER {
                        this.dozing.xchg(1, Full);
                        // What was submitted before that did not call; so look once more.
                        if this.dozing.load(Relaxed) == 1 && idle != i64::MAX {
                            idle = i64::MAX;
                            break;
                        }
                        let _ = this.changed.wait_interruptible(&mut calls);
                    } else {
                        let jiffies = kernel::time::msecs_to_jiffies(tick as u32);
                        let _ = this.changed.wait_interruptible_timeout(&mut calls, jiffies);
                        break;
                    }
                }
                if calls.stop {
                    return 0;
                }
                if calls.called {
                    idle = 0;
                }
                calls.called = false;
            }
            let mut busy = false;
            for engine in hardware_engines() {
                for channel in engine.each_channel() {
                    busy |= channel.attend();
                }
            }
            if busy {
                this.dozing.store(0, Relaxed);
                idle = 0;
            } else if idle != i64::MAX {
                idle += tick;
            }
        }
    }
}

/// Calls the supervisor. Does not sleep.
pub(crate) fn wake_supervisor() {
    // SAFETY: Set while the module is loaded; channels are stopped before it is taken back.
    if let Some(supervisor) = unsafe { SUPERVISOR.load(Relaxed).as_ref() } {
        supervisor.call();
    }
}

/// Calls the supervisor if it sleeps for longer than a deadline. Does not sleep.
pub(crate) fn wake_supervisor_if_dozing() {
    // SAFETY: As above.
    if let Some(supervisor) = unsafe { SUPERVISOR.load(Relaxed).as_ref() } {
        if supervisor.dozing.load(Relaxed) != 0 && supervisor.dozing.xchg(0, Full) != 0 {
            supervisor.call();
        }
    }
}

/// Starts the supervisor's thread if it does not run yet.
pub(crate) fn start_supervisor() -> Result {
    // SAFETY: As above; the caller runs on behalf of an open file.
    let supervisor = unsafe { SUPERVISOR.load(Relaxed).as_ref() }.ok_or(ENODEV)?;
    let mut thread = supervisor.thread.lock();
    if thread.is_none() {
        let data: *mut c_void = core::ptr::from_ref(supervisor).cast_mut().cast();
        // SAFETY: The thread is stopped when the guard is dropped, before the supervisor goes.
        *thread =
            Some(unsafe { Thread::run(Supervisor::body, data, -1, c_str!("libcopy/supervisor")) }?);
    }
    Ok(())
}

/// Keeps the engines; dropping it gives everything back.
pub(crate) struct Guard {
    supervisor: Pin<KBox<Supervisor>>,
    watching: Option<Watching>,
}

/// Prepares the list of engines; nothing is looked for yet.
///
/// # Safety
///
/// Called once, before the device is registered.
pub(crate) unsafe fn init() -> Result<Guard> {
    // SAFETY: The caller's promise.
    unsafe { ENGINES.init() };
    // SAFETY: As above.
    unsafe { CHANGES.init() };
    // SAFETY: As above.
    unsafe { LEAVING.init() };
    let supervisor = KBox::pin_init(
        pin_init!(Supervisor {
            calls <- irqlock::new(
                Calls {
                    called: false,
                    stop: false,
                },
                c_str!("libcopy::Supervisor::calls"),
                static_lock_class!(),
            ),
            changed <- CondVar::new(c_str!("libcopy::Supervisor::changed"), static_lock_class!()),
            dozing: Atomic::new(0),
            thread <- new_mutex!(None),
        }),
        GFP_KERNEL,
    )?;
    SUPERVISOR.store(core::ptr::from_ref(&*supervisor), Relaxed);
    Ok(Guard {
        supervisor,
        watching: Some(Watching::start(device_leaves)?),
    })
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Waits for notifiers under way, so that nobody but us uses the list afterwards.
        self.watching = None;
        self.supervisor.calls.lock().stop = true;
        self.supervisor.changed.notify_all();
        let thread = self.supervisor.thread.lock().take();
        drop(thread);
        LEAVING.lock().devices = KVec::new();
        let list = core::mem::take(&mut ENGINES.lock().list);
        for engine in &list {
            engine.stop();
        }
        SUPERVISOR.store(core::ptr::null(), Relaxed);
        // The engine and its channels refer to each other.
        for engine in &list {
            let channels = core::mem::take(&mut *engine.channels.lock());
            drop(channels);
        }
    }
}
