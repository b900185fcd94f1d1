// SPDX-License-Identifier: GPL-2.0

//! The list of all engines, which of them works on a request, and what becomes of them.
//!
//! The free channels of dmaengine are listed without being acquired; a channel is acquired when the
//! first request needs it, and given back when the module or the device goes. The supervisor does
//! both ([`supervisor`]). The functions of one PCI slot are one engine. With the parameter
//! `engine=kthread` there is one engine per NUMA node that is a kernel thread.
//!
//! # Lock order of engines, channels and requests
//!
//! 1. `ENGINES`, the list of engines and their channels: nothing is waited for under it, and no
//!    driver or function of dmaengine is called
//! 2. `Channel::held`, one at a time, by the supervisor, by notifiers and when the module goes:
//!    drivers are called under it
//! 3. `Engine::devices`
//! 4. `DmaDevice::maps`
//! 5. `LEAVING` (leaving.rs), the slots of slots.rs, dmaengine's own list of devices: nothing of
//!    ours is locked under them
//! 6. `Channel::queue` and `Request::wait_lock`, which callbacks take; see channel.rs
//!
//! A device's unbind ([`device_leaves`]) takes them in the same order. It comes with the device
//! locked, so that nobody waits for a device's lock with one of these held. None of them is held
//! while another bus is put under watch, because that waits for notifiers, which take them.

use crate::abstractions::shim;
use crate::base::params::{self, EngineChoice};
use crate::domain::member::Member;
use crate::engine::channel::Channel;
use crate::engine::dmaengine::{Hardware, Info, Watching};
use crate::engine::facts::Engine;
use crate::engine::leaving;
use crate::engine::supervisor;
use crate::requests::job::Job;
use crate::requests::request::Request;
use crate::uapi::{self, ENGINE_DMA, ENGINE_KTHREAD};
use kernel::bindings;
use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic, Full, Relaxed, Release};
use kernel::sync::Arc;

/// Channels that are looked at; a machine with more does not need them.
const MAX_CHANNELS: usize = 512;

/// Channels that most machines do not have more of: room for these is made without asking how many
/// there are.
const FEW_CHANNELS: usize = 16;

/// An engine with its channels.
struct Entry {
    engine: Arc<Engine>,
    channels: KVec<Arc<Channel<Request>>>,
}

struct Engines {
    list: KVec<Entry>,
    /// The choice that the list was made for.
    applied: Option<EngineChoice>,
}

kernel::sync::global_lock! {
    // SAFETY: Initialised in the module's init before the device is registered.
    unsafe(uninit) static ENGINES: Mutex<Engines> = Engines {
        list: KVec::new(),
        applied: None,
    };
}

/// Shortens a name to fit, ended by a zero.
fn name<const N: usize>(text: &[u8]) -> [u8; N] {
    let mut name = [0; N];
    let len = usize::min(text.len(), N - 1);
    name[..len].copy_from_slice(&text[..len]);
    name
}

/// How many times somebody asked for a look at what channels there are, and how many of those the
/// supervisor has answered.
static LOOKS: Atomic<u64> = Atomic::new(0);
static LOOKED: Atomic<u64> = Atomic::new(0);

/// Not 0 while the machine is about to sleep, or asleep.
static SLEEPING: Atomic<u32> = Atomic::new(0);

/// Who is to work on requests now: what the parameter says, and nobody while the machine sleeps.
fn choice() -> EngineChoice {
    match SLEEPING.load(Acquire) {
        0 => params::engine(),
        _ => EngineChoice::Off,
    }
}

fn is_applied() -> bool {
    ENGINES.lock().applied == Some(choice())
}

/// Has the list made what the parameter and the machine say. With `look`, looks for devices that
/// came or went.
///
/// - `ENOMEM`: it could not be made.
/// - `EINTR`: the caller is killed.
fn update(look: bool) -> Result {
    if !is_applied() {
        supervisor::wait_for(is_applied)?;
    }
    if look && choice() == EngineChoice::Auto {
        let ours = LOOKS.fetch_add(1, Full) + 1;
        // Nobody looks once the parameter has changed, or the machine is about to sleep.
        let is_done = || choice() != EngineChoice::Auto || LOOKED.load(Acquire) >= ours;
        supervisor::wait_for(is_done)?;
    }
    Ok(())
}

/// Makes the list what `choice` says. Only the supervisor does.
fn apply(choice: EngineChoice) -> Result {
    // Until it is made, the list is for no choice: what fails is tried again.
    ENGINES.lock().applied = None;
    for (index, engine) in each_engine().enumerate() {
        if engine.is_thread() != (choice == EngineChoice::Kthread) || choice == EngineChoice::Off {
            stop(&engine, each_channel(index));
        }
    }
    match choice {
        EngineChoice::Auto => find_channels()?,
        EngineChoice::Kthread => start_threads()?,
        EngineChoice::Off => {}
    }
    ENGINES.lock().applied = Some(choice);
    Ok(())
}

/// Starts a thread per NUMA node.
fn start_threads() -> Result {
    for node in shim::nodes() {
        let channel = ENGINES.lock().thread_of(node)?;
        Channel::start_thread(&channel, node)?;
    }
    Ok(())
}

/// Lists the channels that dmaengine offers. Only the supervisor does: it waits for dmaengine's
/// mutex, under which drivers give channels away.
fn find_channels() -> Result {
    let asked = LOOKS.load(Acquire);
    let found = free_channels()?;
    ENGINES.lock().merge(&found)?;
    LOOKED.store(asked, Release);
    Ok(())
}

/// The channels that dmaengine offers. None is acquired, since none is accepted.
fn free_channels() -> Result<KVVec<Info>> {
    let mut room = FEW_CHANNELS;
    loop {
        let mut found = KVVec::with_capacity(room, GFP_KERNEL)?;
        let mut offered = 0;
        let none = Hardware::request(|info| {
            offered += 1;
            let _ = found.push_within_capacity(*info);
            false
        });
        drop(none);
        if offered <= room || room == MAX_CHANNELS {
            return Ok(found);
        }
        room = usize::min(offered, MAX_CHANNELS);
    }
}

impl Engines {
    /// Adds the engines and channels of `found`; channels that are not in it are not offered.
    fn merge(&mut self, found: &[Info]) -> Result {
        for info in found {
            let known = self.list.iter().position(|entry| entry.engine.has(info));
            let index = match known {
                Some(index) => index,
                None => self.add_engine(ENGINE_DMA, info)?,
            };
            self.list[index].add_channel(info.channel)?;
        }
        for entry in self.list.iter().filter(|entry| !entry.engine.is_thread()) {
            for channel in &entry.channels {
                channel.offered(found.iter().any(|info| channel.is(info)));
            }
        }
        Ok(())
    }

    /// The channel of the engine that is a thread of a NUMA node.
    fn thread_of(&mut self, node: i32) -> Result<Arc<Channel<Request>>> {
        let mut engines = self.list.iter().map(|entry| &entry.engine);
        let known = engines.position(|engine| engine.is_thread() && engine.node == node);
        let index = match known {
            Some(index) => index,
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
                self.add_engine(ENGINE_KTHREAD, &info)?
            }
        };
        self.list[index].add_channel(node as u64)?;
        self.list[index].channels.first().cloned().ok_or(ENOMEM)
    }

    fn add_engine(&mut self, kind: u32, info: &Info) -> Result<usize> {
        let entry = Entry {
            engine: Engine::new(kind, info)?,
            channels: KVec::new(),
        };
        self.list.push(entry, GFP_KERNEL)?;
        Ok(self.list.len() - 1)
    }
}

impl Entry {
    fn add_channel(&mut self, key: u64) -> Result {
        if !self.channels.iter().any(|known| known.key() == key) {
            let channel = Channel::new(&self.engine, key)?;
            self.channels.push(channel, GFP_KERNEL)?;
        }
        Ok(())
    }

    /// Describes the engine.
    fn info(&self, index: u32) -> uapi::EngineInfo {
        let mut info = self.engine.info(index);
        for channel in &self.channels {
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

/// Gives everything back. Devices are left when all their channels are quiet.
fn stop(engine: &Engine, channels: impl Iterator<Item = Arc<Channel<Request>>>) {
    for channel in channels {
        channel.stop();
    }
    engine.leave_devices(|_| true);
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
    let engines = ENGINES.lock();
    let entry = engines.list.get(index as usize).ok_or(ENOENT)?;
    Ok(entry.info(index))
}

/// Chooses an engine for a request, and the channel of it that the process was given.
///
/// - `ENODEV`: there is none.
pub(crate) fn choose(member: &Member) -> Result<(u32, Arc<Channel<Request>>)> {
    let look = ENGINES.lock().list.is_empty();
    update(look)?;
    let engines = ENGINES.lock();
    let here = shim::current_node();
    // The near ones first; a channel out of service is better than none, because it comes back.
    let mut best: Option<(u32, usize)> = None;
    for (index, entry) in engines.list.iter().enumerate() {
        let near = entry.engine.node == here;
        let channels = &entry.channels;
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
    let engine = engines.list[index].engine.clone();
    drop(engines);
    let start = member.channel_of(index, || engine.next.fetch_add(1, Relaxed) as usize);
    let engines = ENGINES.lock();
    let channels = &engines.list.get(index).ok_or(ENODEV)?.channels;
    // Channels that are gone or out of service take no part in the round-robin, or two processes
    // would share one while another has nothing to do.
    let pick = |test: fn(&Channel<Request>) -> bool| {
        let fit = || channels.iter().filter(|channel| test(channel));
        let turn = start.checked_rem(fit().count())?;
        fit().nth(turn)
    };
    let chosen = pick(|channel| channel.usable()).or_else(|| pick(|channel| !channel.is_gone()));
    let chosen = chosen.cloned().ok_or(ENODEV)?;
    Ok((index as u32, chosen))
}

/// Gives a channel a request, or another one if it does not work any more. Who cannot have it
/// copied by an engine has it copied by a CPU.
pub(crate) fn submit(channel: &Arc<Channel<Request>>, request: &Arc<Request>) {
    let given = match Channel::try_submit(channel, request) {
        Err(error) if error == ENODEV => submit_elsewhere(request, Channel::usable),
        given => given,
    };
    if given.is_err() {
        Request::take_over(request);
    }
}

/// Gives a request whose channel does not work any more to another one that does. May sleep, and is
/// called without locks by the workqueue, which does not wait until one is acquired.
///
/// - `ENODEV`: there is none.
pub(crate) fn pass_on(request: &Arc<Request>) -> Result {
    submit_elsewhere(request, Channel::is_up)
}

/// Gives a request to a channel that fits, of the same engine or of its node.
///
/// - `ENODEV`: there is none.
fn submit_elsewhere(request: &Arc<Request>, fits: fn(&Channel<Request>) -> bool) -> Result {
    let found = {
        let engines = ENGINES.lock();
        let first = request.engine() as usize;
        let node = engines.list.get(first).ok_or(ENODEV)?.engine.node;
        let (own, others) = (first..first + 1, 0..engines.list.len());
        // The engine itself first; that it comes again among the others does no harm.
        Iterator::chain(own, others).find_map(|index| {
            let Entry { engine, channels } = &engines.list[index];
            if engine.node != node {
                return None;
            }
            let fit = || channels.iter().filter(|channel| fits(channel));
            let turn = engine.next.fetch_add(1, Relaxed) as usize;
            let channel = fit().nth(turn.checked_rem(fit().count())?)?;
            Some((index, channel.clone()))
        })
    };
    let (index, channel) = found.ok_or(ENODEV)?;
    request.set_engine(index as u32);
    Channel::try_submit(&channel, request)
}

/// All engines, without the lock; they only ever grow.
fn each_engine() -> impl Iterator<Item = Arc<Engine>> {
    let engine = |index: usize| Some(ENGINES.lock().list.get(index)?.engine.clone());
    (0..).map_while(engine)
}

/// The channels of an engine, without the lock; they only ever grow.
fn each_channel(index: usize) -> impl Iterator<Item = Arc<Channel<Request>>> {
    (0..).map_while(move |at| {
        let engines = ENGINES.lock();
        engines.list.get(index)?.channels.get(at).cloned()
    })
}

/// The engines that are no threads, with their numbers.
fn hardware_engines() -> impl Iterator<Item = (usize, Arc<Engine>)> {
    each_engine()
        .enumerate()
        .filter(|(_, engine)| !engine.is_thread())
}

/// Makes the list what [`choice`] says, and looks after every channel, for the supervisor; returns
/// whether a channel needs watching.
fn attend() -> bool {
    let wanted = choice();
    // What fails here is not done when the round is over, which those who wait for it see.
    if ENGINES.lock().applied != Some(wanted) {
        let _ = apply(wanted);
    }
    if wanted == EngineChoice::Auto && LOOKED.load(Relaxed) != LOOKS.load(Relaxed) {
        let _ = find_channels();
    }
    let mut busy = false;
    for (index, _) in hardware_engines() {
        for channel in each_channel(index) {
            busy |= channel.attend();
        }
    }
    busy
}

/// A device is about to lose its driver, or has lost it (`gone`).
///
/// # Safety
///
/// `dev` is valid for the call.
unsafe extern "C" fn device_leaves(dev: *mut bindings::device, gone: bool) {
    if gone {
        leaving::forget(dev);
        return;
    }
    leaving::note(dev);
    // No lock is held from one step to the next: a channel that is being acquired holds its own for
    // long, and takes others under it.
    for (index, engine) in hardware_engines() {
        let mut concerned = false;
        for channel in each_channel(index) {
            concerned |= channel.leave(dev);
        }
        if concerned {
            engine.leave_devices(|device| device.device().contains(dev));
        }
    }
}

/// The machine is about to sleep, or has woken up. Drivers forget what their channels have in work,
/// and many do not stop them: requests are left to CPUs, and engines are found anew.
extern "C" fn machine_sleeps(sleeps: bool) {
    SLEEPING.store(sleeps.into(), Release);
    // Nothing was acquired if the supervisor has never run.
    let used = !ENGINES.lock().list.is_empty();
    if sleeps && used {
        let _ = update(false);
    }
}

/// Keeps the engines; dropping it gives everything back.
pub(crate) struct Guard {
    supervisor: supervisor::Guard,
    watching: Option<Watching>,
}

/// Prepares the list of engines; nothing is looked for yet.
///
/// # Safety
///
/// Called once, before the device is registered.
pub(crate) unsafe fn init() -> Result<Guard> {
    // SAFETY: The caller calls this once, before any use of the locks.
    unsafe {
        ENGINES.init();
        leaving::init();
    }
    Ok(Guard {
        supervisor: supervisor::init(attend)?,
        watching: Some(Watching::start(device_leaves, machine_sleeps)?),
    })
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Waits for notifiers under way, so that nobody but us uses the list afterwards.
        self.watching = None;
        self.supervisor.stop();
        leaving::clear();
        let list = core::mem::take(&mut ENGINES.lock().list);
        for entry in &list {
            stop(&entry.engine, entry.channels.iter().cloned());
        }
        drop(list);
    }
}
