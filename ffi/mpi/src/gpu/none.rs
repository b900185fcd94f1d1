// SPDX-License-Identifier: MIT OR Apache-2.0

//! The folder `gpu` without the feature `gpu`: no buffer is in device memory. The functions that
//! other folders call are here; their answers are constants, so that the compiler removes the
//! branches that ask.

use libcopy::datatype::Layout;
use libcopy::p2p::header::Header;
use libcopy::p2p::{DescribedLayout, DeviceCopy, DeviceElements, DeviceHandle, PackedBytes, View};

use crate::library::abi::Word;

/// Code that is only there with the feature.
macro_rules! with_gpu {
    ($($code:tt)*) => {};
}
pub(crate) use with_gpu;

/// Functions with the same answer to everything.
macro_rules! constant {
    ($($name:ident($($argument:ident: $kind:ty),*) $(-> $result:ty = $answer:expr)?;)*) => { $(
        pub fn $name($($argument: $kind),*) $(-> $result)? {
            $($answer)?
        }
    )* };
}

constant! {
    may_be_loaded() -> bool = false;
    is_loaded() -> bool = false;
    has_requests() -> bool = false;
    is_handed_over() -> bool = false;
    before_waiting();
    wait_for_others();
    finish();
    may_be_left() -> bool = false;
    note_offered(_size: Size);
    offer_started(_handle: Word, _receiver: usize) -> Option<Offer> = None;
    pack_started(_handle: Word) -> Result<(), i32> = Ok(());
    reach(
        _from: (i32, &Header), _handle: &DeviceHandle, _layout: Option<&Layout>, _to: &View
    ) -> Option<Box<dyn DeviceCopy>> = None;
}

pub fn inside<R>(call: impl FnOnce() -> R) -> R {
    call()
}

/// A message out of device memory, of which there is none.
#[derive(Debug)]
pub enum Offer {}

/// How large it is.
#[derive(Clone, Copy)]
pub struct Size;

/// A copy to host memory that has been started.
#[derive(Debug)]
pub enum Started {}

impl Started {
    pub fn is_done(&mut self) -> Result<bool, i32> {
        match *self {}
    }
}

impl Offer {
    pub fn written(&self) -> Option<Started> {
        match *self {}
    }

    pub fn size(&self) -> Size {
        match *self {}
    }
}

impl DeviceElements for Offer {
    fn handle(&self) -> DeviceHandle {
        match *self {}
    }

    fn described(&self) -> Option<&DescribedLayout> {
        match *self {}
    }

    fn packed(&self) -> Result<Box<dyn PackedBytes>, i32> {
        match *self {}
    }

    fn is_wanted(&self) -> bool {
        match *self {}
    }

    fn over(&self, _were_copied: bool) {
        match *self {}
    }
}
