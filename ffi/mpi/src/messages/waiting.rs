// SPDX-License-Identifier: MIT OR Apache-2.0

//! Waiting for messages, while the MPI library gets on.

use std::ffi::c_int;

use libcopy::p2p::{Outgoing, Pause, Shared};

use crate::comm::processes::{World, world};
use crate::library::{errors, progress};
use crate::rdma;
use libcopy::lock::lock;

/// Lets the MPI library get on, and takes what has arrived here meanwhile.
pub fn progress(world: &World) {
    progress::library(world.abi);
    rdma::progress();
    world.settle();
}

/// Lets the MPI library get on and takes what has arrived, if messages are intercepted; whether
/// they are.
pub fn progress_all() -> bool {
    world().map(progress).is_some()
}

/// The code of a message whose receiver has ended while it was receiving.
fn receiver_ended(world: &World) -> c_int {
    errors::failure(world.abi, "the receiver of a message has ended")
}

/// Why a message that is complete has failed: its receiver has died, or its elements could not be
/// packed.
///
/// # Errors
///
/// An error code.
pub fn outcome(world: &World, message: &Outgoing) -> Result<(), c_int> {
    match message.packing_error() {
        Some(code) => Err(code),
        None if message.was_lost() => Err(receiver_ended(world)),
        None => Ok(()),
    }
}

/// Waits until the program may have its buffer back; an error code if the receiver died.
pub fn wait(world: &World, shared: &Shared) -> Result<(), c_int> {
    let mut pause = Pause::new();
    loop {
        let is_copied = {
            let mut message = lock(shared);
            if message.attend(world, true) || (message.is_impatient(world) && message.buffer(world))
            {
                return outcome(world, &message);
            }
            if pause.should_look() && message.is_lost(world) {
                message.lose(world);
                return Err(receiver_ended(world));
            }
            message.is_copied_by_receiver(world)
        };
        // Between any two parts that we copy, since we may have something to receive, too.
        if pause.step() || is_copied {
            progress(world);
        }
    }
}
