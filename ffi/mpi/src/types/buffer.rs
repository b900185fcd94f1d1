// SPDX-License-Identifier: MIT OR Apache-2.0

//! A rank's buffers as bytes: in place where the datatype is dense, packed where it is not, by the
//! MPI library only if we do not know how the datatype was made.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;

use libcopy::datatype::memcpy;
use libcopy::scratch::{Scratch, zeros};

use crate::library::abi::{Abi, Word};
use crate::library::count::Count;
use crate::library::errors::no_room;
use crate::library::failure::Failure;
use crate::library::predefined::Predefined;
use crate::library::{errors, pmpi};
use crate::types::datatype::{Known, Prepared};
use crate::types::earned::Use;
use crate::types::{datatype, earned, type_size};

/// Bytes from which on elements are described, however often their type is used.
const LONG: usize = 64 << 10;

/// Bytes that are packed or combined with one call of the library: positions are `int`s.
pub const MOST: usize = 1 << 30;

/// A datatype, as far as moving its bytes needs it.
#[derive(Clone, Debug)]
pub struct Kind {
    datatype: Word,
    comm: Word,
    /// Bytes of data.
    size: usize,
    /// Bytes from one element to the next.
    extent: isize,
    /// Whether elements are dense, one behind the other.
    dense: bool,
    /// A derived type as we know it.
    known: Option<Arc<Known>>,
    /// Whether the datatype is a predefined one.
    named: bool,
    /// The datatype, if it is a duplicate of our own.
    own: Option<Arc<Duplicate>>,
}

/// A duplicate of a datatype of the program's, which may free its own.
#[derive(Debug)]
struct Duplicate(Word);

impl Drop for Duplicate {
    fn drop(&mut self) {
        // SAFETY: our own datatype, which nobody uses any more.
        unsafe { pmpi::type_free(&mut self.0) };
    }
}

/// Sizes of predefined datatypes whose elements are dense.
static DENSE: Predefined = Predefined::new();

impl Kind {
    /// Asks the library; `None` if it does not accept elements of the datatype.
    #[inline]
    pub fn of(abi: &Abi, datatype: Word, comm: Word) -> Option<Kind> {
        match DENSE.get(datatype & abi.handle) {
            Some(size) => Some(Kind {
                datatype,
                comm,
                size,
                extent: size as isize,
                dense: true,
                known: None,
                named: true,
                own: None,
            }),
            None => Kind::asked(abi, datatype, comm, true),
        }
    }

    /// The same for `count` elements. Of few bytes the library packs those of a derived type, until
    /// the type has [earned](earned) a layout: describing it takes longer than such a call.
    #[inline]
    pub fn of_elements(
        abi: &Abi,
        (datatype, count): (Word, impl Count),
        comm: Word,
    ) -> Option<Kind> {
        if DENSE.get(datatype & abi.handle).is_some() {
            return Kind::of(abi, datatype, comm);
        }
        let count = count.number()?;
        let is_short = type_size::bytes(abi, count, datatype).is_some_and(|bytes| bytes < LONG);
        let is_described = !is_short || {
            let buffer = ptr::null();
            let comm = Some(comm);
            earned::by(
                abi,
                Use {
                    buffer,
                    count,
                    datatype,
                    comm,
                },
            )
        };
        Kind::asked(abi, datatype, comm, is_described)
    }

    #[cold]
    fn asked(abi: &Abi, datatype: Word, comm: Word, is_described: bool) -> Option<Kind> {
        if !abi.is_type(datatype) {
            return None;
        }
        let (mut size, mut lower, mut extent, mut combiner) = (0i64, 0, 0, 0);
        // SAFETY: writable outputs; the library checks the datatype.
        let answers = unsafe {
            [
                pmpi::type_size(datatype, &mut size),
                pmpi::type_get_extent(datatype, &mut lower, &mut extent),
                pmpi::type_combiner(datatype, &mut combiner),
            ]
        };
        if answers != [0; 3] {
            return None;
        }
        let size = usize::try_from(size).ok()?;
        let known = if combiner == abi.named {
            None
        } else {
            let known = is_described.then(|| datatype::of(abi, datatype)).flatten();
            match known {
                // Not committed, so the library says what is wrong.
                None if !errors::accepts(datatype) => return None,
                known => known,
            }
        };
        // A derived type of full extent may still have its bytes in another order.
        let dense = match &known {
            Some(known) => known.dense,
            None => combiner == abi.named && lower == 0 && usize::try_from(extent) == Ok(size),
        };
        if known.is_none() && dense {
            DENSE.put(datatype & abi.handle, size);
        }
        Some(Kind {
            datatype,
            comm,
            size,
            extent,
            dense,
            known,
            named: combiner == abi.named,
            own: None,
        })
    }

    /// Bytes of data in `count` elements; `None` if that is not a number of bytes.
    pub fn bytes(&self, count: impl Count) -> Option<usize> {
        count.number()?.checked_mul(self.size)
    }

    /// Bytes of data in `count` elements; `None` if they do not fit into 64 bits.
    pub fn bytes_of(&self, count: usize) -> Option<usize> {
        count.checked_mul(self.size)
    }

    /// The layout of `count` elements, which have `bytes` bytes, wherever they are; `None` if
    /// nobody knows it.
    pub fn prepared(&self, count: usize, bytes: usize) -> Option<Arc<Prepared>> {
        let datatype = self.known.as_ref()?.received()?;
        let layout = datatype::layout(datatype, count as u64)?;
        (layout.layout.size() == bytes as u64).then_some(layout)
    }

    /// Whether `count` elements and `other_count` of another kind, which are as many bytes, are the
    /// same bytes in the same order wherever both begin at one address.
    pub fn is_like(&self, count: usize, (other, other_count): (&Kind, usize)) -> bool {
        let layout = |kind: &Kind, count| kind.prepared(count, count * kind.size);
        self.datatype == other.datatype
            || self.dense && other.dense
            || layout(self, count)
                .zip(layout(other, other_count))
                .is_some_and(|(own, theirs)| own.layout.form() == theirs.layout.form())
    }

    /// The datatype.
    pub fn datatype(&self) -> Word {
        self.datatype
    }

    /// Whether the datatype is a predefined one.
    pub fn is_named(&self) -> bool {
        self.named
    }

    /// The datatype for as long as what is returned is used, whatever the program frees.
    ///
    /// # Errors
    ///
    /// The library's error code.
    pub fn kept(&self, abi: &Abi) -> Result<Kind, c_int> {
        let mut kept = self.clone();
        if self.own.is_some() || self.named {
            kept.comm = abi.world;
            return Ok(kept);
        }
        let mut datatype = 0;
        // SAFETY: a datatype of the caller's; room for a handle of either kind.
        match unsafe { pmpi::type_dup(self.datatype, &mut datatype) } {
            0 => {
                (kept.datatype, kept.comm) = (datatype, abi.world);
                kept.own = Some(Arc::new(Duplicate(datatype)));
                Ok(kept)
            }
            code => Err(code),
        }
    }

    /// Bytes of one element.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Bytes from one element to the next.
    pub fn extent(&self) -> isize {
        self.extent
    }

    /// Whether `count` elements are their bytes.
    pub fn is_dense(&self) -> bool {
        self.dense
    }

    /// Where element `index` is.
    pub fn element(&self, base: *mut c_void, index: usize) -> *mut c_void {
        base.wrapping_byte_offset(self.extent.wrapping_mul(index as isize))
    }

    /// Elements that are packed with one call.
    fn batch(&self) -> usize {
        (MOST / self.size.max(1)).max(1)
    }

    /// Elements at `MPI_BOTTOM`, whose datatype has addresses, as one element at another address:
    /// MPICH does not pack what is at address zero. Everything else stays as it is.
    fn anchored(&self, base: *mut c_void, count: usize) -> Result<Anchored, c_int> {
        if !base.is_null() {
            return Ok(Anchored {
                base,
                count: count as c_int,
                datatype: self.datatype,
                made: false,
            });
        }
        let anchor = 16;
        let mut datatype = 0;
        // SAFETY: one length and one place; a word has room for either kind of handle.
        let answers = unsafe {
            let (length, place) = (count as c_int, -anchor);
            [
                pmpi::type_create_hindexed(1, &length, &place, self.datatype, &mut datatype),
                pmpi::type_commit(&mut datatype),
            ]
        };
        match answers.into_iter().find(|answer| *answer != 0) {
            Some(answer) => Err(answer),
            None => Ok(Anchored {
                base: base.wrapping_byte_offset(anchor),
                count: 1,
                datatype,
                made: true,
            }),
        }
    }

    /// The layout of `count` elements at this address, which are `bytes` long, if we are the ones
    /// to pack it. What is at `MPI_BOTTOM` the library packs.
    pub fn layout(&self, base: *const c_void, count: usize, bytes: usize) -> Option<Arc<Prepared>> {
        if base.is_null() {
            return None;
        }
        self.prepared(count, bytes)
    }

    /// Packs `count` elements into as many bytes.
    ///
    /// # Errors
    ///
    /// The library's error code.
    ///
    /// # Safety
    ///
    /// The elements are readable.
    pub unsafe fn pack(
        &self,
        base: *const c_void,
        count: usize,
        packed: &mut [u8],
    ) -> Result<(), c_int> {
        if let Some(prepared) = self.layout(base, count, packed.len()) {
            let bytes = prepared.layout.size();
            // SAFETY: the caller's promise; the layout is one of as many bytes as `packed` has.
            unsafe {
                prepared
                    .layout
                    .pack_raw(base.cast(), 0..bytes, packed.as_mut_ptr())
            };
            return Ok(());
        }
        let mut done = 0;
        while done < count {
            let n = (count - done).min(self.batch());
            let from = self.element(base.cast_mut(), done);
            let to = &mut packed[done * self.size..(done + n) * self.size];
            let from = self.anchored(from, n)?;
            let mut position = 0;
            // SAFETY: the caller's promise; `to` has room for `n` elements.
            let answer = unsafe {
                let (size, out) = (to.len() as c_int, to.as_mut_ptr().cast());
                pmpi::pack(
                    from.base,
                    from.count,
                    from.datatype,
                    out,
                    size,
                    &mut position,
                    self.comm,
                )
            };
            if answer != 0 {
                return Err(answer);
            }
            done += n;
        }
        Ok(())
    }

    /// A copy of the bytes of `count` elements.
    ///
    /// # Errors
    ///
    /// The library's error code.
    ///
    /// # Safety
    ///
    /// The elements are readable.
    pub unsafe fn copy_out(&self, base: *const c_void, count: usize) -> Result<Vec<u8>, c_int> {
        let mut copy = zeros(count * self.size).map_err(no_room)?;
        // SAFETY: the caller's promise.
        unsafe { self.copy_to(base, count, &mut copy)? };
        Ok(copy)
    }

    /// Copies the bytes of `count` elements, dense or not, to as many bytes.
    ///
    /// # Errors
    ///
    /// The library's error code.
    ///
    /// # Safety
    ///
    /// The elements are readable, and the bytes are elsewhere.
    pub unsafe fn copy_to(
        &self,
        base: *const c_void,
        count: usize,
        to: &mut [u8],
    ) -> Result<(), c_int> {
        let bytes = count * self.size;
        if self.dense && bytes > 0 {
            // SAFETY: dense elements are their bytes; the caller's promise.
            to.copy_from_slice(unsafe { std::slice::from_raw_parts(base.cast(), bytes) })
        } else {
            // SAFETY: the caller's promise.
            unsafe { self.pack(base, count, to)? }
        }
        Ok(())
    }

    /// Unpacks `count` elements.
    ///
    /// # Errors
    ///
    /// The library's error code.
    ///
    /// # Safety
    ///
    /// The elements are writable, and `packed` has their bytes.
    pub unsafe fn unpack(
        &self,
        packed: &[u8],
        base: *mut c_void,
        count: usize,
    ) -> Result<(), c_int> {
        if let Some(prepared) = self.layout(base, count, packed.len()) {
            let bytes = prepared.layout.size();
            // SAFETY: the caller's promise; the layout is one of as many bytes as `packed` has.
            unsafe {
                prepared
                    .layout
                    .unpack_raw(packed.as_ptr(), 0..bytes, base.cast())
            };
            return Ok(());
        }
        let mut done = 0;
        while done < count {
            let n = (count - done).min(self.batch());
            let to = self.element(base, done);
            let from = &packed[done * self.size..(done + n) * self.size];
            let to = self.anchored(to, n)?;
            let mut position = 0;
            // SAFETY: the caller's promise.
            let answer = unsafe {
                let (size, input) = (from.len() as c_int, from.as_ptr().cast());
                pmpi::unpack(
                    input,
                    size,
                    &mut position,
                    to.base,
                    to.count,
                    to.datatype,
                    self.comm,
                )
            };
            if answer != 0 {
                return Err(answer);
            }
            done += n;
        }
        Ok(())
    }
}

impl Kind {
    /// Copies `count` elements to `to_count` elements of another kind, which are as many bytes.
    ///
    /// # Errors
    ///
    /// The library's error code.
    ///
    /// # Safety
    ///
    /// The elements are readable, the others writable, and no byte is both.
    pub unsafe fn copy_across(
        &self,
        (base, count): (*const c_void, usize),
        to: &Kind,
        (target, to_count): (*mut c_void, usize),
    ) -> Result<(), c_int> {
        let bytes = count * self.size;
        if bytes == 0 {
            // Nothing may be at address zero.
            return Ok(());
        }
        // SAFETY: the caller's promise; dense elements are their bytes, of which there are some.
        unsafe {
            if self.dense {
                let from = std::slice::from_raw_parts(base.cast(), bytes);
                return to.unpack_any(from, target, to_count);
            }
            if to.dense {
                let into = std::slice::from_raw_parts_mut(target.cast(), bytes);
                return self.pack(base, count, into);
            }
            if let (Some(from), Some(into)) = (
                self.layout(base, count, bytes),
                to.layout(target, to_count, bytes),
            ) {
                from.layout
                    .copy_raw(base.cast(), &into.layout, target.cast());
                return Ok(());
            }
            let mut packed = Scratch::new(bytes).map_err(no_room)?;
            self.pack(base, count, &mut packed)?;
            to.unpack(&packed, target, to_count)
        }
    }
}

/// Elements that the library packs.
struct Anchored {
    base: *mut c_void,
    count: c_int,
    datatype: Word,
    /// Whether the datatype is one of our own.
    made: bool,
}

impl Drop for Anchored {
    fn drop(&mut self) {
        if self.made {
            // SAFETY: our own datatype, which nobody uses any more.
            unsafe { pmpi::type_free(&mut self.datatype) };
        }
    }
}

impl Kind {
    /// Writes the bytes of `count` elements, dense or not.
    ///
    /// # Errors
    ///
    /// The library's error code.
    ///
    /// # Safety
    ///
    /// The elements are writable, and `bytes` has theirs.
    pub unsafe fn unpack_any(
        &self,
        bytes: &[u8],
        base: *mut c_void,
        count: usize,
    ) -> Result<(), c_int> {
        if self.dense {
            // SAFETY: dense elements are their bytes; the caller's promise.
            unsafe { memcpy::copy(base.cast(), bytes.as_ptr(), bytes.len()) };
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { self.unpack(bytes, base, count) }
    }
}

/// What one rank sends, as bytes, packed if need be.
///
/// # Safety
///
/// The elements are readable, and stay as they are for `'a`.
pub unsafe fn outgoing<'a>(
    kind: &Kind,
    base: *const c_void,
    count: usize,
    packed: &'a mut Scratch,
) -> Result<&'a [u8], c_int> {
    if count == 0 {
        return Ok(&[]);
    }
    if kind.is_dense() {
        // SAFETY: dense elements are their bytes; the caller's promise.
        return Ok(unsafe { std::slice::from_raw_parts(base.cast(), count * kind.size) });
    }
    *packed = Scratch::new(count * kind.size).map_err(no_room)?;
    // SAFETY: the caller's promise.
    unsafe { kind.pack(base, count, packed)? };
    Ok(packed)
}

/// Has `work` fill the bytes of `count` elements, directly if they are dense.
///
/// # Safety
///
/// The elements are writable, and used by nobody else.
pub unsafe fn incoming(
    kind: &Kind,
    base: *mut c_void,
    count: usize,
    work: impl FnOnce(&mut [u8]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    if count == 0 {
        return work(&mut []);
    }
    if kind.is_dense() {
        // SAFETY: dense elements are their bytes; the caller's promise.
        return work(unsafe { std::slice::from_raw_parts_mut(base.cast(), count * kind.size) });
    }
    let mut packed = Scratch::new(count * kind.size)?;
    work(&mut packed)?;
    // Rather than while it is read.
    libcopy::offload::settle(packed.as_ptr(), packed.len())?;
    // SAFETY: the caller's promise.
    unsafe { kind.unpack(&packed, base, count) }?;
    Ok(())
}
