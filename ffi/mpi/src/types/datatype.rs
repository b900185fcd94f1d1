// SPDX-License-Identifier: MIT OR Apache-2.0

//! The program's datatypes as libcopy's, asked from the MPI library once for each and kept as an
//! attribute of the type, so that a freed type whose handle comes back is another one.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, OnceLock};

use libcopy::datatype::canonical::Node;
use libcopy::datatype::{
    Class, Contents, Datatype, Distribution, Element, Layout, Named, Order, room,
};
use libcopy::lock::lock;
use libcopy::lru::LruMap;
use libcopy::p2p::DescribedLayout;
use libcopy::policy::governor::Timed;
#[cfg(feature = "gpu")]
use libcopy_gpu::GpuLayout;

use crate::decide::{threshold, worth};
use crate::library::abi::{Abi, Word};
use crate::library::attributes::{Cache, DATATYPES, Functions, Kept};
use crate::library::pmpi::forward;
use crate::library::{errors, pmpi, world_model};
use crate::types::type_size;

/// A datatype of the program's.
#[derive(Debug)]
pub struct Known {
    /// Bytes of data.
    pub size: u64,
    /// Whether elements are their bytes, one behind the other, from the address on.
    pub dense: bool,
    /// The type as libcopy's; `None` if it was made in a way that we do not know, or if the library
    /// reads it differently.
    pub datatype: Option<Datatype>,
    /// As MPI defines it, where the library packs it differently, and receives what it sends at
    /// once as MPI defines.
    defined: Option<Datatype>,
    /// Pieces of one element; 1 if that is not known.
    pub pieces: u64,
    /// Whether these follow a rule.
    pub is_regular: bool,
    /// The number that processes gave it together; 0 if they did not.
    pub committed: AtomicU64,
    /// Whether the library has accepted elements of it: the program has committed it.
    accepted: AtomicBool,
    grain: Option<Grain>,
}

impl Known {
    /// The type as received messages and parts of collectives have it, if that is known.
    pub fn received(&self) -> Option<&Datatype> {
        self.datatype.as_ref().or(self.defined.as_ref())
    }

    /// Where basic elements end in the packed bytes, if that is known.
    pub fn grain(&self) -> Option<&Grain> {
        self.grain.as_ref()
    }

    /// Whether the library may lose some of the bytes of elements, so that a header does not arrive
    /// among them.
    pub fn loses_bytes(&self) -> bool {
        self.grain.as_ref().is_some_and(Grain::has_padding)
    }

    /// Whether the first `bytes` of elements are whole basic elements.
    pub fn ends_at(&self, bytes: u64) -> bool {
        self.grain
            .as_ref()
            .is_some_and(|grain| grain.ends_at(bytes))
    }
}

/// Where basic elements end in the packed bytes of a type, which repeat themselves.
#[derive(Clone, Debug)]
pub enum Grain {
    /// All have this size, and of each the given number of bytes are a number, of which external32
    /// has the same in the other order; none where it has something else.
    Basic(u64, u8),
    /// All have this size, and some of their bytes are no part of the number: x87's `long double`,
    /// with ten of sixteen bytes. MPI libraries may copy these by way of a register, which has no
    /// more.
    Padded(u64),
    /// Lengths in bytes, each with the kind of its bytes, one after the other.
    Mixed(Arc<[(u64, Grain)]>),
}

impl Grain {
    fn has_padding(&self) -> bool {
        match self {
            Grain::Basic(..) => false,
            Grain::Padded(_) => true,
            Grain::Mixed(parts) => parts.iter().any(|(_, grain)| grain.has_padding()),
        }
    }

    fn ends_at(&self, bytes: u64) -> bool {
        match self {
            Grain::Basic(size, _) | Grain::Padded(size) => bytes % (*size).max(1) == 0,
            Grain::Mixed(parts) => {
                let whole: u64 = parts.iter().map(|(bytes, _)| bytes).sum();
                let mut left = bytes % whole.max(1);
                for (bytes, grain) in parts.iter() {
                    if left < *bytes {
                        return grain.ends_at(left);
                    }
                    left -= bytes;
                }
                true
            }
        }
    }
}

/// What packed elements of a number are.
fn grain_of(element: &Element, size: u64, unit: u8) -> Grain {
    let number = match element.class {
        Class::Complex => element.size / 2,
        _ => element.size,
    };
    match element.class {
        Class::Float | Class::Complex if number > 8 => Grain::Padded(size),
        _ => Grain::Basic(size, unit),
    }
}

/// Bytes of a number of which external32 has the same in the other order; 0 where it has something
/// else, or may have.
fn unit_of(element: &Element) -> u8 {
    let size = match element.class {
        _ if element.size != element.external => 0,
        Class::Bytes => 1,
        Class::Signed | Class::Unsigned | Class::Float | Class::Quad => element.size,
        Class::Complex | Class::QuadComplex => element.size / 2,
    };
    if size > 8 { 0 } else { size as u8 }
}

/// A translated type, and where its basic elements end.
type Translated = (Datatype, Grain);

/// Forms of combiners, as Open MPI numbers them; MPICH begins with 1, the standard ABI has another
/// order without the forms that Fortran's first functions made.
mod combiner {
    use crate::library::abi::Abi;
    use crate::library::abi::Family;

    /// What a library's number stands for.
    pub fn of(abi: &Abi, number: i32) -> Option<i32> {
        const STANDARD: [i32; 17] = [
            NAMED,
            DUP,
            CONTIGUOUS,
            VECTOR,
            HVECTOR,
            INDEXED,
            HINDEXED,
            INDEXED_BLOCK,
            HINDEXED_BLOCK,
            STRUCT,
            SUBARRAY,
            DARRAY,
            F90_REAL,
            F90_COMPLEX,
            F90_INTEGER,
            RESIZED,
            VALUE_INDEX,
        ];
        let number = number.checked_sub(abi.named)?;
        match abi.family {
            Family::Standard => STANDARD.get(usize::try_from(number).ok()?).copied(),
            Family::OpenMpi | Family::Mpich => Some(number),
        }
    }

    /// Whether such a type is a predefined one, or one of those that Fortran selects, which have no
    /// parts.
    pub fn is_basic(how: i32) -> bool {
        how == NAMED || how == VALUE_INDEX || (F90_REAL..=F90_INTEGER).contains(&how)
    }

    pub const NAMED: i32 = 0;
    pub const DUP: i32 = 1;
    pub const CONTIGUOUS: i32 = 2;
    pub const VECTOR: i32 = 3;
    pub const HVECTOR_INTEGER: i32 = 4;
    pub const HVECTOR: i32 = 5;
    pub const INDEXED: i32 = 6;
    pub const HINDEXED_INTEGER: i32 = 7;
    pub const HINDEXED: i32 = 8;
    pub const INDEXED_BLOCK: i32 = 9;
    pub const STRUCT_INTEGER: i32 = 10;
    pub const STRUCT: i32 = 11;
    pub const SUBARRAY: i32 = 12;
    pub const DARRAY: i32 = 13;
    pub const F90_REAL: i32 = 14;
    pub const F90_COMPLEX: i32 = 15;
    pub const F90_INTEGER: i32 = 16;
    pub const RESIZED: i32 = 17;
    pub const HINDEXED_BLOCK: i32 = 18;
    pub const VALUE_INDEX: i32 = 19;
}

/// Nesting that is followed; more is not likely to be anybody's intention.
const DEEPEST: usize = 64;

/// What the library says about a type.
#[derive(Clone, Copy, Debug)]
struct Facts {
    size: u64,
    lower: i64,
    extent: i64,
    true_lower: i64,
    true_extent: i64,
}

impl Facts {
    fn of(datatype: Word) -> Option<Facts> {
        let (mut size, mut lower, mut extent) = (0i64, 0isize, 0isize);
        let (mut true_lower, mut true_extent) = (0isize, 0isize);
        // SAFETY: writable outputs; the library checks the datatype.
        let answers = unsafe {
            [
                pmpi::type_size(datatype, &mut size),
                pmpi::type_get_extent(datatype, &mut lower, &mut extent),
                pmpi::type_get_true_extent(datatype, &mut true_lower, &mut true_extent),
            ]
        };
        let size = u64::try_from(size).ok().filter(|_| answers == [0; 3])?;
        let [lower, extent, true_lower, true_extent] =
            [lower, extent, true_lower, true_extent].map(|bytes| bytes as i64);
        Some(Facts {
            size,
            lower,
            extent,
            true_lower,
            true_extent,
        })
    }
}

/// How the library reads a type and those that it is made of, as far as that is known.
#[derive(Debug, Default)]
struct Reading {
    /// In another way than MPI defines it.
    differs: bool,
    /// Only its bytes can tell: it goes backwards somewhere, or has other bounds than MPI defines.
    /// Open MPI takes blocks that end where those before them begin for ascending ones, and MPICH
    /// some of a negative extent.
    is_doubtful: bool,
    /// Doubtful, too: it has complex numbers between the multiples of their size. Open MPI 5.0
    /// packs and unpacks them from and to such multiples, and where it sends a message at once, it
    /// does what MPI defines.
    is_between: bool,
    /// Bytes of the largest complex number so far; 0 where there is none, or none that a library
    /// reads in its own way.
    complex: i64,
    /// Part of it has no data. MPICH divides by zero when it packs some of these.
    has_empty: bool,
}

impl Reading {
    /// A translated type with the bounds that the library gives it, which count when it is
    /// repeated. `None` if its data are elsewhere for the library.
    fn bounded(&mut self, made: Datatype, facts: &Facts) -> Option<Datatype> {
        let is_same = made.size() == facts.size
            && (facts.size == 0
                || (made.true_lower_bound(), made.true_extent())
                    == (facts.true_lower, facts.true_extent));
        if !is_same {
            self.differs = true;
            return None;
        }
        self.has_empty |= facts.size == 0;
        if (made.lower_bound(), made.extent()) == (facts.lower, facts.extent) {
            return Some(made);
        }
        self.is_doubtful |= facts.size > 0;
        made.resized(facts.lower, facts.extent).ok()
    }

    /// Looks whether a type goes backwards, or has complex numbers between the multiples of their
    /// size, and not only within those that it is made of.
    fn look(&mut self, made: &Datatype) {
        let contents = made.contents();
        let is_back = match contents {
            Contents::Vector { count, stride, .. } | Contents::Hvector { count, stride, .. } => {
                *count > 1 && *stride < 0
            }
            _ => false,
        };
        let has_negative = |(_, child): (usize, &Datatype)| child.extent() < 0 && child.size() > 0;
        self.is_doubtful |= is_back || contents.runs().any(has_negative);
        if self.complex > 0 {
            let is_between = |bytes: &i64| bytes % self.complex != 0;
            let are_between = match contents {
                Contents::Hvector { count, stride, .. } => *count > 1 && is_between(stride),
                Contents::Hindexed { displacements, .. }
                | Contents::HindexedBlock { displacements, .. }
                | Contents::Struct { displacements, .. } => displacements.iter().any(is_between),
                _ => false,
            };
            self.is_between |= are_between || is_between(&made.extent());
        }
    }

    /// Whether the library reads a type as it was translated.
    fn agrees(&mut self, abi: &Abi, datatype: Word, translated: &Datatype) -> bool {
        if self.is_doubtful || self.is_between {
            self.differs |= self.has_empty || !packs_alike(abi, datatype, translated);
        }
        !self.differs
    }
}

/// Whether the library packs three elements of a type as we do. `false` if they reach too far to be
/// tried.
fn packs_alike(abi: &Abi, datatype: Word, translated: &Datatype) -> bool {
    /// Bytes from the first to the last one, and of data.
    const MOST: i64 = 1 << 20;
    /// What a library may want beyond the bytes.
    const MORE: usize = 256;
    const COUNT: u64 = 3;
    let Ok(layout) = Layout::new(translated, COUNT) else {
        return false;
    };
    let bounds = layout.bounds();
    let Some(span) = bounds.end.checked_sub(bounds.start) else {
        return false;
    };
    if span > MOST || layout.size() > MOST as u64 {
        return false;
    }
    let bytes = layout.size() as usize;
    // Bytes that tell places apart, and as many on either side, for a library that goes the other
    // way.
    let place = |i: usize| ((i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
    let memory: Vec<u8> = (0..3 * span as usize).map(place).collect();
    let origin = memory
        .as_ptr()
        .wrapping_offset((span - bounds.start) as isize);
    let mut packed = [vec![0u8; bytes + MORE], vec![0u8; bytes + MORE]];
    let [ours, theirs] = &mut packed;
    let (mut own, mut end) = (0, 0);
    // SAFETY: all data lie within the memory, and the rooms are longer than they are. The program
    // may not have committed its type yet, so a duplicate is, which is our own; a word has room for
    // either kind of handle.
    let answers = unsafe {
        layout.pack_raw(origin, 0..layout.size(), ours.as_mut_ptr());
        let dup = pmpi::type_dup(datatype, &mut own);
        if dup != 0 {
            return false;
        }
        let (to, room) = (theirs.as_mut_ptr().cast(), theirs.len() as c_int);
        let mut answer = pmpi::type_commit(&mut own);
        if answer == 0 {
            let count = COUNT as c_int;
            answer = pmpi::pack(origin.cast(), count, own, to, room, &mut end, abi.world);
        }
        [answer, pmpi::type_free(&mut own)]
    };
    answers == [0; 2] && usize::try_from(end) == Ok(bytes) && ours[..bytes] == theirs[..bytes]
}

/// The name of a predefined type.
fn named(datatype: Word) -> Option<Named> {
    // Longer than any library's longest name.
    let mut name = [0 as c_char; 512];
    let mut length = 0;
    // SAFETY: room for a name.
    let answer = unsafe { pmpi::type_get_name(datatype, name.as_mut_ptr(), &mut length) };
    if answer != 0 {
        return None;
    }
    // SAFETY: the library ends names with a zero.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) };
    Named::from_name(name.to_str().ok()?)
}

/// Which predefined type this is; `None` if it is none, or none that has a name in the standard.
pub fn predefined(abi: &Abi, datatype: Word) -> Option<Named> {
    let mut combiner = 0;
    // SAFETY: a writable output; the library checks the datatype.
    let answer = unsafe { pmpi::type_combiner(datatype, &mut combiner) };
    if answer == 0 && combiner == abi.named {
        named(datatype)
    } else {
        None
    }
}

fn counts(integers: &[i64]) -> Option<Vec<u64>> {
    integers.iter().map(|n| u64::try_from(*n).ok()).collect()
}

/// The integers that a type was made with as they would be without large counts: these stand in
/// their places, and addresses that were large counts behind the others, where the first forms of
/// MPI had them.
fn with_large(how: c_int, integers: &[c_int], large: &[i64]) -> Option<Vec<i64>> {
    let before = match how {
        _ if large.is_empty() => 0,
        // The number of dimensions, and the order behind.
        combiner::SUBARRAY => 1,
        // Size, rank and number of dimensions.
        combiner::DARRAY => 3,
        _ => 0,
    };
    let (first, last) = integers.split_at_checked(before)?;
    let wide = |part: &[c_int]| part.iter().copied().map(i64::from).collect::<Vec<_>>();
    Some([wide(first), large.to_vec(), wide(last)].concat())
}

/// Asks the library how a datatype was made.
fn translate(abi: &Abi, datatype: Word, depth: usize, reading: &mut Reading) -> Option<Translated> {
    if depth > DEEPEST {
        return None;
    }
    let facts = Facts::of(datatype)?;
    let mut envelope = pmpi::Envelope::default();
    // SAFETY: a writable output; the library checks the datatype.
    if unsafe { pmpi::type_envelope(datatype, &mut envelope) } != 0 {
        return None;
    }
    let how = combiner::of(abi, envelope.combiner)?;
    if combiner::is_basic(how) {
        let Facts {
            size,
            lower,
            extent,
            ..
        } = facts;
        let named = named(datatype);
        // Anything may be received from packed bytes, with elements of any size.
        if named == Some(Named::Packed) {
            return None;
        }
        let parts = named.map_or(&[][..], Named::elements);
        for part in parts {
            if abi.is_open_mpi() && part.class == Class::Complex {
                reading.complex = reading.complex.max(i64::from(part.size));
            }
        }
        // What Fortran selects by precision has sizes of its own there, and a wide character two
        // bytes; MPICH turns round a complex number of Fortran's as a whole.
        let is_plain = how == combiner::NAMED
            && named.is_some_and(|named| named != Named::Wchar && u64::from(named.size()) == size);
        let is_c = matches!(named, Some(Named::CFloatComplex | Named::CDoubleComplex));
        let is_turned_whole = |element: &Element| element.class == Class::Complex && !is_c;
        let unit = |element: &Element| {
            if is_plain && !is_turned_whole(element) {
                unit_of(element)
            } else {
                0
            }
        };
        let grain = match parts {
            [] => Grain::Basic(size, 0),
            [one] => grain_of(one, size, unit(one)),
            _ => {
                let parts = parts.iter().map(|element| {
                    let size = u64::from(element.size);
                    (size, grain_of(element, size, unit(element)))
                });
                Grain::Mixed(parts.collect())
            }
        };
        if size > 0 && lower == 0 && u64::try_from(extent) == Ok(size) {
            // Whatever its elements are, they are its bytes.
            let bytes = Datatype::named(Named::Byte).contiguous(size).ok()?;
            return Some((bytes, grain));
        }
        return Some((reading.bounded(Datatype::named(named?), &facts)?, grain));
    }
    let length = |count: i64| usize::try_from(count).ok();
    let mut integers = room::filled(0 as c_int, length(envelope.integers)?).ok()?;
    let mut addresses = room::filled(0isize, length(envelope.addresses)?).ok()?;
    let mut large = room::filled(0i64, length(envelope.large)?).ok()?;
    let n = length(envelope.types)?;
    // Room for handles of either kind.
    let mut types: Vec<Word> = room::filled(0, n).ok()?;
    let mut children = room::list(n).ok()?;
    let types_at: *mut c_void = types.as_mut_ptr().cast();
    let arrays = (
        integers.as_mut_ptr(),
        addresses.as_mut_ptr(),
        large.as_mut_ptr(),
        types_at,
    );
    // SAFETY: the arrays are as long as the library asks for.
    let answer = unsafe { pmpi::type_contents(datatype, &envelope, arrays) };
    if answer != 0 {
        return None;
    }
    // The members of a structure are often of few types: each is asked for once. All handles were
    // written before any of them is freed, so equal ones are one type.
    let mut known: HashMap<Word, (Option<Translated>, bool)> = HashMap::new();
    for i in 0..n {
        // SAFETY: the library wrote `n` handles.
        let mut child = unsafe { abi.handle_at(types_at, i) };
        let (translated, derived) = known.entry(child).or_insert_with(|| {
            let translated = translate(abi, child, depth + 1, reading);
            (translated, is_derived(abi, child))
        });
        children.push(translated.clone());
        if *derived {
            // SAFETY: each one is a reference of its own, which is ours to free.
            unsafe { pmpi::type_free(&mut child) };
        }
    }
    let children: Vec<Translated> = children.into_iter().collect::<Option<_>>()?;
    let (children, grains): (Vec<Datatype>, Vec<Grain>) = children.into_iter().unzip();
    let addresses: Vec<i64> = addresses.into_iter().map(|a| a as i64).collect();
    let integers = with_large(how, &integers, &large)?;
    let made = assemble(abi, how, &integers, &addresses, &children)?;
    let grain = match how {
        combiner::STRUCT | combiner::STRUCT_INTEGER => {
            let lengths = counts(integers.get(1..1 + children.len())?)?;
            mixed(&lengths, &children, grains)
        }
        _ => grains.into_iter().next()?,
    };
    reading.look(&made);
    Some((reading.bounded(made, &facts)?, grain))
}

/// Whether a datatype was made by the program, of others.
fn is_derived(abi: &Abi, datatype: Word) -> bool {
    let mut named = 0;
    // SAFETY: a writable output; the library checks the datatype.
    let answer = unsafe { pmpi::type_combiner(datatype, &mut named) };
    answer == 0 && !combiner::of(abi, named).is_some_and(combiner::is_basic)
}

/// Where the elements of a structure end.
fn mixed(lengths: &[u64], children: &[Datatype], grains: Vec<Grain>) -> Grain {
    let basic = |grain: &Grain| match grain {
        Grain::Basic(size, unit) => Some((*size, *unit)),
        Grain::Padded(_) | Grain::Mixed(_) => None,
    };
    let first = grains.first().and_then(basic);
    if let Some((size, unit)) = first.filter(|_| grains.iter().all(|grain| basic(grain) == first)) {
        return Grain::Basic(size, unit);
    }
    let bytes = lengths
        .iter()
        .zip(children)
        .map(|(n, child)| n * child.size());
    Grain::Mixed(bytes.zip(grains).collect())
}

fn assemble(
    abi: &Abi,
    how: c_int,
    integers: &[i64],
    addresses: &[i64],
    children: &[Datatype],
) -> Option<Datatype> {
    let child = children.first()?;
    let integer = |i: usize| integers.get(i).copied();
    let count = |i: usize| u64::try_from(integer(i)?).ok();
    let places = |from: usize, n: usize| -> Option<Vec<i64>> {
        Some(integers.get(from..from.checked_add(n)?)?.to_vec())
    };
    let list = |from: usize, n: usize| counts(integers.get(from..from.checked_add(n)?)?);
    // How many parts a list has; a lower bound may be below zero.
    let first = usize::try_from(integer(0).unwrap_or(0)).unwrap_or(0);
    let order = |value: i64| {
        if value == i64::from(abi.order_c) {
            Order::C
        } else {
            Order::Fortran
        }
    };
    let made = match how {
        combiner::DUP => Ok(child.dup()),
        combiner::CONTIGUOUS => child.contiguous(count(0)?),
        combiner::VECTOR => child.vector(count(0)?, count(1)?, integer(2)?),
        combiner::HVECTOR | combiner::HVECTOR_INTEGER => {
            let stride = match addresses.first() {
                Some(stride) => *stride,
                None => integer(2)?,
            };
            child.hvector(count(0)?, count(1)?, stride)
        }
        combiner::INDEXED => child.indexed(&list(1, first)?, &places(1 + first, first)?),
        combiner::HINDEXED | combiner::HINDEXED_INTEGER => {
            let lengths = list(1, first)?;
            if addresses.len() == first {
                child.hindexed(&lengths, addresses)
            } else {
                child.hindexed(&lengths, &places(1 + first, first)?)
            }
        }
        combiner::INDEXED_BLOCK => child.indexed_block(count(1)?, &places(2, first)?),
        combiner::HINDEXED_BLOCK if addresses.len() == first => {
            child.hindexed_block(count(1)?, addresses)
        }
        combiner::HINDEXED_BLOCK => child.hindexed_block(count(1)?, &places(2, first)?),
        combiner::STRUCT | combiner::STRUCT_INTEGER => {
            let lengths = list(1, first)?;
            if addresses.len() == first {
                Datatype::structure(&lengths, addresses, children)
            } else {
                Datatype::structure(&lengths, &places(1 + first, first)?, children)
            }
        }
        combiner::SUBARRAY => {
            let (sizes, parts) = (list(1, first)?, list(1 + first, first)?);
            let starts = list(1 + 2 * first, first)?;
            child.subarray(&sizes, &parts, &starts, order(integer(1 + 3 * first)?))
        }
        combiner::DARRAY => {
            let n = usize::try_from(integer(2)?).ok()?;
            let sizes = list(3, n)?;
            let [block, cyclic, _, default] = abi.distributions.map(i64::from);
            let mut distributions = Vec::with_capacity(n);
            for i in 0..n {
                let (kind, argument) = (integer(3 + n + i)?, integer(3 + 2 * n + i)?);
                let argument = if argument == default {
                    None
                } else {
                    Some(u64::try_from(argument).ok()?)
                };
                distributions.push(match kind {
                    kind if kind == block => Distribution::Block(argument),
                    kind if kind == cyclic => Distribution::Cyclic(argument),
                    _ => Distribution::None,
                });
            }
            let grid = list(3 + 3 * n, n)?;
            let order = order(integer(3 + 4 * n)?);
            child.darray(count(0)?, count(1)?, &sizes, &distributions, &grid, order)
        }
        combiner::RESIZED => match addresses {
            [lower, extent] => child.resized(*lower, *extent),
            _ => child.resized(integer(0)?, integer(1)?),
        },
        _ => return None,
    };
    made.ok()
}

/// Whether a part of a form is no list of offsets, or a short one.
fn follows_a_rule(node: &Node) -> bool {
    /// Parts of a structure, as programs write them down one by one.
    const FEW: usize = 32;
    match node {
        Node::Dense { .. } | Node::Stream { .. } => true,
        Node::Sequence { parts } => parts.len() <= FEW,
        Node::Blocks { .. } | Node::Pieces { .. } => false,
    }
}

/// Types that the MPI library reads in another way than MPI defines them.
static READ_DIFFERENTLY: AtomicU64 = AtomicU64::new(0);

/// Such types: what is done with them is forwarded, so that the program sees one reading only.
pub fn read_differently() -> u64 {
    READ_DIFFERENTLY.load(Ordering::Relaxed)
}

/// What this type is.
fn examine(abi: &Abi, datatype: Word) -> Option<Known> {
    let size = Facts::of(datatype)?.size;
    let mut reading = Reading::default();
    let defined = translate(abi, datatype, 0, &mut reading);
    let (defined, translated) = match defined {
        Some(defined) if reading.agrees(abi, datatype, &defined.0) => (None, Some(defined)),
        Some((defined, _)) if !reading.is_doubtful => (Some(defined), None),
        _ => (None, None),
    };
    if reading.differs {
        READ_DIFFERENTLY.fetch_add(1, Ordering::Relaxed);
    }
    // Without room for its form, it is not known.
    let translated = translated.filter(|(translated, _)| translated.commit().is_ok());
    let (translated, grain) = translated.unzip();
    let (mut pieces, mut is_regular) = (1, false);
    let form = translated.as_ref().and_then(|known| known.commit().ok());
    let dense = translated.as_ref().zip(form).is_some_and(|(known, form)| {
        pieces = form.segments().max(1);
        is_regular = form.nodes().iter().all(follows_a_rule);
        let whole = known.lower_bound() == 0 && u64::try_from(known.extent()) == Ok(size);
        size > 0 && whole && form.segments() == 1 && form.offset() == 0
    });
    Some(Known {
        size,
        dense,
        datatype: translated,
        defined,
        pieces,
        is_regular,
        committed: AtomicU64::new(0),
        accepted: AtomicBool::new(false),
        grain,
    })
}

static CACHE: Cache<Known> = Cache::new();

impl Kept for Known {
    const FUNCTIONS: Functions = DATATYPES;

    fn cache() -> &'static Cache<Self> {
        &CACHE
    }

    fn goes(&self, datatype: Word) {
        // Where nobody saw that it was freed, as Fortran's mpi_f08 may.
        worth::forget(datatype & threshold::handle_bits());
        if let Some(datatype) = self.received() {
            forget(datatype.id());
        }
    }
}

type Last = (Word, u64, Option<Arc<Known>>);

thread_local! {
    /// The types that this thread used last.
    static LAST: RefCell<[Last; 4]> = const { RefCell::new([const { (0, 0, None) }; 4]) };
}

/// What we know of a datatype; `None` if the library does not accept it, or not before it is
/// committed.
pub fn of(abi: &Abi, datatype: Word) -> Option<Arc<Known>> {
    let handle = datatype & abi.handle;
    let generation = CACHE.generation(datatype);
    let place = (handle >> 4 ^ handle >> 9) % 4;
    let last = LAST.with_borrow(|last| {
        let (word, when, known) = &last[place];
        let same = *word == handle && *when == generation;
        known.as_ref().filter(|_| same).cloned()
    });
    if last.is_some() {
        return last;
    }
    if !abi.is_type(datatype) || !world_model::is_active() {
        return None;
    }
    let known = CACHE.of(datatype, || {
        // So that a few comparisons do from now on, if it is a predefined type.
        let _ = type_size::bytes(abi, 1, datatype);
        examine(abi, datatype)
    });
    let known = known.ok()?;
    // Only here, so that what is used again costs nothing more. The program may still commit it.
    if !known.accepted.load(Ordering::Relaxed) {
        if !errors::accepts(datatype) {
            return None;
        }
        known.accepted.store(true, Ordering::Relaxed);
    }
    LAST.with_borrow_mut(|last| last[place] = (handle, generation, Some(known.clone())));
    Some(known)
}

/// Forgets all types: what is kept for them goes with `MPI_COMM_WORLD`.
pub fn clear() {
    CACHE.clear();
}

/// As long as this stays the same, a handle stands for the same type.
#[inline(always)]
pub fn generation(datatype: Word) -> u64 {
    CACHE.generation(datatype)
}

/// Bytes of data in `count` elements of any type, without a look at how it was made; `None` if the
/// library does not accept it.
#[inline]
pub fn size(datatype: Word, count: usize) -> Option<u64> {
    let mut size = 0i64;
    // SAFETY: a writable output; the library checks the datatype.
    match unsafe { pmpi::type_size(datatype, &mut size) } {
        0 => u64::try_from(size).ok()?.checked_mul(count as u64),
        _ => None,
    }
}

/// `MPI_Type_free`: the next type with this handle is another one.
///
/// # Safety
///
/// As the MPI standard says.
#[inline]
pub unsafe fn free(datatype: *mut c_void) -> c_int {
    if worth::any() && !datatype.is_null() {
        // SAFETY: the caller's variable, as wide as a handle.
        let handle = unsafe {
            match threshold::handle_bits() {
                usize::MAX => datatype.cast::<Word>().read(),
                _ => datatype.cast::<u32>().read() as Word,
            }
        };
        worth::forget(handle);
    }
    // SAFETY: the caller's promise.
    unsafe { forward::type_free(datatype.cast()) }
}

/// `MPI_Type_free` for a Fortran that goes past C's.
///
/// # Safety
///
/// As the MPI standard says.
pub unsafe fn free_of_fortran(datatype: *mut c_int) -> c_int {
    // SAFETY: the caller's variable; a word has room for either kind of handle.
    unsafe {
        let mut handle = pmpi::type_f2c(*datatype);
        let code = free((&raw mut handle).cast());
        if code == 0 {
            *datatype = pmpi::type_c2f(handle);
        }
        code
    }
}

/// Bytes of data in `count` elements, and whether they are dense, as far as a few comparisons tell.
#[inline]
pub fn quick_size(datatype: Word, count: usize) -> Option<u64> {
    (threshold::size(datatype)? as u64).checked_mul(count as u64)
}

/// A layout, and how a peer gets to know it.
#[derive(Debug)]
pub struct Prepared {
    /// The layout.
    pub layout: Layout,
    /// The layout for messages, whose receivers get to know it.
    pub described: Arc<DescribedLayout>,
    /// The governors of packing and of unpacking these elements, once that was done some times.
    pub governors: [OnceLock<Box<Mutex<Timed>>>; 2],
    #[cfg(feature = "gpu")]
    gpu: OnceLock<Option<Box<GpuLayout>>>,
}

impl Prepared {
    /// How kernels move the elements; `None` if they cannot.
    #[cfg(feature = "gpu")]
    pub fn gpu(&self) -> Option<&GpuLayout> {
        let make = || GpuLayout::new(self.layout.clone()).ok().map(Box::new);
        self.gpu.get_or_init(make).as_deref()
    }

    /// Bytes that it takes.
    fn memory(&self) -> usize {
        self.layout.form().memory()
    }
}

/// Bytes of forms that are kept.
const MOST_BYTES: usize = 64 << 20;
/// Layouts that are kept.
const MOST: usize = 1024;

/// Layouts that were needed, by type and number of elements.
type Layouts = LruMap<(u64, u64), Arc<Prepared>>;

static LAYOUTS: LazyLock<Mutex<Layouts>> = LazyLock::new(Mutex::default);

/// Layouts that were made.
static MADE: AtomicU64 = AtomicU64::new(0);

/// Layouts that were made.
pub fn made() -> u64 {
    MADE.load(Ordering::Relaxed)
}

/// Gives up the layouts of a type that is freed.
fn forget(id: u64) {
    lock(&LAYOUTS).retain(|(other, _)| *other != id);
}

/// The layout of `count` elements; `None` if there can be none.
pub fn layout(datatype: &Datatype, count: u64) -> Option<Arc<Prepared>> {
    let request = (datatype.id(), count);
    if let Some(prepared) = lock(&LAYOUTS).get(&request) {
        return Some(prepared.clone());
    }
    libcopy::calibration::load_for(datatype.size().saturating_mul(count));
    let layout = Layout::new(datatype, count).ok()?;
    let made = Arc::new(Prepared {
        described: Arc::new(DescribedLayout::new(layout.clone())),
        layout,
        governors: Default::default(),
        #[cfg(feature = "gpu")]
        gpu: OnceLock::new(),
    });
    MADE.fetch_add(1, Ordering::Relaxed);
    let bytes = made.memory();
    let mut layouts = lock(&LAYOUTS);
    if let Some(prepared) = layouts.get(&request) {
        // Another thread was faster.
        return Some(prepared.clone());
    }
    layouts.insert(request, made.clone(), bytes, (MOST, MOST_BYTES));
    Some(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_of_a_type_go_with_it_and_the_oldest_when_there_are_many() {
        let types: Vec<Datatype> = (0..3)
            .map(|i| Datatype::named(Named::Byte).vector(4 + i, 1, 3).unwrap())
            .collect();
        for count in 0..MOST as u64 {
            layout(&types[(count % 2) as usize], 1 + count).unwrap();
        }
        assert_eq!(lock(&LAYOUTS).len(), MOST);
        // Used again, so the second one is the oldest.
        layout(&types[0], 1).unwrap();
        layout(&types[2], 1).unwrap();
        let known = |id, count| lock(&LAYOUTS).get(&(id, count)).is_some();
        assert_eq!(lock(&LAYOUTS).len(), MOST);
        assert!(known(types[0].id(), 1) && !known(types[1].id(), 2));
        for datatype in &types {
            forget(datatype.id());
        }
        let layouts = lock(&LAYOUTS);
        assert_eq!((layouts.len(), layouts.bytes()), (0, 0));
    }
}
