// SPDX-License-Identifier: MIT OR Apache-2.0

//! A datatype as bytes, for a file or another process.
//!
//! ```text
//! 8 bytes     "LCTYPE" and the version, 2 bytes
//! 8 bytes     checksum of everything behind it (FNV-1a)
//! then words of 8 bytes, all numbers little-endian: the types, children before their parents
//!   tag       which constructor
//!   numbers   its arguments in the constructor's order; a list is its length and its entries
//!   children  by their index in the order of types
//! ```
//!
//! A type that is used several times is written once. The last one is the whole. What is read is
//! made by the constructors, which check it as they check any program's arguments; no list is
//! longer than the bytes that describe it, and nothing recurses.

use hashbrown::HashMap;

use super::datatype::Datatype;
use super::datatype::{Contents, Distribution, Order};
use super::named::Named;
use crate::{Allowed, Error, Result, room};

const MAGIC: [u8; 6] = *b"LCTYPE";
const VERSION: u16 = 1;

/// Bytes before the words.
const HEAD: usize = 16;

const NAMED: u64 = 0;
const DUP: u64 = 1;
const CONTIGUOUS: u64 = 2;
const VECTOR: u64 = 3;
const HVECTOR: u64 = 4;
const INDEXED: u64 = 5;
const HINDEXED: u64 = 6;
const INDEXED_BLOCK: u64 = 7;
const HINDEXED_BLOCK: u64 = 8;
const STRUCT: u64 = 9;
const SUBARRAY: u64 = 10;
const DARRAY: u64 = 11;
const RESIZED: u64 = 12;

/// Distributions: a kind, and the block's length or this.
const DEFAULT: u64 = u64::MAX;

fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn order_word(order: Order) -> u64 {
    match order {
        Order::C => 0,
        Order::Fortran => 1,
    }
}

/// The types below `root` and itself, children before their parents.
fn postorder(root: &Datatype) -> room::Result<Vec<Datatype>> {
    let mut known: HashMap<u64, ()> = HashMap::new();
    let mut all = Vec::new();
    let mut stack = vec![(root.clone(), false)];
    while let Some((datatype, is_done)) = stack.pop() {
        if is_done {
            room::push(&mut all, datatype)?;
            continue;
        }
        room::reserve_map(&mut known, 1)?;
        if known.insert(datatype.id(), ()).is_some() {
            continue;
        }
        room::push(&mut stack, (datatype.clone(), true))?;
        let children = datatype.contents().runs().rev();
        room::extend(
            &mut stack,
            children.map(|(_, child)| (child.clone(), false)),
        )?;
    }
    Ok(all)
}

impl Datatype {
    /// The type as bytes, which [`Datatype::unflatten`] reads: in this process or another one, of
    /// this machine or another one.
    ///
    /// ```
    /// use libcopy_datatype::{Datatype, Named};
    ///
    /// let column = Datatype::named(Named::Double).vector(100, 1, 8)?;
    /// let bytes = column.flatten()?;
    /// let again = Datatype::unflatten(&bytes)?;
    /// assert_eq!(again.expression(), column.expression());
    /// assert!(Datatype::unflatten(&bytes[1..]).is_err());
    /// # Ok::<(), libcopy_datatype::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] where memory has no room for the bytes.
    pub fn flatten(&self) -> Result<Vec<u8>> {
        let all = postorder(self)?;
        // A type that comes up again on the way down is behind some of its parents' other children,
        // but always before its parents.
        let mut index: HashMap<u64, u64> = HashMap::new();
        room::reserve_map(&mut index, all.len())?;
        index.extend((0..).zip(&all).map(|(i, t)| (t.id(), i)));
        let mut words = Vec::new();
        for datatype in &all {
            write(&mut words, datatype.contents(), |child| {
                index.get(&child.id()).copied().unwrap_or_default()
            })?;
        }
        let mut bytes = room::list(HEAD + 8 * words.len())?;
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend([0; 8]);
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        let sum = checksum(&bytes[HEAD..]);
        bytes[8..HEAD].copy_from_slice(&sum.to_le_bytes());
        Ok(bytes)
    }

    /// The type that [`Datatype::flatten`] wrote. The bytes may come from anywhere.
    ///
    /// # Errors
    ///
    /// Bytes that are no type, of another version, damaged or cut off; what the constructors
    /// refuse.
    pub fn unflatten(bytes: &[u8]) -> Result<Datatype> {
        let wrong = |value: String, allowed: &'static str| {
            Error::argument("the flattened type", value, allowed)
        };
        let Some((head, rest)) = bytes.split_first_chunk::<HEAD>() else {
            let value = format!("{} bytes", bytes.len());
            return Err(wrong(value, "at least 16 bytes, as flatten wrote them"));
        };
        if head[..6] != MAGIC {
            let value = format!("beginning with {:02x?}", &head[..6]);
            return Err(wrong(value, "what flatten wrote: it begins with LCTYPE"));
        }
        let version = u16::from_le_bytes([head[6], head[7]]);
        if version != VERSION {
            let value = format!("of version {version}");
            return Err(wrong(value, "of version 1, which this library knows"));
        }
        let mut sum = [0; 8];
        sum.copy_from_slice(&head[8..]);
        if rest.len() % 8 != 0 || checksum(rest) != u64::from_le_bytes(sum) {
            let value = format!("{} bytes whose checksum differs", bytes.len());
            return Err(wrong(
                value,
                "all of the bytes that flatten wrote, unchanged",
            ));
        }
        let words = room::gather(rest.chunks_exact(8).map(|chunk| {
            let mut word = [0; 8];
            word.copy_from_slice(chunk);
            u64::from_le_bytes(word)
        }))?;
        let mut reader = Reader { words, at: 0 };
        let mut types: Vec<Datatype> = Vec::new();
        while reader.at < reader.words.len() {
            let next = reader.datatype(&types)?;
            room::push(&mut types, next)?;
        }
        types
            .pop()
            .ok_or_else(|| wrong("without a type".to_owned(), "at least one type"))
    }
}

/// Writes one type.
fn write(
    words: &mut Vec<u64>,
    contents: &Contents,
    index: impl Fn(&Datatype) -> u64,
) -> room::Result<()> {
    fn counts(words: &mut Vec<u64>, list: &[u64]) -> room::Result<()> {
        room::push(words, list.len() as u64)?;
        room::extend(words, list.iter().copied())
    }
    fn numbers(words: &mut Vec<u64>, list: &[i64]) -> room::Result<()> {
        room::push(words, list.len() as u64)?;
        room::extend(words, list.iter().map(|number| *number as u64))
    }
    match contents {
        Contents::Named(named) => {
            // By name: the order of the list may change.
            let name = named.mpi_name().as_bytes();
            room::extend(words, [NAMED, name.len() as u64])?;
            let chunks = name.chunks(8).map(|chunk| {
                let mut word = [0; 8];
                word[..chunk.len()].copy_from_slice(chunk);
                u64::from_le_bytes(word)
            });
            return room::extend(words, chunks);
        }
        Contents::Dup { .. } => room::push(words, DUP)?,
        Contents::Contiguous { count, .. } => room::extend(words, [CONTIGUOUS, *count])?,
        Contents::Vector {
            count,
            blocklength,
            stride,
            ..
        } => room::extend(words, [VECTOR, *count, *blocklength, *stride as u64])?,
        Contents::Hvector {
            count,
            blocklength,
            stride,
            ..
        } => room::extend(words, [HVECTOR, *count, *blocklength, *stride as u64])?,
        Contents::Indexed {
            blocklengths,
            displacements,
            ..
        } => {
            room::push(words, INDEXED)?;
            counts(words, blocklengths)?;
            numbers(words, displacements)?;
        }
        Contents::Hindexed {
            blocklengths,
            displacements,
            ..
        } => {
            room::push(words, HINDEXED)?;
            counts(words, blocklengths)?;
            numbers(words, displacements)?;
        }
        Contents::IndexedBlock {
            blocklength,
            displacements,
            ..
        } => {
            room::extend(words, [INDEXED_BLOCK, *blocklength])?;
            numbers(words, displacements)?;
        }
        Contents::HindexedBlock {
            blocklength,
            displacements,
            ..
        } => {
            room::extend(words, [HINDEXED_BLOCK, *blocklength])?;
            numbers(words, displacements)?;
        }
        Contents::Struct {
            blocklengths,
            displacements,
            ..
        } => {
            room::push(words, STRUCT)?;
            counts(words, blocklengths)?;
            numbers(words, displacements)?;
        }
        Contents::Subarray {
            sizes,
            subsizes,
            starts,
            order,
            ..
        } => {
            room::extend(words, [SUBARRAY, order_word(*order)])?;
            counts(words, sizes)?;
            counts(words, subsizes)?;
            counts(words, starts)?;
        }
        Contents::Darray {
            size,
            rank,
            sizes,
            distributions,
            processes,
            order,
            ..
        } => {
            room::extend(words, [DARRAY, order_word(*order), *size, *rank])?;
            counts(words, sizes)?;
            room::push(words, distributions.len() as u64)?;
            for distribution in distributions.iter() {
                let pair = match distribution {
                    Distribution::Block(block) => [0, block.unwrap_or(DEFAULT)],
                    Distribution::Cyclic(block) => [1, block.unwrap_or(DEFAULT)],
                    Distribution::None => [2, 0],
                };
                room::extend(words, pair)?;
            }
            counts(words, processes)?;
        }
        Contents::Resized {
            lower_bound,
            extent,
            ..
        } => room::extend(words, [RESIZED, *lower_bound as u64, *extent as u64])?,
    }
    room::reserve(words, contents.envelope().datatypes as usize)?;
    words.extend(contents.children().map(index));
    Ok(())
}

/// What is left to read.
struct Reader {
    words: Vec<u64>,
    at: usize,
}

impl Reader {
    fn wrong(&self, value: u64, allowed: impl Into<Allowed>) -> Error {
        let value = format!("{value} as word {}", self.at);
        Error::argument("the flattened type", value, allowed)
    }

    fn next(&mut self) -> Result<u64> {
        match self.words.get(self.at) {
            Some(&word) => {
                self.at += 1;
                Ok(word)
            }
            None => Err(self.wrong(0, "a word that is there: the type is cut off")),
        }
    }

    fn number(&mut self) -> Result<i64> {
        Ok(self.next()? as i64)
    }

    fn counts(&mut self) -> Result<Vec<u64>> {
        let len = self.next()?;
        let left = (self.words.len() - self.at) as u64;
        if len > left {
            return Err(self.wrong(len, format!("a list of at most {left} entries")));
        }
        let list = room::copied(&self.words[self.at..self.at + len as usize])?;
        self.at += len as usize;
        Ok(list)
    }

    fn numbers(&mut self) -> Result<Vec<i64>> {
        Ok(room::gather(
            self.counts()?.into_iter().map(|word| word as i64),
        )?)
    }

    fn order(&mut self) -> Result<Order> {
        match self.next()? {
            0 => Ok(Order::C),
            1 => Ok(Order::Fortran),
            other => Err(self.wrong(other, "0 (C) or 1 (Fortran)")),
        }
    }

    fn child<'a>(&mut self, known: &'a [Datatype]) -> Result<&'a Datatype> {
        let index = self.next()?;
        match usize::try_from(index).ok().and_then(|i| known.get(i)) {
            Some(child) => Ok(child),
            None => Err(self.wrong(index, format!("one of the {} types before", known.len()))),
        }
    }

    fn named(&mut self) -> Result<Named> {
        let len = self.next()?;
        if len > 64 {
            return Err(self.wrong(len, "the length of a name, at most 64"));
        }
        let mut name = Vec::new();
        for _ in 0..len.div_ceil(8) {
            name.extend(self.next()?.to_le_bytes());
        }
        name.truncate(len as usize);
        let name = String::from_utf8_lossy(&name);
        Named::from_name(&name).ok_or_else(|| {
            Error::argument(
                "the flattened type",
                name.into_owned(),
                "the name of a predefined type",
            )
        })
    }

    fn datatype(&mut self, known: &[Datatype]) -> Result<Datatype> {
        let tag = self.next()?;
        match tag {
            NAMED => Ok(Datatype::named(self.named()?)),
            DUP => Ok(self.child(known)?.dup()),
            CONTIGUOUS => {
                let count = self.next()?;
                self.child(known)?.contiguous(count)
            }
            VECTOR => {
                let (count, length, stride) = (self.next()?, self.next()?, self.number()?);
                self.child(known)?.vector(count, length, stride)
            }
            HVECTOR => {
                let (count, length, stride) = (self.next()?, self.next()?, self.number()?);
                self.child(known)?.hvector(count, length, stride)
            }
            INDEXED => {
                let (lengths, places) = (self.counts()?, self.numbers()?);
                self.child(known)?.indexed(&lengths, &places)
            }
            HINDEXED => {
                let (lengths, places) = (self.counts()?, self.numbers()?);
                self.child(known)?.hindexed(&lengths, &places)
            }
            INDEXED_BLOCK => {
                let (length, places) = (self.next()?, self.numbers()?);
                self.child(known)?.indexed_block(length, &places)
            }
            HINDEXED_BLOCK => {
                let (length, places) = (self.next()?, self.numbers()?);
                self.child(known)?.hindexed_block(length, &places)
            }
            STRUCT => {
                let (lengths, places) = (self.counts()?, self.numbers()?);
                let children = lengths.iter().map(|_| self.child(known));
                let children = room::collect(children, lengths.len())?;
                Datatype::structure(&lengths, &places, children)
            }
            SUBARRAY => {
                let order = self.order()?;
                let (sizes, subsizes) = (self.counts()?, self.counts()?);
                let starts = self.counts()?;
                self.child(known)?
                    .subarray(&sizes, &subsizes, &starts, order)
            }
            DARRAY => {
                let (order, size, rank) = (self.order()?, self.next()?, self.next()?);
                let (sizes, count) = (self.counts()?, self.next()?);
                let mut distributions = Vec::new();
                for _ in 0..count {
                    let (kind, block) = (self.next()?, self.next()?);
                    let block = (block != DEFAULT).then_some(block);
                    let next = match kind {
                        0 => Distribution::Block(block),
                        1 => Distribution::Cyclic(block),
                        2 => Distribution::None,
                        other => return Err(self.wrong(other, "a distribution, 0 to 2")),
                    };
                    room::push(&mut distributions, next)?;
                }
                let processes = self.counts()?;
                self.child(known)?
                    .darray(size, rank, &sizes, &distributions, &processes, order)
            }
            RESIZED => {
                let (lower_bound, extent) = (self.number()?, self.number()?);
                self.child(known)?.resized(lower_bound, extent)
            }
            other => Err(self.wrong(other, "the number of a constructor, 0 to 12")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: [&str; 13] = [
        "2int",
        "dup(int)",
        "contiguous(3,long_double_int)",
        "vector(3,2,-4,byte)",
        "hvector(3,2,40,double_int)",
        "indexed([1,0,2],[4,-9,0],int)",
        "hindexed([],[],int)",
        "indexed_block(2,[7,3,-9],int)",
        "hindexed_block(2,[8,0],c_long_double_complex)",
        "struct([1,2],[0,16],[int,vector(2,1,2,double)])",
        "subarray([4,6],[2,3],[1,2],fortran,float)",
        "darray(6,5,[10,9,4],[block(5),cyclic,none],[2,3,1],c,int)",
        "resized(-8,64,2real)",
    ];

    #[test]
    fn every_constructor_survives_the_journey() {
        for text in EVERY {
            let datatype: Datatype = text.parse().unwrap();
            let again = Datatype::unflatten(&datatype.flatten().unwrap()).unwrap();
            assert_eq!(again.expression(), text);
            assert_eq!(again.commit().unwrap(), datatype.commit().unwrap());
            assert_eq!(again.signature(), datatype.signature());
        }
    }

    #[test]
    fn shared_children_are_written_once_and_depth_needs_no_stack() {
        let mut datatype = Datatype::named(Named::Int);
        for level in 0..40 {
            let both = [datatype.clone(), datatype];
            datatype = Datatype::structure(&[1, 1], &[0, 4 << level], &both).unwrap();
        }
        let bytes = datatype.flatten().unwrap();
        assert!(bytes.len() < 5000);
        let again = Datatype::unflatten(&bytes).unwrap();
        assert_eq!(again.size(), datatype.size());
        assert_eq!(again.signature(), datatype.signature());
        for _ in 0..100_000 {
            datatype = datatype.dup();
        }
        assert_eq!(
            Datatype::unflatten(&datatype.flatten().unwrap())
                .unwrap()
                .size(),
            datatype.size()
        );
    }

    /// Bytes with a right checksum, whatever their words say.
    fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
        let sum = checksum(&bytes[HEAD..]);
        bytes[8..HEAD].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    #[test]
    fn damaged_bytes_are_refused_or_harmless() {
        for text in EVERY {
            let bytes = text.parse::<Datatype>().unwrap().flatten().unwrap();
            for end in 0..bytes.len() {
                assert!(Datatype::unflatten(&bytes[..end]).is_err());
            }
            for at in 0..bytes.len() {
                let mut other = bytes.clone();
                other[at] ^= 0x11;
                assert!(Datatype::unflatten(&other).is_err(), "{text} at {at}");
            }
            // Also if somebody made the checksum right.
            for at in (HEAD..bytes.len()).step_by(8) {
                let _ = Datatype::unflatten(&sealed(bytes[..at].to_vec()));
                for value in [0, 1, 5, 13, 1 << 31, 1 << 62, u64::MAX] {
                    let mut other = bytes.clone();
                    other[at..at + 8].copy_from_slice(&value.to_le_bytes());
                    if let Err(error) = Datatype::unflatten(&sealed(other)) {
                        assert!(!error.to_string().is_empty());
                    }
                }
            }
        }
        let mut newer = EVERY[0].parse::<Datatype>().unwrap().flatten().unwrap();
        newer[6] = 2;
        let error = Datatype::unflatten(&newer).unwrap_err().to_string();
        assert!(error.contains("version 2"), "{error}");
    }
}
