// SPDX-License-Identifier: MIT OR Apache-2.0

//! A variable for a request of our own.

use std::ffi::c_void;

use crate::comm::processes::World;
use crate::library::abi::Word;

/// A request that the program does not see.
pub struct Handle(Word);

impl Handle {
    /// A variable with this handle, as the library has them.
    pub fn new(world: &World, handle: Word) -> Handle {
        let mut own = Handle(0);
        // SAFETY: a word has room for either kind of handle.
        unsafe { world.abi.set_handle(own.pointer(), handle) };
        own
    }

    /// As an argument.
    pub fn pointer(&mut self) -> *mut c_void {
        (&raw mut self.0).cast()
    }

    /// What is in the variable, for one that somebody else keeps.
    pub fn into_word(self) -> Word {
        self.0
    }
}
