// SPDX-License-Identifier: MIT OR Apache-2.0

//! Work that was submitted to a GPU and may not be done yet.

use std::any::Any;
use std::sync::Arc;

use crate::context::{Context, TableMemory};
use crate::driver::{Driver, Handle};
use crate::error::Result;
use crate::memory::Pointer;

/// Work that was submitted and may not be done yet. Dropping it waits.
#[derive(Debug)]
pub struct Pending {
    driver: &'static Driver,
    work: Option<Work>,
}

/// Work on a stream.
pub(crate) struct Work {
    context: Arc<Context>,
    stream: Handle,
    /// Behind what was submitted last.
    event: Handle,
    tables: Vec<TableMemory>,
    /// What must stay until it is done.
    kept: Vec<Box<dyn Any + Send>>,
}

// SAFETY: handles of the driver may be used by any thread; the rest is Send.
unsafe impl Send for Work {}

impl Work {
    /// What `launch` submits to the stream that it gets, of a context, which is current, and an
    /// event behind it: the stream of the work before it, so that it is done after that, or else
    /// `stream`. What is `kept` stays until it is done.
    ///
    /// # Errors
    ///
    /// A driver that fails; nothing of this is under way then, and the work before it stays.
    pub(crate) fn submit(
        driver: &Driver,
        context: &Arc<Context>,
        pending: &mut Option<Work>,
        stream: impl FnOnce() -> Handle,
        kept: Vec<Box<dyn Any + Send>>,
        launch: impl FnOnce(Handle) -> Result<Option<TableMemory>>,
    ) -> Result<()> {
        if pending
            .as_ref()
            .is_some_and(|work| work.context.id() != context.id())
        {
            Work::finish(driver, pending)?;
        }
        let (stream, event) = match pending {
            Some(work) => (work.stream, work.event),
            None => (stream(), context.event(driver)?),
        };
        let submitted = launch(stream).and_then(|table| {
            // SAFETY: an event and a stream of this context.
            let code = unsafe { (driver.functions.event_record)(event, stream) };
            driver.check("cuEventRecord", code).map(|()| table)
        });
        match submitted {
            Ok(table) => {
                let work = pending.get_or_insert_with(|| Work {
                    context: context.clone(),
                    stream,
                    event,
                    tables: Vec::new(),
                    kept: Vec::new(),
                });
                work.tables.extend(table);
                work.kept.extend(kept);
                Ok(())
            }
            Err(error) => {
                // What was launched before still uses the program's memory.
                let _ = context.settle(driver, stream);
                if pending.is_none() {
                    context.give_event(event);
                }
                Err(error)
            }
        }
    }

    /// Waits until there is none.
    ///
    /// # Errors
    ///
    /// A kernel or the driver that failed.
    pub(crate) fn finish(driver: &Driver, pending: &mut Option<Work>) -> Result<()> {
        let Some(work) = pending else {
            return Ok(());
        };
        let _current = work.context.enter(driver)?;
        // SAFETY: an event of this context.
        driver.check("cuEventSynchronize", unsafe {
            (driver.functions.event_synchronize)(work.event)
        })?;
        Work::release(driver, pending);
        Ok(())
    }

    /// Gives back what was used by work that is done; its context is current.
    fn release(driver: &Driver, pending: &mut Option<Work>) {
        if let Some(work) = pending.take() {
            work.context.give_event(work.event);
            for table in work.tables {
                work.context.give_table(driver, table);
            }
        }
    }
}

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Work")
            .field("event", &self.event)
            .finish_non_exhaustive()
    }
}

impl Pending {
    pub(crate) fn new(driver: &'static Driver, work: Option<Work>) -> Pending {
        Pending { driver, work }
    }

    /// Is done when all that the program has put into the legacy stream until now is, in the
    /// context that `near` is in: before another process reads memory, whose streams are not
    /// ordered behind those of this one.
    ///
    /// # Errors
    ///
    /// Memory without a context, a driver that fails.
    pub fn behind_program(driver: &'static Driver, near: &Pointer) -> Result<Pending> {
        let (_current, context) = Context::at(driver, near)?;
        let mut work = None;
        let stream = || context.next_stream();
        // Nothing but the event: a stream without flags waits for the legacy stream.
        Work::submit(driver, &context, &mut work, stream, Vec::new(), |_| {
            Ok(None)
        })?;
        Ok(Pending::new(driver, work))
    }

    /// Whether it is done; does not wait.
    ///
    /// # Errors
    ///
    /// A kernel or the driver that failed.
    pub fn is_done(&mut self) -> Result<bool> {
        let Some(work) = &self.work else {
            return Ok(true);
        };
        /// `CUDA_ERROR_NOT_READY`.
        const NOT_READY: i32 = 600;
        let _current = work.context.enter(self.driver)?;
        // SAFETY: an event of this context.
        let code = unsafe { (self.driver.functions.event_query)(work.event) };
        if code == NOT_READY {
            return Ok(false);
        }
        self.driver.check("cuEventQuery", code)?;
        Work::release(self.driver, &mut self.work);
        Ok(true)
    }

    /// Waits until it is done.
    ///
    /// # Errors
    ///
    /// A kernel or the driver that failed.
    pub fn wait(&mut self) -> Result<()> {
        Work::finish(self.driver, &mut self.work)
    }

    /// What was started, for more behind it.
    pub(crate) fn work(&mut self) -> (&'static Driver, &mut Option<Work>) {
        (self.driver, &mut self.work)
    }

    /// Drops `what` only when the work is done.
    pub fn keep(&mut self, what: impl Any + Send) {
        if let Some(work) = &mut self.work {
            work.kept.push(Box::new(what));
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        // Nobody is there to be told; the next call of the driver says it again.
        let _ = self.wait();
    }
}
