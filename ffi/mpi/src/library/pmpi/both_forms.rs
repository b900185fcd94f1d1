// SPDX-License-Identifier: MIT OR Apache-2.0

//! Calls of functions that the MPI library has in two forms: with `int`s, and with `MPI_Count`s.
//! Programs find the form for large counts here even if the library does not have it, and may have
//! their own way without it (mpi4py has), so then the other form does what it can. What nobody can
//! do, the communicator's error handler hears of.

use std::ffi::{c_int, c_void};

use crate::library::abi::{self, Word, complain};
use crate::library::neighbourhood::{Members, Neighbours};
use crate::library::pmpi::functions::{MISSING, comm_call_errhandler};
use crate::library::requests::{Role, Table};

/// Declares a function; `N` counts elements. Its arguments have the kinds of
/// [`crate::library::functions::argument_type`]. Before its name stand the ways to look for it
/// ([`crate::library::abi::Function`]), behind it the names that the library has for both forms,
/// and one from before it was in the standard. Last come the communicator and the request, where
/// there are any, and the lengths of its arrays.
macro_rules! both_forms {
    ([$address:ident $if_any:ident $known:ident] $rust:ident = [$name:ident $large:ident $($before:ident)?]
     ($($argument:ident: $kind:ident),*) [$($comm:ident)?] [$($request:ident)?] $arrays:expr) => {
        #[doc = concat!("`", stringify!($name), "`")]
        ///
        /// # Safety
        ///
        /// As the MPI standard says.
        #[allow(clippy::too_many_arguments)]
        #[inline(always)]
        // Not every function is called both for the program and by us.
        #[allow(dead_code)]
        pub unsafe fn $rust<N: Count>($($argument: argument_type!(N, $kind)),*) -> c_int {
            type Call<N> = unsafe extern "C-unwind" fn($(argument_type!(N, $kind)),*) -> c_int;
            function!(FUNCTION = profiling_name!($name));
            function!(LARGE = profiling_name!($large));

            /// What is called where something is pending, or the function has not been looked for.
            #[cold]
            #[inline(never)]
            #[allow(clippy::too_many_arguments)]
            unsafe extern "C-unwind" fn unusual<N: Count>($($argument: argument_type!(N, $kind)),*) -> c_int {
                if let Err(code) = async_guard::before() {
                    return code;
                }
                let function = || {
                    $(
                        function!(BEFORE = profiling_name!($before));
                        if FUNCTION.$if_any() == 0 {
                            return BEFORE.$address();
                        }
                    )?
                    FUNCTION.$address()
                };
                let own = if N::LARGE { LARGE.$if_any() } else { function() };
                if own != 0 {
                    // SAFETY: the MPI library's function of this name has this type.
                    return unsafe {
                        std::mem::transmute::<usize, Call<N>>(own)($($argument),*)
                    };
                }
                // SAFETY: the caller's promise.
                unsafe { with_ints::<N>(function(), $($argument),*) }
            }

            /// What is called where only the form without large counts is there, if it is.
            #[cold]
            #[inline(never)]
            #[allow(clippy::too_many_arguments)]
            unsafe fn with_ints<N: Count>(function: usize, $($argument: argument_type!(N, $kind)),*) -> c_int {
                let call = || {
                    if !N::LARGE || function == 0 {
                        return None;
                    }
                    let _arrays = $arrays;
                    $(let _arrays = _arrays.lengths($comm);)?
                    let mut _copies = Copies::new();
                    $(let $argument = narrowed!($kind, $argument, _arrays, _copies)?;)*
                    // SAFETY: the MPI library's function of this name has this type, and has
                    // written a request if it returns 0.
                    unsafe {
                        type Call = unsafe extern "C-unwind" fn($(argument_type!(c_int, $kind)),*) -> c_int;
                        let code = std::mem::transmute::<usize, Call>(function)($($argument),*);
                        $(if code == 0 {
                            _copies.keep($request);
                        })?
                        Some(code)
                    }
                };
                call().unwrap_or_else(|| {
                    refuse(concat!("no MPI library has ", stringify!($name), " for this"), [$($comm)?].first())
                })
            }

            // One call in any case, which is but a jump.
            let own = if N::LARGE { LARGE.$known() } else { FUNCTION.$known() };
            let call: Call<N> = if own == 0 || async_guard::is_needed() {
                unusual::<N>
            } else {
                // SAFETY: the MPI library's function of this name has this type.
                unsafe { std::mem::transmute::<usize, Call<N>>(own) }
            };
            // SAFETY: the caller's promise.
            unsafe { call($($argument),*) }
        }
    };
}
pub(crate) use both_forms;

/// An argument in the form whose counts are `int`s; `None` if it does not fit. Arrays are copied.
macro_rules! narrowed {
    (count, $argument:ident, $lengths:ident, $copies:ident) => {
        $argument.narrow()
    };
    (counts, $argument:ident, $lengths:ident, $copies:ident) => {
        // SAFETY: the MPI standard says that it is this long.
        unsafe { $copies.add($argument, $lengths.all, N::narrow) }
    };
    (places, $argument:ident, $lengths:ident, $copies:ident) => {
        // SAFETY: the MPI standard says that it is this long.
        unsafe { $copies.add($argument, $lengths.all, N::narrow_place) }
    };
    (sent_counts, $argument:ident, $lengths:ident, $copies:ident) => {
        // SAFETY: the MPI standard says that it is this long.
        unsafe { $copies.add($argument, $lengths.sent, N::narrow) }
    };
    (sent_places, $argument:ident, $lengths:ident, $copies:ident) => {
        // SAFETY: the MPI standard says that it is this long.
        unsafe { $copies.add($argument, $lengths.sent, N::narrow_place) }
    };
    ($other:ident, $argument:ident, $lengths:ident, $copies:ident) => {
        Some($argument)
    };
}
pub(crate) use narrowed;

/// Has the error handler of a communicator hear of a call that nobody can do, if it has one.
#[cold]
pub fn refuse(why: &str, comm: Option<&Word>) -> c_int {
    complain(why);
    let code = abi::get().map_or(MISSING, |abi| abi.error);
    if let Some(comm) = comm {
        // SAFETY: the caller's communicator, which the library checks.
        unsafe { comm_call_errhandler(*comm, code) };
    }
    code
}

/// What arrays a collective has.
pub enum Arrays {
    /// There are none.
    None,
    /// One element for each rank that is received from.
    PerPeer,
    /// One element for each neighbour that is sent to or received from.
    PerNeighbour,
    /// One for each rank that is received from, and for each that is sent to, unless this send
    /// buffer is the other one.
    Exchange(*const c_void),
    /// One for each rank of the caller's group.
    PerRank,
    /// One for each that the root sends to or receives from; nobody else has any.
    AtRoot(c_int),
}

/// How long these are; arrays that MPI ignores may be anything.
pub struct Lengths {
    /// All but those below.
    pub all: usize,
    /// Of what is sent, where something else is received.
    pub sent: usize,
}

impl Arrays {
    /// How long they are in a call on this communicator.
    pub fn lengths(self, comm: Word) -> Lengths {
        if let Arrays::None = self {
            return Lengths { all: 0, sent: 0 };
        }
        let members = Members::of(comm).unwrap_or_default();
        let (abi, peers) = (abi::get().ok(), members.peers());
        let root = if members.is_inter {
            abi.map(|abi| abi.root)
        } else {
            Some(members.rank)
        };
        let (all, sent) = match self {
            Arrays::None => (0, 0),
            Arrays::PerPeer => (peers, 0),
            Arrays::Exchange(send) => {
                let in_place = abi.is_some_and(|abi| send as usize == abi.in_place);
                (peers, if in_place { 0 } else { peers })
            }
            Arrays::PerRank => (members.size, 0),
            Arrays::PerNeighbour => {
                let neighbours = abi.and_then(|abi| Neighbours::of(abi, comm));
                let count = |side: &[c_int]| c_int::try_from(side.len()).unwrap_or(0);
                let both = neighbours.map(|n| (count(&n.sources), count(&n.destinations)));
                both.unwrap_or((0, 0))
            }
            Arrays::AtRoot(this) if Some(this) == root => (peers, peers),
            Arrays::AtRoot(_) => (0, 0),
        };
        Lengths {
            all: usize::try_from(all).unwrap_or(0),
            sent: usize::try_from(sent).unwrap_or(0),
        }
    }
}

/// Arrays with `int`s in the place of a call's own.
#[derive(Debug)]
pub struct Copies(Vec<Vec<c_int>>);

/// What requests may still read, by their handles. Of a handle that another request has, the one
/// before is complete: there are as many entries as there were requests at a time.
static KEPT: Table<Copies> = Table::new(Role::Kept);

impl Copies {
    /// None so far.
    pub fn new() -> Copies {
        Copies(Vec::new())
    }

    /// An array's copy in `int`s; `None` if an element does not fit.
    ///
    /// # Safety
    ///
    /// It is null, or has `length` elements.
    pub unsafe fn add<T: Copy>(
        &mut self,
        array: *const T,
        length: usize,
        narrow: impl Fn(T) -> Option<c_int>,
    ) -> Option<*const c_int> {
        if array.is_null() || length == 0 {
            return Some(std::ptr::null());
        }
        // SAFETY: the caller's promise.
        let values = unsafe { std::slice::from_raw_parts(array, length) };
        let copy: Option<Vec<c_int>> = values.iter().map(|value| narrow(*value)).collect();
        let copy = copy?;
        let at = copy.as_ptr();
        self.0.push(copy);
        Some(at)
    }

    /// Keeps them as long as a request may read them.
    ///
    /// # Safety
    ///
    /// The library wrote a handle there.
    pub unsafe fn keep(self, request: *const c_void) {
        let Ok(abi) = abi::get() else {
            return;
        };
        // SAFETY: the caller's promise.
        let handle = unsafe { abi.handle_at(request, 0) } & abi.handle;
        drop(if self.0.is_empty() {
            KEPT.remove(handle)
        } else {
            KEPT.insert(handle, self)
        });
    }
}
