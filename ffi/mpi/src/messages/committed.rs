// SPDX-License-Identifier: MIT OR Apache-2.0

//! `MPIX_Type_commit_comm` and `MPIX_Type_free_comm` ("FALCON-X: Zero-copy MPI derived datatype
//! processing on modern CPU and GPU architectures", section 6.2): the processes of a communicator
//! commit a type together. It gets the same number everywhere, the one behind the largest that any
//! of them has given, and all get to know what it is, so that not even the first message has to
//! send its layout.
//!
//! Each process may have its own layout under the number, as sender and receiver may.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use libcopy::datatype::canonical::Form;
use libcopy::datatype::{Layout, room};
use libcopy::p2p::events::{Event, note};
use libcopy::p2p::header::Header;

use crate::bootstrap::own_collectives::{Plain, allgather};
use crate::comm::communicator;
use crate::comm::processes::world;
use crate::decide::active::active;
use crate::library::abi::{Abi, Word};
use crate::library::panics::caught;
use crate::library::pmpi;
use crate::messages::remote;
use crate::types::{datatype, earned};
use libcopy::lock::lock;

/// The largest number that was given here.
static LAST: AtomicU64 = AtomicU64::new(0);

/// One element of a peer's type.
struct Element {
    form: Form,
    extent: i64,
}

/// Elements by number and process.
static ELEMENTS: Mutex<BTreeMap<(u64, usize), Element>> = Mutex::new(BTreeMap::new());

/// Words of a form that are handed round; those of larger ones are read when they are needed.
const MOST_WORDS: usize = 1 << 16;

/// What each process says about its type.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Card {
    last: u64,
    /// Words that follow; none if the type is not known.
    words: u64,
    extent: i64,
}

// SAFETY: integers only.
unsafe impl Plain for Card {}

/// The layout of a message's elements, if its type was committed together.
pub fn layout(header: &Header) -> Option<Layout> {
    if header.committed == 0 {
        return None;
    }
    let elements = lock(&ELEMENTS);
    let element = elements.get(&(header.committed, header.sender as usize))?;
    let count = header.total.checked_div(element.form.size())?;
    let layout = Layout::from_repeated_form(&element.form, count, element.extent).ok()?;
    drop(elements);
    let words = layout.form().to_words().ok()?;
    let same = words.len() as u64 == header.layout_words
        && libcopy::p2p::hash(&words) == header.layout_hash
        && layout.size() == header.total;
    if same {
        note(Event::LayoutCommitted, 1);
    }
    same.then_some(layout)
}

/// Has all processes of a communicator know their types; the number that these get.
fn hand_round(abi: &'static Abi, comm: Word, datatype: Word) -> Option<()> {
    let known = communicator::of(abi, comm)
        .ok()
        .filter(|known| known.is_plain())?;
    // It will be used.
    earned::keep(abi, datatype);
    let own = datatype::of(abi, datatype);
    let form = own.as_ref().and_then(|own| own.datatype.as_ref());
    // Without words, the others do not know this type.
    let words = form.and_then(|datatype| datatype.commit().ok()?.to_words().ok());
    let mut words = words.unwrap_or_default();
    if words.len() > MOST_WORDS {
        words.clear();
    }
    let mine = Card {
        last: LAST.load(Ordering::Relaxed),
        words: words.len() as u64,
        extent: form.map_or(0, |datatype| datatype.extent()),
    };
    let cards = allgather(abi, comm, mine, known.size)?;
    let number = cards.iter().map(|card| card.last).max()? + 1;
    LAST.store(number, Ordering::Relaxed);
    let counts: Vec<c_int> = cards.iter().map(|card| 8 * card.words as c_int).collect();
    let mut places = Vec::with_capacity(counts.len());
    let mut total: c_int = 0;
    for count in &counts {
        places.push(total);
        // None if the sum does not fit into an `int`; all ranks find the same, since all have the
        // same counts.
        total = total.checked_add(*count)?;
    }
    // Nobody takes part unless all have room for the words.
    let room = room::filled(0u64, total as usize / 8);
    let have_room = allgather(abi, comm, [u64::from(room.is_ok()), 0], known.size)?;
    let mut all = room
        .ok()
        .filter(|_| have_room.iter().all(|one| one[0] == 1))?;
    // SAFETY: all processes are here; as many words from each as its card says.
    let answer = unsafe {
        pmpi::allgatherv(
            words.as_ptr().cast(),
            counts[known.rank],
            abi.byte,
            all.as_mut_ptr().cast(),
            counts.as_ptr(),
            places.as_ptr(),
            abi.byte,
            comm,
        )
    };
    if answer != 0 {
        return None;
    }
    if let Some(own) = own.filter(|_| mine.words != 0) {
        own.committed.store(number, Ordering::Relaxed);
    }
    remote::meet(abi, comm, &known);
    // Where no messages are intercepted, nobody will ask.
    let world = world()?;
    let peers = world.peers(&known, comm);
    for (rank, card) in cards.iter().enumerate() {
        let member = c_int::try_from(rank).ok().and_then(|rank| peers.of(rank));
        let (Some(member), true) = (member, card.words != 0) else {
            continue;
        };
        let first = places[rank] as usize / 8;
        let words = &all[first..first + card.words as usize];
        if let Ok(form) = Form::from_words(words) {
            let extent = card.extent;
            lock(&ELEMENTS).insert((number, member), Element { form, extent });
        }
    }
    Some(())
}

/// `MPI_Type_commit` by all processes of a communicator together, after which no message that has
/// elements of this type has to send a layout. Types may differ between processes.
///
/// # Safety
///
/// As the MPI standard says of `MPI_Type_commit`, and of collectives.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn MPIX_Type_commit_comm(datatype: *mut c_void, comm: Word) -> c_int {
    // SAFETY: the caller's promise.
    let code = unsafe { pmpi::type_commit(datatype.cast()) };
    let Some(abi) = active() else {
        return code;
    };
    // What could not be committed is handed round as unknown: others are waiting.
    let handle = if code == 0 && !datatype.is_null() {
        // SAFETY: the caller's promise.
        unsafe { abi.handle_at(datatype, 0) }
    } else {
        abi.byte
    };
    let work = || hand_round(abi, comm, handle);
    let _ = caught(work);
    code
}

/// `MPI_Type_free` by all processes of a communicator together.
///
/// # Safety
///
/// As the MPI standard says of `MPI_Type_free`, and of collectives.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn MPIX_Type_free_comm(datatype: *mut c_void, comm: Word) -> c_int {
    let _ = comm;
    if let Some(abi) = active().filter(|_| !datatype.is_null()) {
        let forget = || {
            // SAFETY: the caller's promise.
            let handle = unsafe { abi.handle_at(datatype, 0) };
            let Some(known) = datatype::of(abi, handle) else {
                return;
            };
            let number = known.committed.swap(0, Ordering::Relaxed);
            if number != 0 {
                // Messages that are under way still have their layouts in their senders' memory.
                lock(&ELEMENTS).retain(|(other, _), _| *other != number);
            }
        };
        let _ = caught(forget);
    }
    // SAFETY: the caller's promise.
    unsafe { datatype::free(datatype) }
}
