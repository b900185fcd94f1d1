// SPDX-License-Identifier: MIT OR Apache-2.0

//! Work that was submitted to a GPU and may not be done yet.

use std::any::Any;
use std::sync::Arc;

use crate::context::{Context, TableMemory};
use crate::driver::{Driver, Handle};
use crate::error::Result;

/// Work that was submitted and may not be done yet. Dropping it waits.
#[derive(Debug)]
pub struct Pending {
    driver: &'static Driver,
    work: Option<Work>,
}

/// Work on a stream.
pub(crate) struct Work {
    pub(crate) context: Arc<Context>,
    pub(crate) event: Handle,
    pub(crate) table: Option<TableMemory>,
    /// What must stay until it is done.
    pub(crate) kept: Vec<Box<dyn Any + Send>>,
}

// SAFETY: handles of the driver may be used by any thread; the rest is Send.
unsafe impl Send for Work {}

impl Work {
    /// What `launch` submits to a stream of a context, which is current, and an event behind it. What is `kept` stays until it
    /// is done.
    ///
    /// # Errors
    ///
    /// A driver that fails; nothing is under way then.
    pub(crate) fn submitted(
        driver: &Driver,
        context: &Arc<Context>,
        stream: Handle,
        kept: Vec<Box<dyn Any + Send>>,
        launch: impl FnOnce() -> Result<Option<TableMemory>>,
    ) -> Result<Work> {
        let event = context.event(driver)?;
        let submitted = launch().and_then(|table| {
            // SAFETY: an event and a stream of this context.
            let code = unsafe { (driver.functions.event_record)(event, stream) };
            driver.check("cuEventRecord", code).map(|()| table)
        });
        match submitted {
            Ok(table) => Ok(Work {
                context: context.clone(),
                event,
                table,
                kept,
            }),
            Err(error) => {
                // What was launched before still uses the program's memory.
                let _ = context.settle(driver, stream);
                context.give_event(event);
                Err(error)
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
        self.release();
        Ok(true)
    }

    /// Waits until it is done.
    ///
    /// # Errors
    ///
    /// A kernel or the driver that failed.
    pub fn wait(&mut self) -> Result<()> {
        let Some(work) = &self.work else {
            return Ok(());
        };
        let _current = work.context.enter(self.driver)?;
        // SAFETY: an event of this context.
        self.driver.check("cuEventSynchronize", unsafe {
            (self.driver.functions.event_synchronize)(work.event)
        })?;
        self.release();
        Ok(())
    }

    /// Drops `what` only when the work is done.
    pub fn keep(&mut self, what: impl Any + Send) {
        if let Some(work) = &mut self.work {
            work.kept.push(Box::new(what));
        }
    }

    /// Gives back what the work used; its context is current.
    fn release(&mut self) {
        if let Some(work) = self.work.take() {
            work.context.give_event(work.event);
            if let Some(table) = work.table {
                work.context.give_table(self.driver, table);
            }
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        // Nobody is there to be told; the next call of the driver says it again.
        let _ = self.wait();
    }
}
