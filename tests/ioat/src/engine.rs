// SPDX-License-Identifier: MIT OR Apache-2.0

//! An engine: one thread that copies for all of its channels, turn by turn.
//!
//! "The copy engine of the experimental system processes requests in its channels in a round-robin
//! fashion" (*Exploiting copy engines for intra-node MPI collective communication*, section 3.3): a
//! turn is at most [`crate::channel::SLICE`] bytes of one descriptor, and all turns of an engine
//! share one bandwidth, which is what makes two processes on one engine half as fast (its Fig. 3c).

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use crate::channel::{Slice, Turn};
use crate::function::Function;
use crate::limiter::Limiter;
use crate::memory::Memory;

/// What an engine is made of.
pub struct State {
    /// Its functions, one per channel.
    pub functions: Vec<Function>,
    /// Its bandwidth.
    pub limiter: Limiter,
    /// The channel whose turn is next.
    cursor: usize,
    stop: bool,
}

/// An engine.
pub struct Engine {
    state: Mutex<State>,
    changed: Condvar,
}

impl Engine {
    /// An engine with its thread running until [`Engine::stop`].
    pub fn start(
        number: u8,
        channels: u8,
        bandwidth: Option<u64>,
    ) -> io::Result<(Arc<Self>, thread::JoinHandle<()>)> {
        let functions = (0..channels)
            .map(|_| Function::new(Arc::new(Memory::default())))
            .collect();
        let engine = Arc::new(Self {
            state: Mutex::new(State {
                functions,
                limiter: Limiter::new(bandwidth, Instant::now()),
                cursor: 0,
                stop: false,
            }),
            changed: Condvar::new(),
        });
        let thread = thread::Builder::new()
            .name(format!("engine {number}"))
            .spawn({
                let engine = engine.clone();
                move || {
                    wake_precisely();
                    engine.run();
                }
            })?;
        Ok((engine, thread))
    }

    /// Ends the thread; what is in work is left undone.
    pub fn stop(&self) {
        self.with(|state| state.stop = true);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the engine or changes it; afterwards it looks for work.
    pub fn with<T>(&self, body: impl FnOnce(&mut State) -> T) -> T {
        let result = body(&mut self.lock());
        self.changed.notify_one();
        result
    }

    /// Looks at the engine without disturbing it.
    pub fn look<T>(&self, body: impl FnOnce(&mut State) -> T) -> T {
        body(&mut self.lock())
    }

    fn run(&self) {
        let mut state = self.lock();
        while !state.stop {
            let now = Instant::now();
            match state.choose(now) {
                Ok((index, slice)) => state = self.execute(state, index, &slice, now),
                Err(deadline) => {
                    state.limiter.idle(now);
                    state = self.wait(state, deadline, now);
                }
            }
        }
    }

    fn wait<'a>(
        &self,
        state: MutexGuard<'a, State>,
        deadline: Option<Instant>,
        now: Instant,
    ) -> MutexGuard<'a, State> {
        match deadline {
            None => self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner),
            Some(deadline) => {
                let time = deadline.saturating_duration_since(now);
                let result = self.changed.wait_timeout(state, time);
                result.unwrap_or_else(PoisonError::into_inner).0
            }
        }
    }

    /// Waits for as long as the slice takes on this engine, then copies it, so that its data is
    /// there at the end of that time and not before.
    fn execute<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        index: usize,
        slice: &Slice,
        begin: Instant,
    ) -> MutexGuard<'a, State> {
        let end = state.limiter.begin(slice.length, begin);
        let mut now = begin;
        while now < end {
            state = self.wait(state, Some(end), now);
            if state.stop || state.functions[index].channel.cancels(slice) {
                state.limiter.cancel(slice.length);
                state.functions[index].channel.abandon();
                return state;
            }
            now = Instant::now();
        }
        let result = if slice.length > 0 {
            let memory = state.functions[index].channel.memory().clone();
            drop(state);
            let result = memory.copy(slice.source, slice.destination, slice.length);
            state = self.lock();
            result
        } else {
            Ok(())
        };
        let function = &mut state.functions[index];
        function.channel.finish(slice, result);
        function.deliver();
        state
    }
}

impl State {
    /// The channel whose turn it is and what it wants copied, or the time before which nobody wants
    /// anything.
    fn choose(&mut self, now: Instant) -> Result<(usize, Slice), Option<Instant>> {
        let mut earliest: Option<Instant> = None;
        for _ in 0..self.functions.len() {
            let index = self.cursor;
            self.cursor = (self.cursor + 1) % self.functions.len();
            let function = &mut self.functions[index];
            let turn = function.channel.turn(now);
            function.deliver();
            match turn {
                Turn::Nothing => {}
                Turn::Later(time) => {
                    earliest = Some(earliest.map_or(time, |earliest| earliest.min(time)));
                }
                Turn::Slice(slice) => return Ok((index, slice)),
            }
        }
        Err(earliest)
    }
}

/// Linux lets a thread sleep 50 us longer than it asked for unless it asks for precision.
fn wake_precisely() {
    // SAFETY: this call takes a number and changes nothing but this thread's timer slack.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1u64, 0u64, 0u64, 0u64) };
}

#[cfg(test)]
mod tests;
