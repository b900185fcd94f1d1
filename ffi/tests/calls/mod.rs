// SPDX-License-Identifier: MIT OR Apache-2.0

//! Random calls of the C API, with arguments that the header allows and with those that it calls an
//! error: null pointers, ranks and roots that do not exist, counts beyond all memory. Every buffer
//! is as long as it has to be and no longer. A call must return one of the codes that it may,
//! within a second.

use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};

use copy::*;

/// The most time of a processor that a call may take.
const PATIENCE: Duration = Duration::from_secs(1);
/// The longest time that it may take on a busy machine.
const BUSY_PATIENCE: Duration = Duration::from_secs(60);
/// Types that are kept.
const TYPES: usize = 24;
/// Bytes that elements may be spread over if bytes are moved.
const SPAN: i128 = 1 << 16;
/// Bytes that are moved in calls that move all.
const WHOLE: u128 = 1 << 20;
/// Calls after which everything is begun anew, so that what fails can be found.
const ROUND: usize = 500;

/// Where choices come from.
pub struct Choices<'a> {
    byte: Box<dyn FnMut() -> Option<u8> + 'a>,
    is_over: bool,
}

impl<'a> Choices<'a> {
    /// As many as there are bytes.
    #[allow(dead_code, reason = "for the fuzzer")]
    pub fn of(bytes: &'a [u8]) -> Self {
        let mut bytes = bytes.iter().copied();
        Choices {
            byte: Box::new(move || bytes.next()),
            is_over: false,
        }
    }

    /// Without end.
    #[allow(dead_code, reason = "for the test")]
    pub fn random(seed: u64) -> Self {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let next = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            Some((state >> 32) as u8)
        };
        Choices {
            byte: Box::new(next),
            is_over: false,
        }
    }

    fn byte(&mut self) -> u8 {
        let byte = (self.byte)();
        self.is_over |= byte.is_none();
        byte.unwrap_or(0)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::from(self.byte()) % end
    }

    fn seldom(&mut self) -> bool {
        self.below(24) == 1
    }

    fn number(&mut self) -> u64 {
        match self.below(12) {
            0..7 => self.below(6) as u64,
            7 | 8 => self.byte().into(),
            9 => (1_u64 << self.below(64))
                .wrapping_add(self.below(3) as u64)
                .wrapping_sub(1),
            10 => u64::MAX - self.below(3) as u64,
            _ => u64::from_le_bytes(std::array::from_fn(|_| self.byte())),
        }
    }

    fn signed(&mut self) -> i64 {
        match self.below(3) {
            0 => (self.number() as i64).wrapping_neg(),
            _ => self.number() as i64,
        }
    }

    fn numbers(&mut self, count: usize) -> Vec<u64> {
        (0..count).map(|_| self.number()).collect()
    }

    fn all_signed(&mut self, count: usize) -> Vec<i64> {
        (0..count).map(|_| self.signed()).collect()
    }

    /// The address, or seldom null.
    fn out<T>(&mut self, to: &mut T) -> *mut T {
        if self.seldom() { null_mut() } else { to }
    }

    /// The address of an array, or seldom null.
    fn list<T>(&mut self, list: &[T]) -> *const T {
        if self.seldom() { null() } else { list.as_ptr() }
    }
}

/// Elements in memory that has the bytes from their lowest to their highest, and no other.
struct Memory {
    bytes: Vec<u8>,
    low: i64,
    /// Bytes of data.
    size: u128,
}

impl Memory {
    /// What displacements count from.
    fn base(&mut self) -> *mut c_void {
        self.bytes
            .as_mut_ptr()
            .wrapping_offset((self.low as isize).wrapping_neg())
            .cast()
    }
}

struct Caller<'a> {
    choices: Choices<'a>,
    types: Vec<*mut libcopy_type_t>,
    cursor: *mut libcopy_cursor_t,
    /// The type and the count that the cursor was made for.
    under_cursor: (*mut libcopy_type_t, u64),
    team: *mut libcopy_team_t,
    calls: u64,
}

/// What this thread has had of a processor.
fn processor_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the structure outlives the call.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Makes a call.
macro_rules! call {
    ($caller:ident, $name:ident($($argument:expr),* $(,)?)) => {{
        let (begin, worked) = (Instant::now(), processor_time());
        // SAFETY: the arguments are what the header asks for, or what it says is an error.
        #[allow(unused_unsafe, reason = "some functions are safe")]
        let code = unsafe { $name($($argument),*) };
        let (time, waited) = (processor_time() - worked, begin.elapsed());
        $caller.calls += 1;
        let is_short = time < PATIENCE && waited < BUSY_PATIENCE;
        assert!(is_short, "{} took {time:?}: {}", stringify!($name), $caller.report());
        let is_known = (LIBCOPY_EGPU..=LIBCOPY_OK).contains(&code) && code != LIBCOPY_EINTERNAL;
        assert!(is_known, "{} gives {code}: {}", stringify!($name), $caller.report());
        code
    }};
}

impl Caller<'_> {
    /// The last error, and the types.
    fn report(&self) -> String {
        // SAFETY: the text of an error, which is never null.
        let detail = unsafe { std::ffi::CStr::from_ptr(libcopy_error_detail()) };
        let mut report = format!("after {} calls; {detail:?}", self.calls);
        for one in &self.types {
            let (mut text, mut length) = ([0_u8; 200], 0);
            // SAFETY: a type that was not freed, and room for as many bytes.
            unsafe {
                let room = text.as_mut_ptr().cast();
                libcopy_type_expression(*one, room, text.len(), &raw mut length);
            }
            let text = &text[..length.min(text.len() - 1)];
            report += &format!("\n{}", String::from_utf8_lossy(text));
        }
        report
    }

    /// A type, or seldom null.
    fn any(&mut self) -> *mut libcopy_type_t {
        if self.choices.seldom() || self.types.is_empty() {
            return null_mut();
        }
        let index = self.choices.below(self.types.len());
        self.types[index]
    }

    fn keep(&mut self, new: *mut libcopy_type_t) {
        if new.is_null() {
            return;
        }
        self.types.push(new);
        if self.types.len() > TYPES {
            let index = self.choices.below(TYPES);
            let old = self.types.swap_remove(index);
            call!(self, libcopy_type_free(old));
        }
    }

    fn construct(&mut self) {
        let child = self.any();
        let mut new = null_mut();
        let out = self.choices.out(&mut new);
        let few = self.choices.below(5);
        let (lengths, places) = (self.choices.numbers(few), self.choices.all_signed(few));
        // More than any array has is an error without an array.
        let (count, missing) = match self.choices.below(40) {
            1 => (self.choices.number() as usize, true),
            _ => (few, false),
        };
        let (lengths_at, places_at) = if missing {
            (null(), null())
        } else {
            (self.choices.list(&lengths), self.choices.list(&places))
        };
        let (a, b, c) = (
            self.choices.number(),
            self.choices.number(),
            self.choices.signed(),
        );
        let code = match self.choices.below(14) {
            0 => {
                let names = [
                    "double",
                    "MPI_INT",
                    "byte",
                    "MPI_DOUBLE_INT",
                    "long double",
                    "bool",
                    "?",
                    "",
                ];
                let name = CString::new(names[self.choices.below(8)]).unwrap();
                call!(self, libcopy_type_named(name.as_ptr(), out))
            }
            1 => {
                let mut text = String::new();
                let words = [
                    "vector(",
                    "contiguous(",
                    "double",
                    ")",
                    ", ",
                    "3",
                    "-1",
                    "resized(",
                    "0",
                    "18446744073709551615",
                    "struct(",
                    "[",
                    "]",
                    "byte",
                    "indexed(",
                    "hvector(",
                ];
                for _ in 0..self.choices.below(12) {
                    text += words[self.choices.below(16)];
                }
                let text = CString::new(text).unwrap();
                call!(self, libcopy_type_parse(text.as_ptr(), out))
            }
            2 => call!(self, libcopy_type_dup(child, out)),
            3 => call!(self, libcopy_type_contiguous(a, child, out)),
            4 => call!(self, libcopy_type_vector(a, b, c, child, out)),
            5 => call!(self, libcopy_type_hvector(a, b, c, child, out)),
            6 => call!(
                self,
                libcopy_type_indexed(count, lengths_at, places_at, child, out)
            ),
            7 => call!(
                self,
                libcopy_type_hindexed(count, lengths_at, places_at, child, out)
            ),
            8 => call!(
                self,
                libcopy_type_indexed_block(count, a, places_at, child, out)
            ),
            9 => call!(
                self,
                libcopy_type_hindexed_block(count, a, places_at, child, out)
            ),
            10 => {
                let children: Vec<_> = (0..few).map(|_| self.any().cast_const()).collect();
                let children = if missing { null() } else { children.as_ptr() };
                call!(
                    self,
                    libcopy_type_struct(count, lengths_at, places_at, children, out)
                )
            }
            11 => {
                let (sizes, starts) = (self.choices.numbers(few), self.choices.numbers(few));
                let order = self.choices.below(3) as c_int;
                let sizes = if missing { null() } else { sizes.as_ptr() };
                let starts = self.choices.list(&starts);
                let starts = if missing { null() } else { starts };
                call!(
                    self,
                    libcopy_type_subarray(count, sizes, lengths_at, starts, order, child, out)
                )
            }
            12 => {
                let (blocks, processes) = (self.choices.numbers(few), self.choices.numbers(few));
                let dealt: Vec<c_int> = (0..few).map(|_| self.choices.below(4) as c_int).collect();
                let order = self.choices.below(3) as c_int;
                let product = processes.iter().try_fold(1_u64, |a, b| a.checked_mul(*b));
                let size = product.filter(|_| !self.choices.seldom()).unwrap_or(a);
                let rank = if size > 0 { b % size } else { b };
                call!(
                    self,
                    libcopy_type_darray(
                        size,
                        rank,
                        few,
                        lengths.as_ptr(),
                        dealt.as_ptr(),
                        blocks.as_ptr(),
                        processes.as_ptr(),
                        order,
                        child,
                        out,
                    )
                )
            }
            _ => call!(self, libcopy_type_resized(c, a as i64, child, out)),
        };
        assert_eq!(code == LIBCOPY_OK, !new.is_null());
        self.keep(new);
    }

    fn inspect(&mut self) {
        let (one, count) = (self.any(), self.choices.number());
        let (mut a, mut b, mut c, mut d) = (0_u64, 0_u64, 0_i64, 0_i64);
        let (mut x, mut y, mut z, mut kind) = (0_usize, 0_usize, 0_usize, 0);
        let offset = self.choices.number();
        let room = self.choices.below(9);
        match self.choices.below(20) {
            0 => drop(call!(self, libcopy_type_commit(one))),
            1 => drop(call!(
                self,
                libcopy_type_size(one, self.choices.out(&mut a))
            )),
            2 => {
                let (low, extent) = (self.choices.out(&mut c), self.choices.out(&mut d));
                call!(self, libcopy_type_extent(one, low, extent));
            }
            3 => {
                let (low, extent) = (self.choices.out(&mut c), self.choices.out(&mut d));
                call!(self, libcopy_type_true_extent(one, low, extent));
            }
            4 => {
                let mut text = vec![0; self.choices.below(40)];
                let at = if self.choices.seldom() {
                    null_mut()
                } else {
                    text.as_mut_ptr()
                };
                let at = at.cast::<c_char>();
                call!(
                    self,
                    libcopy_type_expression(one, at, text.len(), self.choices.out(&mut x))
                );
            }
            5 | 6 => {
                let code = call!(
                    self,
                    libcopy_type_envelope(one, &mut kind, &mut x, &mut y, &mut z)
                );
                let (mut integers, mut counts) = (vec![0; x], vec![0; y]);
                let mut types = vec![null_mut(); z];
                if code == LIBCOPY_OK {
                    let short = usize::from(self.choices.seldom());
                    let code = call!(
                        self,
                        libcopy_type_contents(
                            one,
                            x.saturating_sub(short),
                            integers.as_mut_ptr(),
                            y,
                            counts.as_mut_ptr(),
                            z,
                            types.as_mut_ptr(),
                        )
                    );
                    if code == LIBCOPY_OK {
                        types.into_iter().for_each(|one| self.keep(one));
                    }
                }
            }
            7 => drop(call!(
                self,
                libcopy_type_segment_count(count, one, self.choices.out(&mut a))
            )),
            8 => {
                let mut list = vec![
                    libcopy_segment_t {
                        offset: 0,
                        length: 0
                    };
                    room
                ];
                let out = self.choices.out(&mut x);
                let at = list.as_mut_ptr();
                call!(
                    self,
                    libcopy_type_segments(count, one, offset, at, room, out)
                );
            }
            9 => {
                let mut alignment = 0;
                call!(
                    self,
                    libcopy_type_alignment(one, self.choices.out(&mut alignment))
                );
            }
            10 => drop(call!(
                self,
                libcopy_type_elements(one, offset, self.choices.out(&mut a))
            )),
            11 => {
                let mut signature = libcopy_signature_t {
                    elements: 0,
                    fingerprint: [0; 2],
                };
                let out = self.choices.out(&mut signature);
                call!(self, libcopy_type_signature(count, one, out));
            }
            12 => self.flatten(one),
            13 => drop(call!(
                self,
                libcopy_type_external_size(count, one, self.choices.out(&mut a))
            )),
            14 => {
                let (segment, skip) = (self.choices.out(&mut a), self.choices.out(&mut b));
                call!(
                    self,
                    libcopy_type_segment_at(count, one, offset, segment, skip)
                );
            }
            15 => {
                let (segments, bytes) = (self.choices.out(&mut a), self.choices.out(&mut b));
                call!(
                    self,
                    libcopy_type_segments_within(count, one, offset, segments, bytes)
                );
            }
            16 => {
                let nothing = libc::iovec {
                    iov_base: null_mut(),
                    iov_len: 0,
                };
                let mut list = vec![nothing; room];
                // Nothing is read or written there.
                let base = std::ptr::without_provenance_mut(1 << 40);
                let (actual, bytes) = (self.choices.out(&mut x), self.choices.out(&mut b));
                let most = self.choices.number();
                let at = list.as_mut_ptr();
                call!(
                    self,
                    libcopy_type_iovec(base, count, one, offset, most, at, room, actual, bytes)
                );
            }
            17 => {
                if !one.is_null() {
                    call!(self, libcopy_type_retain(one));
                    call!(self, libcopy_type_free(one));
                }
            }
            18 => drop(call!(self, libcopy_type_free(null_mut()))),
            _ => self.plan(one, count),
        }
    }

    fn flatten(&mut self, one: *mut libcopy_type_t) {
        let mut length = 0;
        let code = call!(self, libcopy_type_flatten(one, null_mut(), 0, &mut length));
        if code != LIBCOPY_OK || length > WHOLE as usize {
            return;
        }
        let mut bytes = vec![0_u8; length];
        let at = bytes.as_mut_ptr().cast();
        call!(
            self,
            libcopy_type_flatten(one, at, bytes.len(), &mut length)
        );
        if self.choices.below(2) == 0 {
            let at = self.choices.number() as usize % bytes.len().max(1);
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= self.choices.byte();
            }
        }
        if self.choices.seldom() {
            bytes.truncate(self.choices.below(bytes.len().clamp(1, 256)));
        }
        let mut new = null_mut();
        let out = self.choices.out(&mut new);
        call!(
            self,
            libcopy_type_unflatten(bytes.as_ptr().cast(), bytes.len(), out)
        );
        self.keep(new);
    }

    /// What a network card would do.
    fn plan(&mut self, one: *mut libcopy_type_t, count: u64) {
        let (mut words, mut length) = ([0_u32; 64], 0);
        match self.choices.below(3) {
            0 => {
                // SAFETY: both are numbers alone.
                let (mut options, mut plan): (libcopy_nic_options_t, libcopy_nic_plan_t) =
                    unsafe { std::mem::zeroed() };
                call!(self, libcopy_nic_options(&mut options));
                if self.choices.below(2) == 0 {
                    options.strategy = self.choices.signed() as i32;
                    options.hpus = self.choices.number() as u32;
                    options.clock = self.choices.number() as u32;
                    options.rate = self.choices.number() as u32;
                    options.memory = self.choices.number();
                    options.epsilon =
                        [0.2, -1.0, f64::NAN, f64::INFINITY, 1e300][self.choices.below(5)];
                }
                let asked = self.choices.out(&mut options);
                let out = self.choices.out(&mut plan);
                call!(self, libcopy_nic_plan(one, count, asked, out));
            }
            1 => {
                let at = words.as_mut_ptr();
                let out = self.choices.out(&mut length);
                call!(self, libcopy_nic_image(one, count, at, words.len(), out));
            }
            _ => {
                let room = words.len() / LIBCOPY_NIC_STATE_WORDS;
                let interval = self.choices.number() as u32;
                let at = words.as_mut_ptr();
                let out = self.choices.out(&mut length);
                call!(
                    self,
                    libcopy_nic_checkpoints(one, count, interval, at, room, out)
                );
            }
        }
    }

    /// Memory for elements, if they are not spread over too much.
    fn memory(&mut self, one: *mut libcopy_type_t, count: u64) -> Option<Memory> {
        let (mut size, mut low, mut extent, mut true_low, mut true_extent) = (0, 0, 0, 0, 0);
        if one.is_null() {
            return None;
        }
        call!(self, libcopy_type_size(one, &mut size));
        call!(self, libcopy_type_extent(one, &mut low, &mut extent));
        call!(
            self,
            libcopy_type_true_extent(one, &mut true_low, &mut true_extent)
        );
        let size = u128::from(size) * u128::from(count);
        if size == 0 {
            return Some(Memory {
                bytes: Vec::new(),
                low: 0,
                size,
            });
        }
        let last = i128::from(extent).checked_mul(i128::from(count) - 1)?;
        let low = i128::from(true_low) + last.min(0);
        let high = i128::from(true_low) + i128::from(true_extent) + last.max(0);
        (high - low <= SPAN).then_some(())?;
        Some(Memory {
            bytes: vec![1; (high - low) as usize],
            low: i64::try_from(low).ok()?,
            size,
        })
    }

    fn transfer(&mut self) {
        let (one, count) = (self.any(), self.choices.number());
        let Some(mut memory) = self.memory(one, count) else {
            // Nothing is moved: the type is null, or there are no bytes to pack into.
            let (mut x, base) = (0, std::ptr::without_provenance_mut::<c_void>(1 << 40));
            let offset = self.choices.number();
            call!(
                self,
                libcopy_type_pack(base, count, one, offset, null_mut(), 0, &mut x)
            );
            return;
        };
        let mut actual = 0;
        let offset = match self.choices.below(3) {
            0 => self.choices.number(),
            1 => memory.size.min(u128::from(self.choices.number())) as u64,
            _ => 0,
        };
        let mut packed = vec![1_u8; self.choices.number().min(4096) as usize];
        let (room, at) = (packed.len(), packed.as_mut_ptr().cast::<c_void>());
        // A null address is an error, unless displacements are addresses.
        let base = if self.choices.seldom() && memory.low < 4096 {
            null_mut()
        } else {
            memory.base()
        };
        let out = self.choices.out(&mut actual);
        match self.choices.below(10) {
            0 | 1 => drop(call!(
                self,
                libcopy_type_pack(base, count, one, offset, at, room, out)
            )),
            2 | 3 => drop(call!(
                self,
                libcopy_type_unpack(at, room, base, count, one, offset, out)
            )),
            4 => {
                let (other, its_count) = (self.any(), self.choices.number());
                if let Some(mut target) = self.memory(other, its_count) {
                    if memory.size <= WHOLE {
                        let to = target.base();
                        call!(
                            self,
                            libcopy_type_copy(base, count, one, to, its_count, other)
                        );
                    }
                }
            }
            5 if memory.size <= WHOLE => {
                call!(
                    self,
                    libcopy_type_pack_external(base, count, one, at, room, out)
                );
            }
            6 if memory.size <= WHOLE => {
                call!(
                    self,
                    libcopy_type_unpack_external(at, room, base, count, one, out)
                );
            }
            7 => {
                let op = self.choices.below(13) as c_int;
                call!(
                    self,
                    libcopy_type_pack_reduce(base, count, one, op, offset, at, room, out)
                );
            }
            8 => {
                let op = self.choices.below(13) as c_int;
                call!(
                    self,
                    libcopy_type_unpack_reduce(at, room, base, count, one, op, offset, out)
                );
            }
            _ => {
                let stream = null_mut();
                let code = call!(
                    self,
                    libcopy_type_pack_gpu(base, count, one, offset, at, room, stream, out)
                );
                assert!(code != LIBCOPY_OK || room == 0 || memory.size == 0 || actual == 0);
            }
        }
    }

    fn walk(&mut self) {
        if self.cursor.is_null() || self.choices.below(8) == 0 {
            call!(self, libcopy_cursor_free(self.cursor));
            self.cursor = null_mut();
            let (one, count) = (self.any(), self.choices.number());
            let mut new = null_mut();
            let out = self.choices.out(&mut new);
            call!(self, libcopy_cursor_new(count, one, out));
            self.cursor = new;
            // The memory is found by the type, which stays.
            if !one.is_null() {
                call!(self, libcopy_type_retain(one));
            }
            call!(self, libcopy_type_free(self.under_cursor.0));
            self.under_cursor = (one, count);
            return;
        }
        let cursor = if self.choices.seldom() {
            null_mut()
        } else {
            self.cursor
        };
        let (mut x, mut a, room) = (0, 0, self.choices.below(9));
        let most = self.choices.number();
        match self.choices.below(6) {
            0 => drop(call!(
                self,
                libcopy_cursor_position(cursor, self.choices.out(&mut a))
            )),
            1 => drop(call!(self, libcopy_cursor_seek(cursor, most))),
            2 => {
                let mut list = vec![
                    libcopy_segment_t {
                        offset: 0,
                        length: 0
                    };
                    room
                ];
                let out = self.choices.out(&mut x);
                let at = list.as_mut_ptr();
                call!(self, libcopy_cursor_segments(cursor, most, at, room, out));
            }
            3 => {
                let nothing = libc::iovec {
                    iov_base: null_mut(),
                    iov_len: 0,
                };
                let mut list = vec![nothing; room];
                let base = std::ptr::without_provenance_mut(1 << 40);
                let (actual, bytes) = (self.choices.out(&mut x), self.choices.out(&mut a));
                let at = list.as_mut_ptr();
                call!(
                    self,
                    libcopy_cursor_iovec(cursor, base, most, at, room, actual, bytes)
                );
            }
            which => {
                let (one, count) = self.under_cursor;
                let Some(mut memory) = self.memory(one, count) else {
                    return;
                };
                let mut packed = vec![1_u8; self.choices.number().min(4096) as usize];
                let (room, at) = (packed.len(), packed.as_mut_ptr().cast::<c_void>());
                let base = memory.base();
                let out = self.choices.out(&mut x);
                if which == 4 {
                    call!(self, libcopy_cursor_pack(cursor, base, at, room, out));
                } else {
                    call!(self, libcopy_cursor_unpack(cursor, at, room, base, out));
                }
            }
        }
    }

    /// Calls of a team of one.
    fn together(&mut self) {
        if self.team.is_null() || self.choices.below(64) == 0 {
            call!(self, libcopy_team_free(self.team));
            let mut team = null_mut();
            let out = self.choices.out(&mut team);
            if self.choices.below(2) == 0 {
                let key: [u8; 16] = std::array::from_fn(|_| self.choices.byte());
                // Ranks that nobody will ever be are not waited for.
                let size = self.choices.number().saturating_add(1) as usize;
                let rank = size.saturating_add(self.choices.number() as usize);
                call!(self, libcopy_team_join(key.as_ptr(), rank, size, out));
                assert!(team.is_null());
            }
            call!(self, libcopy_team_from_env(out));
            self.team = team;
            return;
        }
        let team = if self.choices.seldom() {
            null_mut()
        } else {
            self.team
        };
        let length = self.choices.number().min(4096) as usize;
        // No memory, and seldom as much as nobody has.
        let (mut from, mut to) = (vec![1_u8; length], vec![2_u8; length]);
        let (mut from, mut to, length) = match self.choices.below(24) {
            1 => (null_mut(), null_mut(), self.choices.number() as usize),
            _ => {
                let places = (from.as_mut_ptr(), to.as_mut_ptr());
                (places.0.cast::<c_void>(), places.1.cast::<c_void>(), length)
            }
        };
        if self.choices.seldom() {
            std::mem::swap(&mut from, &mut to);
        }
        let root = if self.choices.below(4) == 0 {
            self.choices.number() as usize
        } else {
            0
        };
        let tag = self.choices.signed() as c_int;
        let peer = if self.choices.below(4) == 0 {
            self.choices.signed() as isize
        } else {
            0
        };
        let mut x = 0;
        // A part that ends where the buffers do, or one that no memory has.
        let start = if length > 0 {
            self.choices.below(256) % length
        } else {
            0
        };
        let part = if self.choices.seldom() {
            ([usize::MAX], [self.choices.number().max(1) as usize])
        } else {
            ([length - start], [start])
        };
        let (counts, offsets) = (self.choices.list(&part.0), self.choices.list(&part.1));
        match self.choices.below(24) {
            0 => drop(call!(
                self,
                libcopy_team_rank(team, self.choices.out(&mut x))
            )),
            1 => drop(call!(
                self,
                libcopy_team_size(team, self.choices.out(&mut x))
            )),
            2 => {
                let names = ["shm", "cma", "kmod", "", "none"];
                let name = CString::new(names[self.choices.below(5)]).unwrap();
                call!(self, libcopy_team_set_transport(team, name.as_ptr()));
                call!(self, libcopy_team_set_transport(team, null()));
            }
            3 => drop(call!(self, libcopy_team_barrier(team))),
            4 => drop(call!(self, libcopy_team_bcast(team, from, length, root))),
            5 => drop(call!(
                self,
                libcopy_team_gather(team, from, length, root, to)
            )),
            6 => drop(call!(
                self,
                libcopy_team_gather_in_place(team, from, length, root)
            )),
            7 => {
                let own = part.0[0].min(length);
                call!(
                    self,
                    libcopy_team_gatherv(team, from, own, counts, offsets, root, to)
                );
            }
            8 => {
                call!(
                    self,
                    libcopy_team_gatherv_in_place(team, from, length, counts, offsets, root)
                );
            }
            9 => drop(call!(
                self,
                libcopy_team_scatter(team, from, length, root, to)
            )),
            10 => drop(call!(
                self,
                libcopy_team_scatter_in_place(team, from, length, root)
            )),
            11 => {
                let own = part.0[0].min(length);
                call!(
                    self,
                    libcopy_team_scatterv(team, from, counts, offsets, own, root, to)
                );
            }
            12 => {
                call!(
                    self,
                    libcopy_team_scatterv_in_place(team, from, length, counts, offsets, root)
                );
            }
            13 => drop(call!(self, libcopy_team_allgather(team, from, length, to))),
            14 => drop(call!(
                self,
                libcopy_team_allgather_in_place(team, from, length)
            )),
            15 => {
                let own = part.0[0].min(length);
                call!(
                    self,
                    libcopy_team_allgatherv(team, from, own, counts, offsets, to)
                );
            }
            16 => drop(call!(
                self,
                libcopy_team_allgatherv_in_place(team, from, counts, offsets)
            )),
            17 => {
                call!(self, libcopy_settle(from, length));
                call!(self, libcopy_settle_all());
                libcopy_is_settled(to, length);
                let choices = ["off", "auto", "engine", "cpu", "both", "?"];
                let choice = CString::new(choices[self.choices.below(6)]).unwrap();
                call!(self, libcopy_team_set_async(team, choice.as_ptr()));
            }
            _ => self.message((team, peer, root, tag), (from, to, length)),
        }
    }

    /// Messages to oneself; receives are begun only where something is there, or will be.
    fn message(
        &mut self,
        (team, peer, root, tag): (*mut libcopy_team_t, isize, usize, c_int),
        (from, to, length): (*mut c_void, *mut c_void, usize),
    ) {
        let mut status = libcopy_status_t {
            source: 0,
            tag: 0,
            bytes: 0,
        };
        let (mut flag, bytes) = (0, null());
        // Typed, where the type is not spread over too much.
        let (one, count) = (self.any(), self.choices.number());
        let mut memory = self.memory(one, count);
        let (buffer, count, datatype) = match &mut memory {
            Some(memory) if memory.size <= WHOLE && self.choices.below(2) == 0 => {
                (memory.base(), count, one.cast_const())
            }
            _ => (from, length as u64, bytes),
        };
        match self.choices.below(4) {
            0 => drop(call!(
                self,
                libcopy_team_send(team, buffer, count, datatype, root, tag)
            )),
            1 => {
                let (mut sent, mut received) = (null_mut(), null_mut());
                let out = self.choices.out(&mut sent);
                call!(
                    self,
                    libcopy_team_isend(team, buffer, count, datatype, root, tag, out)
                );
                let out = self.choices.out(&mut received);
                let code = call!(
                    self,
                    libcopy_team_irecv(team, to, length as u64, bytes, peer, tag, out)
                );
                if code == LIBCOPY_OK {
                    call!(self, libcopy_team_send(team, from, 0, bytes, 0, tag.max(0)));
                }
                for request in [&mut sent, &mut received] {
                    if request.is_null() {
                        call!(self, libcopy_team_wait(team, request, &mut status));
                        continue;
                    }
                    let out = self.choices.out(&mut flag);
                    call!(
                        self,
                        libcopy_team_test(self.team, request, out, &mut status)
                    );
                    if !request.is_null() {
                        call!(self, libcopy_team_wait(self.team, request, null_mut()));
                    }
                }
            }
            2 => {
                call!(
                    self,
                    libcopy_team_iprobe(team, peer, tag, &mut flag, &mut status)
                );
                if flag != 0 {
                    call!(
                        self,
                        libcopy_team_recv(team, buffer, count, datatype, peer, tag, &mut status)
                    );
                }
            }
            _ => {
                let (send_tag, any) = (tag.max(0), LIBCOPY_ANY_TAG);
                let room = length as u64;
                call!(
                    self,
                    libcopy_team_sendrecv(
                        team,
                        buffer,
                        count,
                        datatype,
                        0,
                        send_tag,
                        to,
                        room,
                        bytes,
                        0,
                        any,
                        null_mut(),
                    )
                );
            }
        }
    }

    fn step(&mut self) {
        match self.choices.below(16) {
            0..5 => self.construct(),
            5..9 => self.inspect(),
            9..12 => self.transfer(),
            12 | 13 => self.walk(),
            _ => self.together(),
        }
    }

    fn end(&mut self) {
        call!(self, libcopy_cursor_free(self.cursor));
        call!(self, libcopy_type_free(self.under_cursor.0));
        for one in std::mem::take(&mut self.types) {
            call!(self, libcopy_type_free(one));
        }
        call!(self, libcopy_team_free(self.team));
    }
}

/// Makes calls until the choices are over, or [`ROUND`] of them; how many they were.
pub fn run(choices: Choices<'_>) -> u64 {
    let mut caller = Caller {
        choices,
        types: Vec::new(),
        cursor: null_mut(),
        under_cursor: (null_mut(), 0),
        team: null_mut(),
        calls: 0,
    };
    for name in [c"double", c"byte", c"MPI_INT"] {
        let mut new = null_mut();
        call!(caller, libcopy_type_named(name.as_ptr(), &mut new));
        caller.keep(new);
    }
    for _ in 0..ROUND {
        if caller.choices.is_over {
            break;
        }
        caller.step();
    }
    caller.end();
    caller.calls
}
