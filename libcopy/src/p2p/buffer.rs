// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a program sends, and where it wants what it receives.

use std::marker::PhantomData;
use std::sync::Arc;

use libcopy_datatype::Layout;

use super::view::{DescribedLayout, View};
use crate::error::Result;

/// Elements in memory of the program's.
#[derive(Clone, Debug)]
pub(crate) struct Elements {
    /// The address that the layout's offsets count from, or where dense bytes begin.
    origin: *mut u8,
    /// `None` if they are dense.
    layout: Option<Arc<DescribedLayout>>,
    /// Bytes of data.
    bytes: u64,
}

// SAFETY: the address is the program's, which lends it until the message is complete.
unsafe impl Send for Elements {}

impl Elements {
    fn dense(origin: *mut u8, len: usize) -> Elements {
        Elements {
            origin,
            layout: None,
            bytes: len as u64,
        }
    }

    /// Bytes of our own, which the vector keeps where they are.
    pub(crate) fn of_owned(bytes: &mut [u8]) -> Elements {
        Elements::dense(bytes.as_mut_ptr(), bytes.len())
    }

    fn typed(origin: *mut u8, layout: &Layout) -> Elements {
        Elements::described(origin, Arc::new(DescribedLayout::new(layout.clone())))
    }

    fn described(origin: *mut u8, described: Arc<DescribedLayout>) -> Elements {
        let bytes = described.layout.size();
        match View::of(described.clone(), origin) {
            View::Dense(base) => Elements {
                origin: base,
                layout: None,
                bytes,
            },
            _ => Elements {
                origin,
                layout: Some(described),
                bytes,
            },
        }
    }

    /// Bytes of data.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The address that the layout's offsets count from, or where dense bytes begin.
    pub(crate) fn origin(&self) -> *mut u8 {
        self.origin
    }

    /// The layout, if they are not dense.
    pub(crate) fn layout(&self) -> Option<&Layout> {
        self.layout.as_ref().map(|described| &described.layout)
    }

    /// The layout as peers get to know it, to be changed.
    pub(crate) fn layout_mut(&mut self) -> Option<&mut Arc<DescribedLayout>> {
        self.layout.as_mut()
    }

    /// Where they are, from the first to the last byte.
    pub(crate) fn range(&self) -> (*const u8, usize) {
        match &self.layout {
            None => (self.origin, self.bytes as usize),
            Some(described) => {
                let bounds = described.layout.bounds();
                let start = self.origin.wrapping_offset(bounds.start as isize);
                (start, (bounds.end - bounds.start) as usize)
            }
        }
    }

    pub(crate) fn view(&self) -> View {
        match &self.layout {
            None => View::Dense(self.origin),
            Some(described) => View::Typed(described.clone(), self.origin),
        }
    }
}

/// What is sent: bytes, or the elements of a layout.
#[derive(Debug)]
pub struct SendBuffer<'a> {
    pub(crate) elements: Elements,
    _borrowed: PhantomData<&'a [u8]>,
}

impl<'a> SendBuffer<'a> {
    /// The elements of a layout whose displacements count from index `origin` of `buffer`.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Datatype`] if they do not lie inside the buffer.
    pub fn typed(buffer: &'a [u8], origin: isize, layout: &Layout) -> Result<Self> {
        layout.pack_range(buffer, origin, 0, &mut [])?;
        let origin = buffer.as_ptr().wrapping_offset(origin).cast_mut();
        Ok(SendBuffer {
            elements: Elements::typed(origin, layout),
            _borrowed: PhantomData,
        })
    }

    /// The elements of a layout whose displacements count from an address.
    ///
    /// # Safety
    ///
    /// All bytes of the layout are readable, and nobody changes them, for as long as the operation
    /// is under way.
    pub unsafe fn raw(origin: *const u8, layout: &Layout) -> Self {
        SendBuffer {
            elements: Elements::typed(origin.cast_mut(), layout),
            _borrowed: PhantomData,
        }
    }

    /// [`SendBuffer::raw`] with a layout whose description for peers is kept for the next message
    /// with it.
    ///
    /// # Safety
    ///
    /// As for [`SendBuffer::raw`].
    pub unsafe fn described(origin: *const u8, described: Arc<DescribedLayout>) -> Self {
        SendBuffer {
            elements: Elements::described(origin.cast_mut(), described),
            _borrowed: PhantomData,
        }
    }
}

impl<'a> From<&'a [u8]> for SendBuffer<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        SendBuffer {
            elements: Elements::dense(bytes.as_ptr().cast_mut(), bytes.len()),
            _borrowed: PhantomData,
        }
    }
}

impl<'a> From<&'a Vec<u8>> for SendBuffer<'a> {
    fn from(bytes: &'a Vec<u8>) -> Self {
        bytes.as_slice().into()
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for SendBuffer<'a> {
    fn from(bytes: &'a [u8; N]) -> Self {
        bytes.as_slice().into()
    }
}

/// Where a message goes: bytes, or the elements of a layout. A shorter message fills the first of
/// them.
#[derive(Debug)]
pub struct RecvBuffer<'a> {
    pub(crate) elements: Elements,
    _borrowed: PhantomData<&'a mut [u8]>,
}

impl<'a> RecvBuffer<'a> {
    /// The elements of a layout whose displacements count from index `origin` of `buffer`.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Datatype`] if they do not lie inside the buffer.
    pub fn typed(buffer: &'a mut [u8], origin: isize, layout: &Layout) -> Result<Self> {
        layout.pack_range(buffer, origin, 0, &mut [])?;
        let origin = buffer.as_mut_ptr().wrapping_offset(origin);
        Ok(RecvBuffer {
            elements: Elements::typed(origin, layout),
            _borrowed: PhantomData,
        })
    }

    /// The elements of a layout whose displacements count from an address.
    ///
    /// # Safety
    ///
    /// All bytes of the layout are writable, and nobody else uses them, for as long as the
    /// operation is under way.
    pub unsafe fn raw(origin: *mut u8, layout: &Layout) -> Self {
        RecvBuffer {
            elements: Elements::typed(origin, layout),
            _borrowed: PhantomData,
        }
    }

    /// [`RecvBuffer::raw`] with a layout whose description for peers is kept for the next message
    /// with it.
    ///
    /// # Safety
    ///
    /// As for [`RecvBuffer::raw`].
    pub unsafe fn described(origin: *mut u8, described: Arc<DescribedLayout>) -> Self {
        RecvBuffer {
            elements: Elements::described(origin, described),
            _borrowed: PhantomData,
        }
    }
}

impl<'a> From<&'a mut [u8]> for RecvBuffer<'a> {
    fn from(bytes: &'a mut [u8]) -> Self {
        RecvBuffer {
            elements: Elements::dense(bytes.as_mut_ptr(), bytes.len()),
            _borrowed: PhantomData,
        }
    }
}

impl<'a> From<&'a mut Vec<u8>> for RecvBuffer<'a> {
    fn from(bytes: &'a mut Vec<u8>) -> Self {
        bytes.as_mut_slice().into()
    }
}

impl<'a, const N: usize> From<&'a mut [u8; N]> for RecvBuffer<'a> {
    fn from(bytes: &'a mut [u8; N]) -> Self {
        bytes.as_mut_slice().into()
    }
}
