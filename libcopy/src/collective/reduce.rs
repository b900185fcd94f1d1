// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reductions: the elements are divided among the ranks, and each rank combines its slice of
//! everybody's elements, chunk by chunk, straight out of the others' memory. Then the slices are
//! where they belong (reduce-scatter), or are gathered (reduce, allreduce).
//!
//! Every element is combined by one rank only, so that all get the same result even where rounding
//! depends on the order. The order is the ranks' from the combining one on, around the circle: the
//! operation must be commutative. Nothing but the number of ranks and the division of the elements
//! has a part in it, neither the transport nor what it refuses, so that the same elements give the
//! same bits each time.

use super::cooperative::Rts;
use super::division::Division;
use crate::error::{Allowed, Error, Result};
use crate::memcpy;
use crate::op::{Call, Op};
use crate::policy::Path;
use crate::shm::mailbox::{Source, Step, Target};
use crate::team::Team;
use crate::topology::Topology;
use crate::transport::TransportKind;
use crate::transport::stream::{Receiving, Sending, exchange};

/// Combines the elements of its first argument into those of its second, which are as many.
pub(super) type Combine<'a> = &'a mut dyn FnMut(&[u8], &mut [u8]);

/// Bytes that are fetched from a peer at a time: they are combined while they are in the
/// second-level cache. At least three times as many are in it then: a peer's, where these are
/// fetched to, and what they are combined with.
fn chunk() -> usize {
    (Topology::current().l2 / 8).clamp(32 << 10, 128 << 10)
}

/// Checks what all reductions ask of their arguments.
pub(super) fn whole_elements(len: usize, element: usize) -> Result<()> {
    if element == 0 || len % element != 0 {
        return Err(Error::argument(
            "length of a reduction",
            len,
            Allowed::MultipleOf(element as u64),
        ));
    }
    Ok(())
}

/// Combines our slice of everybody's elements at `to`. When it returns, nobody looks at our
/// elements any more.
///
/// # Safety
///
/// `from` is readable for all slices of `division`, and `to` writable for ours; `to` is either
/// elsewhere, or our slice in `from`. Nobody else uses either meanwhile.
pub(super) unsafe fn scatter(
    team: &mut Team,
    op: Op,
    (from, len): (*const u8, usize),
    to: *mut u8,
    division: Division<'_>,
    element: usize,
    combine: Combine<'_>,
) -> Result<()> {
    let me = team.rank();
    let (own_offset, own_len) = division.part(me);
    let keep_own = |start: usize, n: usize| {
        // SAFETY: the chunk is inside our slice; the two do not overlap unless they are the same.
        unsafe {
            let from = from.add(own_offset + start);
            if !std::ptr::eq(from, to.add(start)) {
                memcpy::cached(to.add(start), from, n);
            }
        }
    };
    if team.size() == 1 {
        keep_own(0, own_len);
        return Ok(());
    }
    let peers: Vec<usize> = (me + 1..team.size()).chain(0..me).collect();
    let call = Call::new(op, 0, len);
    let key = match team.decide(op, len / team.size()).path {
        Path::Via(kind) if kind != TransportKind::Shm => {
            // SAFETY: the caller's promise; peers are done when they have told so, below. An error
            // breaks the team, and the memory is opened for reading only.
            unsafe { team.open(kind, from.cast_mut(), len, false) }
        }
        _ => None,
    };
    let words = Rts::at(key).to_words();
    team.mailbox.tell(Target::All, Step::Rts, call, words)?;
    let mut keys = Vec::with_capacity(peers.len());
    for &rank in &peers {
        let source = Source::Cast(rank);
        let header = team.mailbox.expect(source, call, &[Step::Rts])?;
        keys.push(Rts::from_words(header.words)?.key);
    }

    // How much of our slice came out of each peer's memory; what is missing is streamed. No peer's
    // elements are combined before those of the peers in front of it, so the first that cannot be
    // reached ends this for all.
    let mut got = vec![0; peers.len()];
    let largest = (chunk() / element).max(1) * element;
    // SAFETY: our slice is inside our elements.
    let own = unsafe { from.add(own_offset) };
    let in_place = std::ptr::eq(own, to);
    // The first peer's need not be copied where ours are elsewhere.
    let is_fetched_twice = in_place || peers.len() > 1;
    let mut scratch = team.take_scratch(if is_fetched_twice {
        largest.min(own_len)
    } else {
        0
    })?;
    let mut start = 0;
    'reached: while start < own_len {
        let n = largest.min(own_len - start);
        for (index, &rank) in peers.iter().enumerate() {
            let at = (own_offset + start) as u64;
            let is_first = index == 0 && !in_place;
            let place = if is_first {
                // SAFETY: the chunk is inside our slice.
                unsafe { to.add(start) }
            } else {
                scratch.as_mut_ptr().cast::<u8>()
            };
            let pulled = match keys[index] {
                // SAFETY: there is room for a chunk.
                Some(key) => unsafe {
                    let pulled = team.one_sided(key.kind())?.pull(rank, key, at, place, n);
                    pulled.inspect_err(|_| team.invalidate(key.kind())).is_ok()
                },
                None => false,
            };
            if !pulled {
                let begun = start + if index == 0 { 0 } else { n };
                keep_own(begun, own_len - begun);
                break 'reached;
            }
            // SAFETY: the chunk is inside our slice, and the scratch has as many bytes of the
            // peer's. Ours are elsewhere than the result if the peer's are where that will be.
            unsafe {
                let others = if is_first { own.add(start) } else { place };
                let others = std::slice::from_raw_parts(others, n);
                combine(others, std::slice::from_raw_parts_mut(to.add(start), n));
            }
            got[index] = start + n;
        }
        start += n;
    }
    team.keep_scratch(scratch);

    for (&rank, &got) in peers.iter().zip(&got) {
        let words = [got as u64, 0, 0, 0, 0, 0];
        team.mailbox
            .tell(Target::One(rank), Step::Fin, call, words)?;
    }
    let mut sending = Vec::new();
    for &rank in &peers {
        let source = Source::One(rank);
        let header = team.mailbox.expect(source, call, &[Step::Fin])?;
        let (offset, whole) = division.part(rank);
        let theirs = usize::try_from(header.words[0]).unwrap_or(usize::MAX);
        if theirs > whole {
            return Err(Error::corrupt("the length of a slice", header.words[0]));
        }
        if theirs < whole {
            // SAFETY: the rest of the slice is inside the caller's elements.
            sending.push(unsafe {
                let rest = from.add(offset + theirs);
                Sending::new(Target::One(rank), rest, whole - theirs)
            });
        }
    }
    let missing: usize = got.iter().map(|got| own_len - got).sum();
    if missing == 0 && sending.is_empty() {
        return Ok(());
    }
    let flow = team.flow(len);
    let mut rests = team.take_scratch(missing)?;
    let place = rests.as_mut_ptr().cast::<u8>();
    let (mut receiving, mut filled) = (Vec::new(), 0);
    for (&rank, &got) in peers.iter().zip(&got).filter(|(_, got)| **got < own_len) {
        // SAFETY: the scratch has room for all that is missing.
        receiving.push(unsafe {
            let to = place.add(filled);
            Receiving::new(Source::One(rank), to, own_len - got)
        });
        filled += own_len - got;
    }
    exchange(&mut team.mailbox, flow, &mut sending, &mut receiving)?;
    let mut filled = 0;
    // In chunks again: what an operation does with the last elements of many may be something else.
    for &got in got.iter().filter(|got| **got < own_len) {
        for start in (got..own_len).step_by(largest) {
            let n = largest.min(own_len - start);
            // SAFETY: as above; the rest of our slice is writable.
            unsafe {
                let theirs = std::slice::from_raw_parts(place.add(filled), n);
                combine(theirs, std::slice::from_raw_parts_mut(to.add(start), n));
            }
            filled += n;
        }
    }
    team.keep_scratch(rests);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_whole() {
        assert!(whole_elements(10, 0).is_err());
        assert!(whole_elements(10, 4).is_err());
        assert!(whole_elements(12, 4).is_ok());
    }
}
