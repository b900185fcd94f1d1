// SPDX-License-Identifier: MIT OR Apache-2.0

//! The plan of a small layout, made at commit: loop nests with their kernels already chosen.
//!
//! Walking a form and choosing kernels takes tens of nanoseconds, as long as moving a few hundred
//! bytes. Layouts that are a few loop nests, which most are, keep what that would lead to.

use super::canonical::{Form, Node, NodeId};
use super::kernel::{Dim, Nest};
use super::overlap::blocks_apart;

/// Most loop nests of a plan; more are found on the way.
const MOST: usize = 32;

/// Most levels of lists within lists.
const DEPTH: usize = 4;

/// Most dimensions of a loop nest in a plan.
const DIMS: usize = 3;

/// One loop nest: where it is in the layout and in the packed stream, and what moves its bytes.
#[derive(Clone, Copy, Debug)]
struct Step {
    offset: isize,
    start: isize,
    pack: Nest,
    unpack: Nest,
}

/// What moves all bytes of a layout.
#[derive(Clone, Debug)]
pub(super) struct Steps {
    list: Box<[Step]>,
    /// Bytes of data; as many as nobody has if there is no plan.
    size: u64,
    /// Where the data is.
    low: i64,
    high: i64,
}

impl Default for Steps {
    fn default() -> Steps {
        Steps {
            list: Box::default(),
            size: u64::MAX,
            low: 0,
            high: 0,
        }
    }
}

impl Steps {
    /// The plan of a whole form; an empty one if it is not a few loop nests.
    pub(super) fn of(form: &Form) -> Steps {
        let mut steps = Vec::new();
        let planned = form.root().and_then(|root| {
            add(form, root, (form.offset(), 0), DEPTH, &mut steps)?;
            Some(form.extent(root))
        });
        match planned {
            Some(extent) => Steps {
                list: steps.into(),
                size: extent.size as u64,
                low: form.offset() + extent.low,
                high: form.offset() + extent.high,
            },
            None => Steps::default(),
        }
    }

    /// Whether there is a plan.
    #[inline]
    pub(super) fn is_some(&self) -> bool {
        !self.list.is_empty()
    }

    /// Bytes of memory beside the value itself.
    pub(super) fn memory(&self) -> usize {
        size_of_val(&*self.list)
    }

    /// Whether there is a plan, `packed` bytes are all of the data, and all of it lies in a buffer of
    /// `len` bytes that begins `origin` bytes before the layout's origin.
    #[inline]
    pub(super) fn fit(&self, len: usize, origin: isize, packed: usize) -> bool {
        let place = |at: i64| at.checked_add(origin as i64);
        packed as u64 == self.size
            && place(self.low).is_some_and(|low| low >= 0)
            // It is not below the low end.
            && place(self.high).is_some_and(|high| high as u64 <= len as u64)
    }

    /// Moves everything; `user` is the layout's origin.
    ///
    /// # Safety
    ///
    /// All bytes are valid for reading or writing at both ends, and the ends do not overlap.
    #[inline]
    pub(super) unsafe fn run<const PACK: bool>(&self, user: *mut u8, packed: *mut u8) {
        for step in &self.list {
            let user = user.wrapping_offset(step.offset);
            let packed = packed.wrapping_offset(step.start);
            // SAFETY: the caller's promise; the steps are the layout.
            unsafe {
                if PACK {
                    step.pack.run(packed, user);
                } else {
                    step.unpack.run(user, packed);
                }
            }
        }
    }
}

/// Adds the steps of a node that has its origin at `offset` and its bytes at `start` of the packed
/// stream; `None` if it does not come down to few of them.
fn add(
    form: &Form,
    id: NodeId,
    (offset, start): (i64, i64),
    depth: usize,
    steps: &mut Vec<Step>,
) -> Option<()> {
    if let Node::Sequence { parts } = form.node(id) {
        if parts.len() > MOST || depth == 0 {
            return None;
        }
        for part in parts.iter() {
            let place = (offset + part.offset, start + part.start);
            add(form, part.child, place, depth - 1, steps)?;
        }
        return Some(());
    }
    if steps.len() == MOST {
        return None;
    }
    let (mut streams, mut n, mut at) = ([(0, 0, 0); DIMS], 0, id);
    let len = loop {
        match form.node(at) {
            Node::Dense { len } => break *len,
            Node::Stream {
                count,
                stride,
                child,
            } => {
                *streams.get_mut(n)? = (*count, *stride, form.extent(*child).size);
                n += 1;
                at = *child;
            }
            _ => return None,
        }
    };
    let mut strides = [(0, 0); DIMS];
    for (to, stream) in strides.iter_mut().zip(&streams[..n]) {
        *to = (stream.1, stream.0);
    }
    // Kernels choose their order, which matters if blocks overlap.
    if !blocks_apart(len, &strides[..n]) {
        return None;
    }
    // The innermost first.
    let (mut pack, mut unpack) = ([Dim::default(); DIMS], [Dim::default(); DIMS]);
    for (i, &(count, stride, size)) in streams[..n].iter().rev().enumerate() {
        let (count, stride, size) = (count as usize, stride as isize, size as isize);
        pack[i] = Dim {
            count,
            to: size,
            from: stride,
        };
        unpack[i] = Dim {
            count,
            to: stride,
            from: size,
        };
    }
    steps.push(Step {
        offset: offset as isize,
        start: start as isize,
        pack: Nest::new(len as usize, &pack[..n])?,
        unpack: Nest::new(len as usize, &unpack[..n])?,
    });
    Some(())
}
