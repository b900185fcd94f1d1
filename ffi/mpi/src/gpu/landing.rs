// SPDX-License-Identifier: MIT OR Apache-2.0

//! Elements in device memory for which a message is received, by the host memory in their place:
//! what comes out of device memory of its sender's is copied to them, without that host memory.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use libcopy::lock::lock;

use crate::gpu::elements::Elements;

/// Elements that a message may be copied to.
#[derive(Debug)]
pub struct Target {
    /// The elements.
    pub elements: Elements,
    /// Whether a message has been.
    has_landed: AtomicBool,
}

impl Target {
    /// Says that a message was copied to the elements.
    pub fn landed(&self) {
        self.has_landed.store(true, Ordering::Release);
    }
}

/// By the address of the host memory.
static TARGETS: Mutex<Option<HashMap<u64, Arc<Target>>>> = Mutex::new(None);

/// Elements for which a message may be received as long as this lives.
#[derive(Debug)]
pub struct Landing {
    address: u64,
    target: Arc<Target>,
}

impl Landing {
    /// The elements that the host memory at an address stands for.
    pub fn new(elements: &Elements, address: u64) -> Landing {
        let target = Arc::new(Target {
            elements: elements.clone(),
            has_landed: AtomicBool::new(false),
        });
        lock(&TARGETS)
            .get_or_insert_default()
            .insert(address, target.clone());
        Landing { address, target }
    }

    /// Whether a message was copied to the elements since this was asked: nothing is in the host
    /// memory then.
    pub fn take(&self) -> bool {
        self.target.has_landed.swap(false, Ordering::AcqRel)
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        if let Some(targets) = lock(&TARGETS).as_mut() {
            targets.remove(&self.address);
        }
    }
}

/// The elements that host memory at an address stands for.
pub fn find(address: u64) -> Option<Arc<Target>> {
    lock(&TARGETS).as_ref()?.get(&address).cloned()
}
