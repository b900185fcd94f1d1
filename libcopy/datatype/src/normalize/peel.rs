// SPDX-License-Identifier: MIT OR Apache-2.0

//! Strips a type of the constructors that do not change which bytes it has: duplicates, bounds, and
//! wrappers of one element.

use super::super::datatype::{Contents, Datatype};

/// Strips what does not matter for the bytes: duplicates, bounds, single-element wrappers. Returns
/// the type and where it is.
pub(super) fn peel(datatype: &Datatype) -> (&Datatype, i64) {
    let mut at = datatype;
    let mut offset = 0i64;
    loop {
        at = at.essence();
        let inner = match at.contents() {
            Contents::Contiguous { count: 1, child }
            | Contents::Vector {
                count: 1,
                blocklength: 1,
                child,
                ..
            }
            | Contents::Hvector {
                count: 1,
                blocklength: 1,
                child,
                ..
            } => child,
            Contents::Indexed {
                blocklengths,
                displacements,
                child,
            } if **blocklengths == [1] => {
                offset = offset.wrapping_add(displacements[0].wrapping_mul(child.extent()));
                child
            }
            Contents::Hindexed {
                blocklengths,
                displacements,
                child,
            } if **blocklengths == [1] => {
                offset = offset.wrapping_add(displacements[0]);
                child
            }
            Contents::Struct {
                blocklengths,
                displacements,
                children,
            } if **blocklengths == [1] => {
                offset = offset.wrapping_add(displacements[0]);
                match children.get(0) {
                    Some(child) => child,
                    None => return (at, offset),
                }
            }
            Contents::IndexedBlock {
                blocklength: 1,
                displacements,
                child,
            } if displacements.len() == 1 => {
                offset = offset.wrapping_add(displacements[0].wrapping_mul(child.extent()));
                child
            }
            Contents::HindexedBlock {
                blocklength: 1,
                displacements,
                child,
            } if displacements.len() == 1 => {
                offset = offset.wrapping_add(displacements[0]);
                child
            }
            _ => return (at, offset),
        };
        at = inner;
    }
}
