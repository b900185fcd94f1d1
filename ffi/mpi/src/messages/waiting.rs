// SPDX-License-Identifier: MIT OR Apache-2.0

//! Waiting for messages, while the MPI library gets on.

use std::ffi::c_int;

use libcopy::p2p::{Pause, Shared};

use super::world::World;
use crate::{errors, progress, rdma};
use libcopy::lock::lock;

/// Lets the MPI library get on, and takes what has arrived here meanwhile.
pub fn progress(world: &World) {
    progress::library(world.abi);
    rdma::progress();
    world.settle();
}

/// The same, if there are any messages; whether there are.
pub fn progress_all() -> bool {
    super::world::world().map(progress).is_some()
}

/// The code of a message whose receiver has ended while it was receiving.
pub fn receiver_ended(world: &World) -> c_int {
    errors::failure(world.abi, "the receiver of a message has ended")
}

/// Waits until the program may have its buffer back; an error code if the receiver died.
pub fn wait(world: &World, shared: &Shared) -> Result<(), c_int> {
    let mut pause = Pause::new();
    loop {
        let is_copied = {
            let mut message = lock(shared);
            if message.attend(world, true) || (message.is_impatient(world) && message.buffer(world))
            {
                return if message.was_lost() {
                    Err(receiver_ended(world))
                } else {
                    Ok(())
                };
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
