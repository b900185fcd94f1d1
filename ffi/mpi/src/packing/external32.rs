// SPDX-License-Identifier: MIT OR Apache-2.0

//! `MPI_Pack_external` and `MPI_Unpack_external`: the bytes that libcopy's datatype engine packs,
//! with those of each number in the other order. Types with elements that external32 gives another
//! size (a `long`, a `long double`), and representations with other names, are forwarded.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::Arc;

use crate::decide::active::active;
use crate::decide::environment::least;
use crate::gpu;
use crate::library::abi::{Abi, Word, function, symbol_name};
use crate::library::buffers::{Packing, Side};
use crate::library::count::{Count, Large};
use crate::library::stats::{Function, Outcome};
use crate::library::times::{self, Kind};
use crate::library::tools::Feature;
use crate::library::{pmpi, stats, tools, unusual};
use crate::packing::pack::{Last, intercepted, none, with_decision};
use crate::types::datatype::{Grain, Prepared};
use crate::types::earned::Use;
use crate::types::{datatype, fortran_names};

/// Bytes from which on this is not slower than Open MPI and MPICH (`packing external-time` in
/// `ffi/mpi/tests` measures it).
const LEAST: u64 = 64;

/// Bytes from which on MPICH does it as fast where pieces are this long on average.
const LONG: (u64, u64) = (32 << 10, 1 << 10);

/// Bytes that are packed and then turned round while they are in the first-level cache.
const AT_ONCE: usize = 8 << 10;

/// Where numbers end in packed bytes, and the elements of a type.
struct Swapped {
    prepared: Arc<Prepared>,
    order: Grain,
    /// Bytes of a part: whole elements.
    part: usize,
}

impl Grain {
    /// Bytes after which everything repeats itself; `None` if some of them cannot be turned round.
    fn period(&self) -> Option<usize> {
        match self {
            Grain::Basic(size, unit @ 1..) if size % u64::from(*unit) == 0 => {
                usize::try_from(*size).ok()
            }
            Grain::Basic(..) | Grain::Padded(_) => None,
            Grain::Mixed(parts) => {
                let mut all = 0usize;
                for (bytes, grain) in parts.iter() {
                    let bytes = usize::try_from(*bytes).ok()?;
                    if bytes > 0 && bytes % grain.period()? != 0 {
                        return None;
                    }
                    all = all.checked_add(bytes)?;
                }
                Some(all)
            }
        }
    }

    /// Turns round the bytes of each number; there are whole periods of them.
    fn swap(&self, bytes: &mut [u8]) {
        match self {
            Grain::Basic(_, unit) => swap_units(usize::from(*unit), bytes),
            // Has no period.
            Grain::Padded(_) => {}
            Grain::Mixed(parts) => {
                let mut left = bytes;
                while !left.is_empty() {
                    for (len, grain) in parts.iter() {
                        let (part, rest) = left.split_at_mut(*len as usize);
                        grain.swap(part);
                        left = rest;
                    }
                }
            }
        }
    }
}

/// Turns round the bytes of numbers of one length.
fn swap_units(unit: usize, bytes: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    {
        /// # Safety
        ///
        /// The processor has AVX2.
        #[target_feature(enable = "avx2")]
        unsafe fn with_vectors(unit: usize, bytes: &mut [u8]) {
            swap_any(unit, bytes);
        }
        if bytes.len() >= 64 && std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: it has.
            return unsafe { with_vectors(unit, bytes) };
        }
    }
    swap_any(unit, bytes);
}

#[inline(always)]
fn swap_any(unit: usize, bytes: &mut [u8]) {
    macro_rules! swap {
        ($number:ty) => {
            for number in bytes.chunks_exact_mut(size_of::<$number>()) {
                let mut own = [0; size_of::<$number>()];
                own.copy_from_slice(number);
                number.copy_from_slice(&<$number>::from_ne_bytes(own).to_be_bytes());
            }
        };
    }
    match unit {
        2 => swap!(u16),
        4 => swap!(u32),
        8 => swap!(u64),
        _ => {}
    }
}

thread_local! {
    static LAST: Last<Swapped> = const { none() };
}

/// How `count` elements of a type are turned round; why they are forwarded otherwise.
#[cold]
fn decide(abi: &Abi, datatype: Word, count: usize) -> Result<Swapped, Outcome> {
    if tools::wrapped(Feature::Packing).is_some() {
        return Err(Outcome::Disabled);
    }
    let known = datatype::of(abi, datatype).ok_or(Outcome::Arguments)?;
    let datatype = known.datatype.as_ref().ok_or(Outcome::Arguments)?;
    let bytes = known
        .size
        .checked_mul(count as u64)
        .ok_or(Outcome::Arguments)?;
    if bytes < least().unwrap_or(LEAST).max(1) {
        return Err(Outcome::Small);
    }
    let order = known.grain().ok_or(Outcome::Arguments)?;
    let period = order
        .period()
        .filter(|period| *period > 0 && known.size % *period as u64 == 0);
    let period = period.ok_or(Outcome::Arguments)?;
    let prepared = datatype::layout(datatype, count as u64).ok_or(Outcome::Arguments)?;
    let is_long = bytes >= LONG.0 && bytes / LONG.1 >= prepared.layout.segment_count();
    if is_long && !abi.is_open_mpi() && least().is_none() {
        return Err(Outcome::NoGain);
    }
    Ok(Swapped {
        prepared,
        order: order.clone(),
        part: (AT_ONCE / period).max(1) * period,
    })
}

impl Swapped {
    fn bytes(&self) -> u64 {
        self.prepared.layout.size()
    }

    /// # Safety
    ///
    /// The elements are readable, and there is room for their bytes.
    unsafe fn pack(&self, input: *const u8, to: *mut u8) {
        let all = self.bytes() as usize;
        let mut at = 0;
        while at < all {
            let n = self.part.min(all - at);
            let to = to.wrapping_add(at);
            // SAFETY: the caller's promise.
            let part = unsafe {
                let range = at as u64..(at + n) as u64;
                self.prepared.layout.pack_raw(input, range, to);
                std::slice::from_raw_parts_mut(to, n)
            };
            self.order.swap(part);
            at += n;
        }
    }

    /// # Safety
    ///
    /// The elements are writable, and their bytes readable.
    unsafe fn unpack(&self, from: *const u8, output: *mut u8) {
        let all = self.bytes() as usize;
        let mut room = MaybeUninit::<[u8; AT_ONCE]>::uninit();
        let mut more = Vec::<u8>::new();
        let room = if self.part <= AT_ONCE {
            room.as_mut_ptr().cast::<u8>()
        } else {
            more.reserve_exact(self.part.min(all));
            more.as_mut_ptr()
        };
        let mut at = 0;
        while at < all {
            let n = self.part.min(all - at);
            // SAFETY: the caller's promise; there is room for a part.
            unsafe {
                std::ptr::copy_nonoverlapping(from.wrapping_add(at), room, n);
                self.order.swap(std::slice::from_raw_parts_mut(room, n));
                let range = at as u64..(at + n) as u64;
                self.prepared.layout.unpack_raw(room, range, output);
            }
            at += n;
        }
    }
}

/// Does it, if it is worth it and all arguments are right; the call is forwarded otherwise.
///
/// # Safety
///
/// As the MPI standard says.
unsafe fn try_to<N: Count>(name: *const c_char, call: &Packing<N, isize>) -> Result<u64, Outcome> {
    let abi = active().ok_or(Outcome::Disabled)?;
    let count = call.count.number().ok_or(Outcome::Arguments)?;
    let are_there = !name.is_null() && !call.position.is_null();
    if !are_there || call.input.is_null() || call.output.is_null() {
        return Err(Outcome::Arguments);
    }
    // SAFETY: the caller's promise.
    if unsafe { CStr::from_ptr(name) } != c"external32" {
        return Err(Outcome::Arguments);
    }
    let what = Use {
        buffer: call.places().0,
        count,
        datatype: call.datatype,
        comm: None,
    };
    with_decision(&LAST, (abi, what), decide, |decision| {
        let swapped = decision.as_ref().map_err(|outcome| *outcome)?;
        let bytes = swapped.bytes();
        // SAFETY: the caller's promise.
        let at = unsafe { call.position.read() };
        let at = usize::try_from(at).map_err(|_| Outcome::Arguments)?;
        let end = at
            .checked_add(bytes as usize)
            .and_then(|end| isize::try_from(end).ok());
        let end = end.filter(|end| *end <= call.size);
        let end = end.ok_or(Outcome::Arguments)?;
        let (input, output) = (call.input.cast::<u8>(), call.output.cast::<u8>());
        // SAFETY: the caller's promise: the elements are there, the room was compared.
        unsafe {
            match call.side {
                Side::Packs => swapped.pack(input, output.wrapping_add(at)),
                Side::Unpacks => swapped.unpack(input.wrapping_add(at), output),
            }
            call.position.write(end);
        }
        Ok(bytes)
    })
}

/// Whether `count` elements are forwarded in any case, and nobody counts them.
#[inline(always)]
fn is_small<N: Count>(count: N, datatype: Word) -> bool {
    let bytes = || datatype::quick_size(datatype, count.number()?);
    bytes().is_some_and(|bytes| bytes < LEAST) && least().is_none() && !stats::are_wanted()
}

/// `MPI_Pack_external` and `MPI_Unpack_external`
///
/// # Safety
///
/// As the MPI standard says.
unsafe fn packed<N: Count>(name: *const c_char, call: Packing<N, isize>) -> c_int {
    let function = match call.side {
        Side::Packs => Function::PackExternal,
        Side::Unpacks => Function::UnpackExternal,
    };
    // SAFETY: the caller's promise.
    unsafe {
        let work = || try_to(name, &call);
        if !is_small(call.count, call.datatype) && intercepted(function, work) {
            return 0;
        }
        pmpi::pack_external_any(name, call)
    }
}

/// Both forms of both functions. Sizes and positions are as wide in either.
macro_rules! exports {
    ($($pack:ident, $unpack:ident = $count:ty;)*) => { $(
        exports!(@one $pack = Packs(
            input: *const c_void, count: $count, datatype: Word,
            output: *mut c_void, size: isize, position: *mut isize));
        exports!(@one $unpack = Unpacks(
            input: *const c_void, size: isize, position: *mut isize,
            output: *mut c_void, count: $count, datatype: Word));
    )* };
    (@one $name:ident = $side:ident($($argument:ident: $kind:ty),*)) => {
        /// The MPI function of this name.
        ///
        /// # Safety
        ///
        /// As the MPI standard says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(name: *const c_char, $($argument: $kind),*) -> c_int {
            // SAFETY: the caller's promise.
            unsafe {
                if unusual::is_timed() {
                    if let Some(_timed) = times::begin(Kind::Packing) {
                        return $name(name, $($argument),*);
                    }
                }
                let call = Packing { side: Side::$side, $($argument),* };
                gpu::with_gpu! {
                    if gpu::is_loaded() {
                        let staged = gpu::external(name, call, |call| packed(name, call));
                        if let Some(code) = staged {
                            return code;
                        }
                    }
                }
                packed(name, call)
            }
        }
    };
}

exports! {
    MPI_Pack_external, MPI_Unpack_external = c_int;
    MPI_Pack_external_c, MPI_Unpack_external_c = Large;
}

/// Fortran's forms, which say how long the name is; where we are not needed, the next functions of
/// these names are called.
macro_rules! fortran {
    ($($name:ident, $inner:ident = $c:ident($($argument:ident: $kind:ty = $value:expr),*);)*) => { $(
        fortran! { @one $name = $c($($argument: $kind = $value),*) }
        fortran! { @one $inner = $c($($argument: $kind = $value),*) }
    )* };
    (@one $name:ident = $c:ident($($argument:ident: $kind:ty = $value:expr),*)) => {
        /// The Fortran function of this name.
        ///
        /// # Safety
        ///
        /// As the MPI standard says.
        #[allow(clippy::too_many_arguments)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            name: *const c_char,
            $($argument: $kind,)*
            error: *mut c_int,
            length: usize,
        ) {
            function!(NEXT = symbol_name!(stringify!($name)));
            // SAFETY: the caller's promise: Fortran gives the addresses of its arguments; the MPI
            // library's function of this name has this type.
            unsafe {
                let bytes = if name.is_null() {
                    &[]
                } else {
                    std::slice::from_raw_parts(name.cast::<u8>(), length & 0x7fff_ffff)
                };
                if !fortran_names::past_us() || bytes.trim_ascii() != c"external32".to_bytes() {
                    let address = NEXT.address();
                    if address != 0 {
                        let call: unsafe extern "C-unwind" fn(
                            *const c_char, $($kind,)* *mut c_int, usize
                        ) = std::mem::transmute(address);
                        call(name, $($argument,)* error, length);
                    }
                    return;
                }
                let code = $c(c"external32".as_ptr(), $($value),*);
                if !error.is_null() {
                    *error = code;
                }
            }
        }
    };
}

fortran! {
    mpi_pack_external_, ompi_pack_external_f = MPI_Pack_external(
        input: *mut c_void = fortran_names::buffer(input).cast_const(),
        count: *const c_int = *count,
        datatype: *const c_int = pmpi::type_f2c(*datatype),
        output: *mut c_void = fortran_names::buffer(output),
        size: *const isize = *size,
        position: *mut isize = position);
    mpi_unpack_external_, ompi_unpack_external_f = MPI_Unpack_external(
        input: *mut c_void = fortran_names::buffer(input).cast_const(),
        size: *const isize = *size,
        position: *mut isize = position,
        output: *mut c_void = fortran_names::buffer(output),
        count: *const c_int = *count,
        datatype: *const c_int = pmpi::type_f2c(*datatype));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_turned_round_one_by_one() {
        let bytes: Vec<u8> = (0..=255).collect();
        for unit in [1usize, 2, 4, 8] {
            let (mut own, mut expected) = (bytes.clone(), bytes.clone());
            Grain::Basic(unit as u64, unit as u8).swap(&mut own);
            if cfg!(target_endian = "little") {
                expected.chunks_mut(unit).for_each(<[u8]>::reverse);
            }
            assert_eq!(own, expected, "{unit}");
        }
        let pair = Grain::Mixed(Arc::new([(2, Grain::Basic(2, 2)), (8, Grain::Basic(4, 4))]));
        assert_eq!(pair.period(), Some(10));
        let mut own: Vec<u8> = (0..20).collect();
        pair.swap(&mut own);
        if cfg!(target_endian = "little") {
            let expected = [
                1, 0, 5, 4, 3, 2, 9, 8, 7, 6, 11, 10, 15, 14, 13, 12, 19, 18, 17, 16,
            ];
            assert_eq!(own, expected);
        }
        assert_eq!(Grain::Basic(8, 0).period(), None);
        let long = Grain::Mixed(Arc::new([(8, Grain::Basic(8, 0)), (4, Grain::Basic(4, 4))]));
        assert_eq!(long.period(), None);
    }
}
