// SPDX-License-Identifier: MIT OR Apache-2.0

//! The control messages of a transfer: RTS, CTS, FIN and those of the caches, as bytes.
//!
//! Everything is little-endian: a byte that says which message it is, then its fields. What comes
//! from a peer is checked: a list that is longer than its message is refused.

use std::sync::Arc;

use crate::cache::EntryId;
use crate::choice::{Abilities, Method};
use crate::cut::{CutRule, Cuts, Limits};
use crate::error::{Error, Result};
use crate::iov::Shape;
use libcopy_datatype::room;

/// One control message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// The sender has a message.
    Rts {
        /// The sender's number of the transfer, which all other messages about it name.
        number: u32,
        /// Its pieces.
        shape: Shape,
        /// What the sender can do.
        abilities: Abilities,
        /// The lengths of its pieces, under [`CutRule::Maximal`].
        lengths: Option<Vec<u64>>,
    },
    /// The receiver is ready.
    Cts {
        /// The transfer.
        number: u32,
        /// Where the bytes are to go.
        offer: Offer,
    },
    /// The bytes have arrived; or the sender could not send them, and the receiver offers packing.
    Fin {
        /// The transfer.
        number: u32,
        /// Whether they have.
        is_done: bool,
    },
    /// The receiver cannot take the message at all.
    Refused {
        /// The transfer.
        number: u32,
        /// Bytes of the receiver's layout; not fewer than the sender's if it cannot register
        /// memory.
        room: u64,
    },
    /// The sender has not the keys that the CTS names.
    Missing {
        /// The transfer.
        number: u32,
        /// The receiver's entry.
        entry: EntryId,
    },
    /// The receiver's entry is to be forgotten.
    Forget(EntryId),
    /// It has been.
    Forgotten(EntryId),
}

/// What a CTS offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Offer {
    /// Packed bytes go to contiguous memory, at most `len` at a time.
    Pack {
        /// Its address.
        addr: u64,
        /// Its key.
        rkey: u32,
        /// Its bytes.
        len: u64,
    },
    /// Receives are posted for a SEND per window.
    Sge(Cuts),
    /// A WRITE per key.
    Umr {
        /// Where the message is cut; not said with keys that are known.
        cuts: Option<Cuts>,
        /// The keys; none if the sender has them.
        rkeys: Option<Vec<u32>>,
        /// The entry of the receiver's cache; none if the keys are for this message.
        entry: Option<EntryId>,
    },
}

impl Offer {
    /// Its method.
    pub fn method(&self) -> Method {
        match self {
            Offer::Pack { .. } => Method::Pack,
            Offer::Sge(_) => Method::Sge,
            Offer::Umr { .. } => Method::Umr,
        }
    }
}

/// The most bytes of an RTS without lengths ([`CutRule::Agreed`]).
pub const MAX_RTS: usize = 1 + 4 + 4 * 8 + 2 * (1 + 16) + 1;

/// The rule that an RTS asks for.
pub fn rule(lengths: Option<&Vec<u64>>) -> CutRule {
    if lengths.is_some() {
        CutRule::Maximal
    } else {
        CutRule::Agreed
    }
}

/// The most entries of a list in a message.
pub(crate) const MAX_LIST: u64 = 1 << 24;

struct Writer(Vec<u8>);

impl Writer {
    fn byte(&mut self, value: u8) {
        self.0.push(value);
    }
    fn word(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }
    fn half(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }
    fn words(&mut self, list: &[u64]) {
        self.word(list.len() as u64);
        list.iter().for_each(|value| self.word(*value));
    }
    fn some<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Writer, T)) {
        self.byte(u8::from(value.is_some()));
        if let Some(value) = value {
            write(self, value);
        }
    }
    fn limits(&mut self, limits: Limits) {
        self.word(limits.max_iovs as u64);
        self.word(limits.max_bytes);
    }
    fn cuts(&mut self, cuts: &Cuts) {
        match cuts {
            Cuts::Every(csize) => {
                self.byte(0);
                self.word(*csize);
            }
            Cuts::Lengths(lengths) => {
                self.byte(1);
                self.words(lengths);
            }
        }
    }
    fn entry(&mut self, entry: EntryId) {
        self.half(entry.id);
        self.half(entry.generation);
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    rank: u32,
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let Some((first, rest)) = self.bytes.split_first_chunk::<N>() else {
            return Err(self.wrong("length", self.bytes.len() as u64));
        };
        self.bytes = rest;
        Ok(*first)
    }
    fn wrong(&self, field: &'static str, value: u64) -> Error {
        Error::corrupt(self.rank, field, value)
    }
    fn byte(&mut self) -> Result<u8> {
        Ok(self.take::<1>()?[0])
    }
    fn word(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.take()?))
    }
    fn half(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.take()?))
    }
    fn count(&mut self, each: u64) -> Result<u64> {
        let count = self.word()?;
        if count > MAX_LIST || count * each > self.bytes.len() as u64 {
            return Err(self.wrong("entries of a list", count));
        }
        Ok(count)
    }
    fn words(&mut self) -> Result<Vec<u64>> {
        let count = self.count(8)?;
        room::collect((0..count).map(|_| self.word()), count)
    }
    fn some<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T>) -> Result<Option<T>> {
        match self.byte()? {
            0 => Ok(None),
            1 => read(self).map(Some),
            other => Err(self.wrong("presence of a field", other.into())),
        }
    }
    fn limits(&mut self) -> Result<Limits> {
        let (max_iovs, max_bytes) = (self.word()?, self.word()?);
        if max_iovs < 2 || max_bytes == 0 {
            return Err(self.wrong("entries of a key", max_iovs));
        }
        Ok(Limits {
            max_iovs: usize::try_from(max_iovs).unwrap_or(usize::MAX),
            max_bytes,
        })
    }
    fn cuts(&mut self) -> Result<Cuts> {
        match self.byte()? {
            0 => match self.word()? {
                0 => Err(self.wrong("chunk size", 0)),
                csize => Ok(Cuts::Every(csize)),
            },
            1 => Ok(Cuts::Lengths(Arc::new(self.words()?))),
            other => Err(self.wrong("kind of cuts", other.into())),
        }
    }
    fn shape(&mut self) -> Result<Shape> {
        let shape = Shape {
            bytes: self.word()?,
            blocks: self.word()?,
            min: self.word()?,
            unit: self.word()?,
        };
        if !shape.is_possible() {
            return Err(self.wrong("shortest piece", shape.min));
        }
        Ok(shape)
    }
    fn cts(&mut self, offer: impl FnOnce(&mut Self) -> Result<Offer>) -> Result<Control> {
        Ok(Control::Cts {
            number: self.half()?,
            offer: offer(self)?,
        })
    }
    fn entry(&mut self) -> Result<EntryId> {
        Ok(EntryId {
            id: self.half()?,
            generation: self.half()?,
        })
    }
}

impl Control {
    /// The most bytes that the message takes.
    fn most(&self) -> usize {
        let lengths = |list: Option<&Vec<u64>>| list.map_or(0, |list| 8 * list.len());
        let of_cuts = |cuts: Option<&Cuts>| match cuts {
            Some(Cuts::Lengths(list)) => 8 * list.len(),
            Some(Cuts::Every(_)) | None => 0,
        };
        // Nothing but the lists is longer than an RTS with the length of one.
        MAX_RTS
            + 8
            + match self {
                Control::Rts { lengths: list, .. } => lengths(list.as_ref()),
                Control::Cts {
                    offer: Offer::Sge(cuts),
                    ..
                } => of_cuts(Some(cuts)),
                Control::Cts {
                    offer: Offer::Umr { cuts, rkeys, .. },
                    ..
                } => of_cuts(cuts.as_ref()) + rkeys.as_ref().map_or(0, |rkeys| 4 * rkeys.len()),
                _ => 0,
            }
    }

    /// The message as bytes.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] where memory has no room for them.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut out = Writer(room::list(self.most())?);
        match self {
            Control::Rts {
                number,
                shape,
                abilities,
                lengths,
            } => {
                out.byte(1);
                out.half(*number);
                for value in [shape.bytes, shape.blocks, shape.min, shape.unit] {
                    out.word(value);
                }
                out.some(abilities.sge, Writer::limits);
                out.some(abilities.umr, Writer::limits);
                out.some(lengths.as_ref(), |out, lengths| out.words(lengths));
            }
            Control::Cts { number, offer } => {
                out.byte(match offer {
                    Offer::Pack { .. } => 2,
                    Offer::Sge(_) => 3,
                    Offer::Umr { .. } => 4,
                });
                out.half(*number);
                match offer {
                    Offer::Pack { addr, rkey, len } => {
                        out.word(*addr);
                        out.half(*rkey);
                        out.word(*len);
                    }
                    Offer::Sge(cuts) => out.cuts(cuts),
                    Offer::Umr { cuts, rkeys, entry } => {
                        out.some(cuts.as_ref(), Writer::cuts);
                        out.some(rkeys.as_ref(), |out, rkeys| {
                            out.word(rkeys.len() as u64);
                            rkeys.iter().for_each(|rkey| out.half(*rkey));
                        });
                        out.some(*entry, Writer::entry);
                    }
                }
            }
            Control::Fin { number, is_done } => {
                out.byte(5);
                out.half(*number);
                out.byte(u8::from(*is_done));
            }
            Control::Refused { number, room } => {
                out.byte(6);
                out.half(*number);
                out.word(*room);
            }
            Control::Missing { number, entry } => {
                out.byte(7);
                out.half(*number);
                out.entry(*entry);
            }
            Control::Forget(entry) => {
                out.byte(8);
                out.entry(*entry);
            }
            Control::Forgotten(entry) => {
                out.byte(9);
                out.entry(*entry);
            }
        }
        Ok(out.0)
    }

    /// The message that `rank` has sent.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`] if the bytes are no message.
    pub fn from_bytes(bytes: &[u8], rank: u32) -> Result<Control> {
        let mut from = Reader { bytes, rank };
        let message = match from.byte()? {
            1 => Control::Rts {
                number: from.half()?,
                shape: from.shape()?,
                abilities: Abilities {
                    sge: from.some(Reader::limits)?,
                    umr: from.some(Reader::limits)?,
                },
                lengths: from.some(Reader::words)?,
            },
            2 => from.cts(|from| {
                Ok(Offer::Pack {
                    addr: from.word()?,
                    rkey: from.half()?,
                    len: from.word()?,
                })
            })?,
            3 => from.cts(|from| Ok(Offer::Sge(from.cuts()?)))?,
            4 => from.cts(|from| {
                Ok(Offer::Umr {
                    cuts: from.some(Reader::cuts)?,
                    rkeys: from.some(|from| {
                        let count = from.count(4)?;
                        room::collect((0..count).map(|_| from.half()), count)
                    })?,
                    entry: from.some(Reader::entry)?,
                })
            })?,
            5 => Control::Fin {
                number: from.half()?,
                is_done: match from.byte()? {
                    0 => false,
                    1 => true,
                    other => return Err(from.wrong("verdict of a FIN", other.into())),
                },
            },
            6 => Control::Refused {
                number: from.half()?,
                room: from.word()?,
            },
            7 => Control::Missing {
                number: from.half()?,
                entry: from.entry()?,
            },
            8 => Control::Forget(from.entry()?),
            9 => Control::Forgotten(from.entry()?),
            other => return Err(from.wrong("kind of message", other.into())),
        };
        if !from.bytes.is_empty() {
            return Err(from.wrong("bytes behind a message", from.bytes.len() as u64));
        }
        Ok(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cts(offer: Offer) -> Control {
        Control::Cts { number: 2, offer }
    }

    fn all() -> Vec<Control> {
        let entry = EntryId {
            id: 3,
            generation: 4,
        };
        let limits = Limits {
            max_iovs: 32,
            max_bytes: 1 << 31,
        };
        vec![
            Control::Rts {
                number: 1,
                shape: Shape {
                    bytes: 40,
                    blocks: 4,
                    min: 10,
                    unit: 10,
                },
                abilities: Abilities {
                    sge: None,
                    umr: Some(limits),
                },
                lengths: Some(vec![10; 4]),
            },
            cts(Offer::Pack {
                addr: 1 << 40,
                rkey: 7,
                len: 9,
            }),
            cts(Offer::Sge(Cuts::Every(9))),
            cts(Offer::Umr {
                cuts: Some(Cuts::Lengths(Arc::new(vec![1, 2]))),
                rkeys: Some(vec![5, 6]),
                entry: Some(entry),
            }),
            Control::Fin {
                number: 2,
                is_done: true,
            },
            Control::Refused { number: 2, room: 7 },
            Control::Missing { number: 2, entry },
            Control::Forget(entry),
            Control::Forgotten(entry),
        ]
    }

    #[test]
    fn what_is_written_is_read() {
        for message in all() {
            let bytes = message.to_bytes().unwrap();
            assert!(bytes.len() <= message.most(), "{message:?}");
            assert_eq!(Control::from_bytes(&bytes, 0), Ok(message));
        }
    }

    #[test]
    fn damaged_messages_are_refused() {
        for message in all() {
            let bytes = message.to_bytes().unwrap();
            for len in 0..bytes.len() {
                assert!(
                    Control::from_bytes(&bytes[..len], 1).is_err(),
                    "{message:?}"
                );
            }
            assert!(Control::from_bytes(&[&bytes[..], &[0]].concat(), 1).is_err());
        }
        // A list that says it is longer than memory.
        let mut list = cts(Offer::Sge(Cuts::Lengths(Arc::new(vec![1]))))
            .to_bytes()
            .unwrap();
        list[6..14].fill(0xff);
        assert_eq!(
            Control::from_bytes(&list, 1),
            Err(Error::Corrupt {
                rank: 1,
                field: "entries of a list",
                value: u64::MAX
            })
        );
        // A chunk size of 0, a FIN that is neither done nor not, an RTS with pieces that no layout
        // has.
        assert!(Control::from_bytes(&[&[3][..], &[0; 13]].concat(), 1).is_err());
        assert!(Control::from_bytes(&[5, 0, 0, 0, 0, 2], 1).is_err());
        let mut rts = all()[0].to_bytes().unwrap();
        rts[13] = 5;
        assert!(Control::from_bytes(&rts, 1).is_err());
    }

    #[test]
    fn an_rts_without_lengths_is_short() {
        let mut rts = all().swap_remove(0);
        if let Control::Rts {
            abilities, lengths, ..
        } = &mut rts
        {
            abilities.sge = abilities.umr;
            *lengths = None;
        }
        assert_eq!(rts.to_bytes().unwrap().len(), MAX_RTS);
    }
}
