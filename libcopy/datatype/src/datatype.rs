// SPDX-License-Identifier: MIT OR Apache-2.0

//! Datatypes, and how they were built: what `MPI_Type_get_envelope` and `MPI_Type_get_contents`
//! ask.
//!
//! Nothing here recurses, so types may be nested to any depth; the last handle of a deep type is
//! dropped in a loop.

use std::fmt;
use std::iter::repeat_n;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::form::Form;
use super::named::Named;
use super::signature::Signature;
use crate::room;

/// Which index of an array varies fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// The last one, as in C.
    C,
    /// The first one, as in Fortran.
    Fortran,
}

/// How one dimension of a distributed array is dealt out to processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Distribution {
    /// One block of equal size for each process; `None` is MPI's default size,
    /// `ceil(size / processes)`.
    Block(Option<u64>),
    /// Blocks of this size, dealt in turn; `None` is MPI's default size, 1.
    Cyclic(Option<u64>),
    /// Not distributed: every process has the whole dimension.
    None,
}

/// A number for each dimension of an array: a slice that is cheap to clone, and for up to three
/// dimensions needs no memory of its own.
#[derive(Clone)]
pub struct Dimensions(Numbers);

#[derive(Clone)]
enum Numbers {
    Few(u8, [u64; 3]),
    Many(Arc<Vec<u64>>),
}

impl std::ops::Deref for Dimensions {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        match &self.0 {
            Numbers::Few(len, all) => &all[..usize::from(*len)],
            Numbers::Many(all) => all,
        }
    }
}

impl Dimensions {
    pub(super) fn new(numbers: &[u64]) -> room::Result<Dimensions> {
        let mut few = [0; 3];
        Ok(Dimensions(match few.get_mut(..numbers.len()) {
            Some(all) => {
                all.copy_from_slice(numbers);
                Numbers::Few(numbers.len() as u8, few)
            }
            None => Numbers::Many(Arc::new(room::copied(numbers)?)),
        }))
    }
}

impl fmt::Debug for Dimensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// The types of a struct's members, in order. Neighbours of one type share a handle: what a type of
/// many members costs does not grow with their number.
#[derive(Clone, Debug)]
pub struct Members(Arc<Vec<Run>>);

/// Neighbours of one type.
#[derive(Clone, Debug)]
struct Run {
    /// The index behind the last of them.
    end: usize,
    child: Datatype,
}

/// Each type, with the number of neighbours that are of it.
fn counted(runs: &[Run]) -> impl DoubleEndedIterator<Item = (usize, &Datatype)> {
    (0..runs.len()).map(|i| {
        let first = i.checked_sub(1).map_or(0, |before| runs[before].end);
        (runs[i].end - first, &runs[i].child)
    })
}

impl Members {
    pub(super) fn new<'a>(
        children: impl IntoIterator<Item = &'a Datatype>,
    ) -> room::Result<Members> {
        let mut runs = Vec::new();
        let mut children = children.into_iter();
        if let Some(mut last) = children.next() {
            let mut end = 1;
            let run = |end, last: &Datatype| Run {
                end,
                child: last.clone(),
            };
            for child in children {
                if !child.is(last) {
                    room::push(&mut runs, run(end, last))?;
                    last = child;
                }
                end += 1;
            }
            room::push(&mut runs, run(end, last))?;
        }
        Ok(Members(Arc::new(runs)))
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.0.last().map_or(0, |run| run.end)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The type of member `i`, in O(log runs); `None` behind the last.
    pub fn get(&self, i: usize) -> Option<&Datatype> {
        let run = match self.0.len() {
            // Each is of another type than the one before.
            runs if runs == self.len() => i,
            _ => self.0.partition_point(|run| run.end <= i),
        };
        self.0.get(run).map(|run| &run.child)
    }

    /// Each type, with the number of neighbours that are of it.
    pub fn runs(&self) -> impl DoubleEndedIterator<Item = (usize, &Datatype)> {
        counted(&self.0)
    }

    /// The type of each member.
    pub fn iter(&self) -> MemberTypes<'_> {
        MemberTypes {
            runs: &self.0,
            next: 0,
        }
    }
}

/// Iterator over the types of a struct's members; see [`Members::iter`].
#[derive(Clone, Debug)]
pub struct MemberTypes<'a> {
    /// Those with members that are left.
    runs: &'a [Run],
    /// The index of the next member.
    next: usize,
}

impl<'a> Iterator for MemberTypes<'a> {
    type Item = &'a Datatype;

    fn next(&mut self) -> Option<&'a Datatype> {
        let (run, later) = self.runs.split_first()?;
        self.next += 1;
        if self.next == run.end {
            self.runs = later;
        }
        Some(&run.child)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.runs.last().map_or(0, |run| run.end - self.next);
        (left, Some(left))
    }
}

impl ExactSizeIterator for MemberTypes<'_> {}

/// The call that made a datatype, with its arguments: enough to make it again.
///
/// Displacements, strides and bounds are as they were given: in extents of the child where the
/// constructor counts in extents, in bytes in the `h` forms.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Contents {
    /// A predefined type.
    Named(Named),
    /// A duplicate.
    Dup {
        /// Of this type.
        child: Datatype,
    },
    /// `count` copies, one after the other.
    Contiguous {
        /// How many.
        count: u64,
        /// Of this type.
        child: Datatype,
    },
    /// Blocks of equal length at equal distances.
    Vector {
        /// Number of blocks.
        count: u64,
        /// Children in each block.
        blocklength: u64,
        /// Distance between the starts of blocks, in extents of the child.
        stride: i64,
        /// What the blocks consist of.
        child: Datatype,
    },
    /// As `Vector`, the stride in bytes.
    Hvector {
        /// Number of blocks.
        count: u64,
        /// Children in each block.
        blocklength: u64,
        /// Distance between the starts of blocks, in bytes.
        stride: i64,
        /// What the blocks consist of.
        child: Datatype,
    },
    /// Blocks of different lengths anywhere.
    Indexed {
        /// Children in each block.
        blocklengths: Arc<Vec<u64>>,
        /// Start of each block, in extents of the child.
        displacements: Arc<Vec<i64>>,
        /// What the blocks consist of.
        child: Datatype,
    },
    /// As `Indexed`, the displacements in bytes.
    Hindexed {
        /// Children in each block.
        blocklengths: Arc<Vec<u64>>,
        /// Start of each block, in bytes.
        displacements: Arc<Vec<i64>>,
        /// What the blocks consist of.
        child: Datatype,
    },
    /// Blocks of equal length anywhere.
    IndexedBlock {
        /// Children in each block.
        blocklength: u64,
        /// Start of each block, in extents of the child.
        displacements: Arc<Vec<i64>>,
        /// What the blocks consist of.
        child: Datatype,
    },
    /// As `IndexedBlock`, the displacements in bytes.
    HindexedBlock {
        /// Children in each block.
        blocklength: u64,
        /// Start of each block, in bytes.
        displacements: Arc<Vec<i64>>,
        /// What the blocks consist of.
        child: Datatype,
    },
    /// Blocks of different types anywhere.
    Struct {
        /// Children in each block.
        blocklengths: Arc<Vec<u64>>,
        /// Start of each block, in bytes.
        displacements: Arc<Vec<i64>>,
        /// What each block consists of.
        children: Members,
    },
    /// A box cut out of an array.
    Subarray {
        /// Size of the whole array in each dimension.
        sizes: Dimensions,
        /// Size of the box in each dimension.
        subsizes: Dimensions,
        /// Where the box starts in each dimension.
        starts: Dimensions,
        /// Which index varies fastest.
        order: Order,
        /// What the array consists of.
        child: Datatype,
    },
    /// One process's part of an array that is dealt out to a grid of processes.
    Darray {
        /// Number of processes.
        size: u64,
        /// Which of them.
        rank: u64,
        /// Size of the whole array in each dimension.
        sizes: Arc<Vec<u64>>,
        /// How each dimension is dealt out.
        distributions: Arc<Vec<Distribution>>,
        /// Number of processes in each dimension.
        processes: Arc<Vec<u64>>,
        /// Which index of the array varies fastest.
        order: Order,
        /// What the array consists of.
        child: Datatype,
    },
    /// The same data with other bounds.
    Resized {
        /// The new lower bound, in bytes.
        lower_bound: i64,
        /// The new extent, in bytes.
        extent: i64,
        /// The type whose data it is.
        child: Datatype,
    },
}

/// Which constructor made a type: MPI's combiner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum Combiner {
    Named,
    Dup,
    Contiguous,
    Vector,
    Hvector,
    Indexed,
    Hindexed,
    IndexedBlock,
    HindexedBlock,
    Struct,
    Subarray,
    Darray,
    Resized,
}

/// What `MPI_Type_get_envelope_c` returns: the constructor, and how many arguments of each kind
/// `MPI_Type_get_contents_c` would deliver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Envelope {
    /// The constructor.
    pub combiner: Combiner,
    /// Arguments of type `int`: `order`, and `darray`'s size, rank and distributions.
    pub integers: u64,
    /// Arguments of type `MPI_Aint`: none, the large-count forms take `MPI_Count`.
    pub addresses: u64,
    /// Arguments of type `MPI_Count`.
    pub large_counts: u64,
    /// Arguments that are datatypes.
    pub datatypes: u64,
}

impl Contents {
    /// The constructor and its number of arguments, counted as MPI 4.1 section 5.1.13 counts them
    /// for the large-count (`_c`) forms.
    pub fn envelope(&self) -> Envelope {
        use Combiner as C;
        let n = |len: usize| len as u64;
        let (combiner, integers, large_counts, datatypes) = match self {
            Contents::Named(_) => (C::Named, 0, 0, 0),
            Contents::Dup { .. } => (C::Dup, 0, 0, 1),
            Contents::Contiguous { .. } => (C::Contiguous, 0, 1, 1),
            Contents::Vector { .. } => (C::Vector, 0, 3, 1),
            Contents::Hvector { .. } => (C::Hvector, 0, 3, 1),
            Contents::Indexed { displacements, .. } => {
                (C::Indexed, 0, 2 * n(displacements.len()) + 1, 1)
            }
            Contents::Hindexed { displacements, .. } => {
                (C::Hindexed, 0, 2 * n(displacements.len()) + 1, 1)
            }
            Contents::IndexedBlock { displacements, .. } => {
                (C::IndexedBlock, 0, n(displacements.len()) + 2, 1)
            }
            Contents::HindexedBlock { displacements, .. } => {
                (C::HindexedBlock, 0, n(displacements.len()) + 2, 1)
            }
            Contents::Struct { children, .. } => {
                (C::Struct, 0, 2 * n(children.len()) + 1, n(children.len()))
            }
            Contents::Subarray { sizes, .. } => (C::Subarray, 2, 3 * n(sizes.len()), 1),
            Contents::Darray { sizes, .. } => {
                (C::Darray, 3 * n(sizes.len()) + 4, n(sizes.len()), 1)
            }
            Contents::Resized { .. } => (C::Resized, 0, 2, 1),
        };
        Envelope {
            combiner,
            integers,
            addresses: 0,
            large_counts,
            datatypes,
        }
    }

    /// The types that this one is built on, each with the number of neighbours that are of it.
    pub fn runs(&self) -> impl DoubleEndedIterator<Item = (usize, &Datatype)> {
        let (members, child) = match self {
            Contents::Named(_) => (&[][..], None),
            Contents::Struct { children, .. } => (&children.0[..], None),
            Contents::Dup { child }
            | Contents::Contiguous { child, .. }
            | Contents::Vector { child, .. }
            | Contents::Hvector { child, .. }
            | Contents::Indexed { child, .. }
            | Contents::Hindexed { child, .. }
            | Contents::IndexedBlock { child, .. }
            | Contents::HindexedBlock { child, .. }
            | Contents::Subarray { child, .. }
            | Contents::Darray { child, .. }
            | Contents::Resized { child, .. } => (&[][..], Some(child)),
        };
        counted(members).chain(child.map(|child| (1, child)))
    }

    /// The types that this one is built on.
    pub fn children(&self) -> impl DoubleEndedIterator<Item = &Datatype> {
        self.runs().flat_map(|(n, child)| repeat_n(child, n))
    }
}

/// An MPI datatype: which bytes, in which order, relative to an address.
///
/// A handle, cheap to clone; the type lives as long as any handle, and any type built on it.
#[derive(Clone)]
pub struct Datatype(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub(super) id: u64,
    pub(super) contents: Contents,
    /// A `darray` is made of other constructors; this is what it comes down to.
    pub(super) expansion: Option<Datatype>,
    pub(super) facts: Facts,
    pub(super) form: OnceLock<Arc<Form>>,
}

/// What a constructor knows about a type without expanding it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    pub(super) size: i64,
    /// Bytes in the external32 representation; no basic element has more there than in memory.
    pub(super) external: i64,
    pub(super) lb: i64,
    pub(super) ub: i64,
    /// Whether a resized type within pins the bound (MPI's `lb_marker`, `ub_marker`).
    pub(super) lb_marked: bool,
    pub(super) ub_marked: bool,
    pub(super) true_lb: i64,
    pub(super) true_ub: i64,
    pub(super) align: u32,
    pub(super) signature: Signature,
}

impl Facts {
    /// Whether anything of it, data or a bound, takes part in what is built on it.
    pub(super) fn exists(&self) -> bool {
        self.size > 0 || self.lb_marked || self.ub_marked
    }

    pub(super) fn extent(&self) -> i64 {
        self.ub - self.lb
    }
}

impl Datatype {
    pub(super) fn new(contents: Contents, facts: Facts) -> Datatype {
        Datatype::with_expansion(contents, facts, None)
    }

    pub(super) fn with_expansion(
        contents: Contents,
        facts: Facts,
        expansion: Option<Datatype>,
    ) -> Datatype {
        // Ids are never reused: a cache may keep one for longer than the type lives.
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Datatype(Arc::new(Inner {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            contents,
            expansion,
            facts,
            form: OnceLock::new(),
        }))
    }

    /// A predefined type. There is one of each in a process, so its id does not change.
    pub fn named(named: Named) -> Datatype {
        static TABLE: OnceLock<Vec<Datatype>> = OnceLock::new();
        let table = TABLE.get_or_init(|| {
            Named::ALL
                .iter()
                .map(|&named| {
                    let facts = Facts {
                        size: i64::from(named.size()),
                        external: i64::from(named.external_size()),
                        lb: 0,
                        ub: i64::from(named.extent()),
                        lb_marked: false,
                        ub_marked: false,
                        true_lb: 0,
                        true_ub: i64::from(named.true_extent()),
                        align: named.align(),
                        signature: Signature::of_named(named),
                    };
                    Datatype::new(Contents::Named(named), facts)
                })
                .collect()
        });
        table[named as usize].clone()
    }

    /// Bytes of data.
    pub fn size(&self) -> u64 {
        self.0.facts.size as u64
    }

    pub(super) fn external_bytes(&self) -> u64 {
        self.0.facts.external as u64
    }

    /// Distance in bytes from one of these to the next in an array; may be negative.
    pub fn extent(&self) -> i64 {
        self.0.facts.extent()
    }

    /// The lower bound in bytes.
    pub fn lower_bound(&self) -> i64 {
        self.0.facts.lb
    }

    /// The upper bound in bytes.
    pub fn upper_bound(&self) -> i64 {
        self.0.facts.ub
    }

    /// Offset of the lowest byte of data; 0 if there is none.
    pub fn true_lower_bound(&self) -> i64 {
        self.0.facts.true_lb
    }

    /// Offset behind the highest byte of data; 0 if there is none.
    pub fn true_upper_bound(&self) -> i64 {
        self.0.facts.true_ub
    }

    /// Bytes from the lowest to the highest byte of data.
    pub fn true_extent(&self) -> i64 {
        self.0.facts.true_ub - self.0.facts.true_lb
    }

    /// The strictest alignment of its basic elements, in bytes.
    pub fn alignment(&self) -> u32 {
        self.0.facts.align
    }

    /// The sequence of its basic elements.
    pub fn signature(&self) -> &Signature {
        &self.0.facts.signature
    }

    /// The constructor and the number of its arguments.
    pub fn envelope(&self) -> Envelope {
        self.0.contents.envelope()
    }

    /// How it was built.
    pub fn contents(&self) -> &Contents {
        &self.0.contents
    }

    /// A number that no other type of this process has or will have. Clones share it, duplicates
    /// do not.
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// Whether both are handles of one type.
    pub(super) fn is(&self, other: &Datatype) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// What the type comes down to, without duplicates, new bounds and `darray`s around it: those
    /// change nothing about the bytes.
    pub(super) fn essence(&self) -> &Datatype {
        let mut at = self;
        loop {
            at = match (&at.0.contents, &at.0.expansion) {
                (_, Some(expansion)) => expansion,
                (Contents::Dup { child } | Contents::Resized { child, .. }, _) => child,
                _ => return at,
            }
        }
    }
}

pub(super) fn fastest_first(dimensions: usize, order: Order) -> impl Iterator<Item = usize> {
    (0..dimensions).map(move |i| match order {
        Order::C => dimensions - 1 - i,
        Order::Fortran => i,
    })
}

impl From<Named> for Datatype {
    fn from(named: Named) -> Self {
        Datatype::named(named)
    }
}

impl fmt::Debug for Datatype {
    /// One level deep: a type may be nested too deeply to print.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Datatype")
            .field("id", &self.0.id)
            .field("combiner", &self.0.contents.envelope().combiner)
            .field("size", &self.0.facts.size)
            .field("lower_bound", &self.0.facts.lb)
            .field("extent", &self.0.facts.extent())
            .finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The compiler's way would recurse as deep as the type is nested.
        let mut doomed = Vec::new();
        self.take_children(&mut doomed);
        while let Some(child) = doomed.pop() {
            if let Some(mut inner) = Arc::into_inner(child.0) {
                inner.take_children(&mut doomed);
            }
        }
    }
}

impl Inner {
    /// Moves the types this one is built on out of it, so that dropping it drops nothing deep.
    fn take_children(&mut self, doomed: &mut Vec<Datatype>) {
        doomed.extend(self.expansion.take());
        match std::mem::replace(&mut self.contents, Contents::Named(Named::Byte)) {
            Contents::Named(_) => {}
            Contents::Struct { mut children, .. } => {
                if let Some(runs) = Arc::get_mut(&mut children.0) {
                    // Without room for the list, children are dropped one within the other.
                    let _ = room::extend(doomed, runs.drain(..).map(|run| run.child));
                }
            }
            Contents::Dup { child }
            | Contents::Contiguous { child, .. }
            | Contents::Vector { child, .. }
            | Contents::Hvector { child, .. }
            | Contents::Indexed { child, .. }
            | Contents::Hindexed { child, .. }
            | Contents::IndexedBlock { child, .. }
            | Contents::HindexedBlock { child, .. }
            | Contents::Subarray { child, .. }
            | Contents::Darray { child, .. }
            | Contents::Resized { child, .. } => doomed.push(child),
        }
    }
}
