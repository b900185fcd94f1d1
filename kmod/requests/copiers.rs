// SPDX-License-Identifier: GPL-2.0

//! The [`Copier`]s of all processes, by their address spaces: whatever files a process opens, it
//! has one.
//!
//! The lock of the list is taken when a process opens or closes a file; nothing is allocated or
//! dropped under it.

use crate::memory::address_space::AddressSpace;
use crate::requests::copier::{Copier, Queue};
use crate::requests::request::Request;
use kernel::prelude::*;
use kernel::rbtree::{RBTree, RBTreeNode};
use kernel::sync::Arc;

type Copiers = RBTree<usize, Arc<Copier<Request>>>;

kernel::sync::global_lock! {
    // SAFETY: Initialised in the module's init before the device is registered.
    unsafe(uninit) static COPIERS: Mutex<Option<Copiers>> = None;
}

/// Prepares the list. When the module is unloaded it is empty and has no memory: no file is open.
///
/// # Safety
///
/// Called exactly once, before anything else in this file.
pub(crate) unsafe fn init() {
    // SAFETY: The caller calls this once, before any other use of the lock.
    unsafe { COPIERS.init() };
}

fn key(space: &AddressSpace) -> usize {
    core::ptr::from_ref(space).addr()
}

/// The copier of an address space, with a file more, if there is one that is not over.
fn enter(copiers: &Option<Copiers>, space: &AddressSpace) -> Option<Arc<Copier<Request>>> {
    let known = copiers.as_ref()?.get(&key(space))?;
    known.enter().then(|| known.clone())
}

/// A queue for a file that a process opens, which [`close`] takes back.
pub(crate) fn open(space: &AddressSpace) -> Result<Arc<Queue<Request>>> {
    // Looked at for the time of this line only.
    let known = enter(&COPIERS.lock(), space);
    let copier = match known {
        Some(copier) => copier,
        None => add(space)?,
    };
    let queue = Arc::pin_init(Queue::new(copier.clone()), GFP_KERNEL_ACCOUNT);
    queue.inspect_err(|_| leave(space, &copier))
}

/// A copier with one file, unless another thread has been faster.
fn add(space: &AddressSpace) -> Result<Arc<Copier<Request>>> {
    let new = Arc::pin_init(Copier::new(), GFP_KERNEL_ACCOUNT)?;
    let node = RBTreeNode::new(key(space), new.clone(), GFP_KERNEL_ACCOUNT)?;
    let mut copiers = COPIERS.lock();
    if let Some(known) = enter(&copiers, space) {
        drop(copiers);
        return Ok(known);
    }
    // One that is over, which its last file has not taken out yet.
    let before = copiers.get_or_insert_with(RBTree::new).insert(node);
    drop(copiers);
    drop(before);
    Ok(new)
}

/// A file less.
fn leave(space: &AddressSpace, copier: &Arc<Copier<Request>>) {
    if !copier.leave() {
        return;
    }
    let mut copiers = COPIERS.lock();
    let gone = copiers.as_mut().and_then(|copiers| {
        let known = copiers.get(&key(space))?;
        Arc::ptr_eq(known, copier).then_some(())?;
        copiers.remove_node(&key(space))
    });
    drop(copiers);
    drop(gone);
}

/// The process has closed the file, or has left; called once. Waits for nobody.
pub(crate) fn close(space: &AddressSpace, queue: &Queue<Request>) {
    queue.close();
    leave(space, queue.copier());
}
