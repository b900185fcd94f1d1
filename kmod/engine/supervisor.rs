// SPDX-License-Identifier: GPL-2.0

//! [`Supervisor`]: the thread that looks after channels, and how it is called and waited for.
//!
//! It alone lists the channels of dmaengine, acquires them and takes them out of service: all of
//! that runs code of drivers, or waits for dmaengine's mutex while a driver's code runs, and no
//! signal ends either. Whoever needs one of these asks for it and waits ([`wait_for`]), and can be
//! killed meanwhile.

use crate::abstractions::irqlock::{self, IrqLock};
use crate::abstractions::shim;
use crate::base::params;
use crate::engine::thread::Thread;
use kernel::ffi::{c_int, c_void};
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Full, Relaxed};
use kernel::sync::{new_mutex, CondVar, Mutex};
use kernel::{c_str, static_lock_class};

/// Milliseconds without work after which the supervisor sleeps until it is called.
const DOZE_AFTER: i64 = 2_000;

struct Calls {
    called: bool,
    stop: bool,
    /// How often every channel was looked after.
    rounds: u64,
}

/// Watches over the channels.
#[pin_data]
struct Supervisor {
    /// Looks after every channel once; returns whether one needs watching.
    attend: fn() -> bool,
    #[pin]
    calls: IrqLock<Calls>,
    #[pin]
    changed: CondVar,
    /// Notified when a round ends.
    #[pin]
    attended: CondVar,
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

    /// # Safety
    ///
    /// `data` is the supervisor, which outlives its thread.
    unsafe extern "C" fn body(data: *mut c_void) -> c_int {
        // SAFETY: `start` passed the supervisor, which outlives its thread.
        let this = unsafe { &*data.cast::<Self>() };
        shim::set_freezable();
        let mut idle = 0i64;
        loop {
            shim::try_to_freeze();
            let tick = i64::clamp(params::engine_deadline() / 4_000_000, 5, 250);
            {
                let mut calls = this.calls.lock();
                // One look per hold: waiting lets go of the lock.
                while !calls.called && !calls.stop {
                    if idle > DOZE_AFTER {
                        this.dozing.xchg(1, Full);
                        // What was submitted before that did not call; so look once more.
                        if this.dozing.load(Relaxed) == 1 && idle != i64::MAX {
                            idle = i64::MAX;
                            break;
                        }
                        let _ = this.changed.wait_interruptible_freezable(&mut calls);
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
            if (this.attend)() {
                this.dozing.store(0, Relaxed);
                idle = 0;
            } else if idle != i64::MAX {
                idle += tick;
            }
            this.calls.lock().rounds += 1;
            this.attended.notify_all();
        }
    }
}

/// Calls the supervisor. Does not sleep.
pub(crate) fn wake() {
    // SAFETY: Set while the module is loaded; channels are stopped before it is taken back.
    if let Some(supervisor) = unsafe { SUPERVISOR.load(Relaxed).as_ref() } {
        supervisor.call();
    }
}

/// Calls the supervisor if it sleeps for longer than a deadline. Does not sleep.
pub(crate) fn wake_if_dozing() {
    // SAFETY: As above.
    if let Some(supervisor) = unsafe { SUPERVISOR.load(Relaxed).as_ref() } {
        if supervisor.dozing.load(Relaxed) != 0 && supervisor.dozing.xchg(0, Full) != 0 {
            supervisor.call();
        }
    }
}

/// Calls the supervisor, and waits until what it does makes `done` true. `done` may sleep.
///
/// - `ENOMEM`: it is not true after a whole round.
/// - `EINTR`: the caller is being killed.
pub(crate) fn wait_for(done: impl Fn() -> bool) -> Result {
    // SAFETY: As above; the caller runs on behalf of an open file, or as a notifier.
    let supervisor = unsafe { SUPERVISOR.load(Relaxed).as_ref() }.ok_or(ENODEV)?;
    supervisor.start()?;
    // A round may have begun before the caller asked for what it waits for.
    let last = supervisor.calls.lock().rounds + 2;
    // Bounded by two rounds.
    while !done() {
        let mut calls = supervisor.calls.lock();
        let seen = calls.rounds;
        if seen >= last {
            return Err(ENOMEM);
        }
        calls.called = true;
        supervisor.changed.notify_all();
        let mut signal = false;
        while calls.rounds == seen && !signal {
            signal = supervisor.attended.wait_interruptible(&mut calls);
        }
        drop(calls);
        if signal {
            if shim::fatal_signal_pending() {
                return Err(EINTR);
            }
            // A signal that does not kill would end every wait at once.
            shim::nap(1);
        }
    }
    Ok(())
}

impl Supervisor {
    /// Starts the thread if it does not run yet.
    fn start(&self) -> Result {
        let mut thread = self.thread.lock();
        if thread.is_none() {
            let data: *mut c_void = core::ptr::from_ref(self).cast_mut().cast();
            // SAFETY: The thread is stopped when the guard is dropped, before the supervisor goes.
            *thread = Some(unsafe { Thread::run(Self::body, data, -1, c"libcopy/supervisor") }?);
        }
        Ok(())
    }
}

/// The supervisor; dropping it stops its thread.
pub(crate) struct Guard(Pin<KBox<Supervisor>>);

/// Prepares the supervisor; its thread is started when it is first needed.
pub(crate) fn init(attend: fn() -> bool) -> Result<Guard> {
    let supervisor = KBox::pin_init(
        pin_init!(Supervisor {
            attend,
            calls <- irqlock::new(
                Calls {
                    called: false,
                    stop: false,
                    rounds: 0,
                },
                c_str!("libcopy::Supervisor::calls"),
                static_lock_class!(),
            ),
            changed <- CondVar::new(c_str!("libcopy::Supervisor::changed"), static_lock_class!()),
            attended <- CondVar::new(c_str!("libcopy::Supervisor::attended"), static_lock_class!()),
            dozing: Atomic::new(0),
            thread <- new_mutex!(None),
        }),
        GFP_KERNEL,
    )?;
    SUPERVISOR.store(core::ptr::from_ref(&*supervisor), Relaxed);
    Ok(Guard(supervisor))
}

impl Guard {
    /// Stops the thread. What calls the supervisor afterwards is not heard.
    pub(crate) fn stop(&self) {
        self.0.calls.lock().stop = true;
        self.0.changed.notify_all();
        let thread = self.0.thread.lock().take();
        drop(thread);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.stop();
        SUPERVISOR.store(core::ptr::null(), Relaxed);
    }
}
