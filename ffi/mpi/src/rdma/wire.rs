// SPDX-License-Identifier: MIT OR Apache-2.0

//! What two processes tell each other over the communicator of ours, as bytes: little-endian, a
//! byte that says what it is, the message's number, and the rest. What comes from a peer is
//! checked.

use libcopy_rdma::verbs::Address;

/// Where a message of a header's length goes: its tag, and a hash of the ranks of its communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Envelope {
    pub tag: i32,
    pub group: u64,
}

/// A header that is sent: what a probe that finds it has to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    pub sequence: u64,
    pub envelope: Envelope,
    pub total: u64,
}

/// One message of the control communicator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wire {
    /// The address of a queue pair; none if there is none to have.
    Hello(Option<Address>),
    /// The queue pair can receive.
    Ready,
    /// A control message of the link between the two.
    Link(Vec<u8>),
    /// The receiver has matched a message and wants its bytes.
    Pull { sequence: u64 },
    /// The sender begins to send it over the link, with this request to send (RTS).
    Begin { sequence: u64, rts: Vec<u8> },
    /// The receiver wants it through the MPI library: the link has failed.
    Pack { sequence: u64 },
    /// The sender has handed it to the MPI library, packed.
    Packed { sequence: u64 },
    /// The sender does not have it any more.
    Lost { sequence: u64 },
    /// The receiver has less room than the message has bytes.
    Truncated { sequence: u64 },
    /// A header is sent.
    Notice(Notice),
    /// From now on messages of a header's length in this envelope, or in all of them, are the
    /// program's own.
    Retired(Option<Envelope>),
    /// Nothing comes behind this.
    End,
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..)?.first_chunk::<8>()?;
    Some(u64::from_le_bytes(*bytes))
}

impl Wire {
    /// As bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (kind, sequence) = match self {
            Wire::Hello(_) => (1, 0),
            Wire::Ready => (2, 0),
            Wire::Link(_) => (3, 0),
            Wire::Pull { sequence } => (4, *sequence),
            Wire::Begin { sequence, .. } => (5, *sequence),
            Wire::Pack { sequence } => (6, *sequence),
            Wire::Packed { sequence } => (7, *sequence),
            Wire::Lost { sequence } => (8, *sequence),
            Wire::Truncated { sequence } => (9, *sequence),
            Wire::Notice(notice) => (10, notice.sequence),
            Wire::Retired(_) => (11, 0),
            Wire::End => (12, 0),
        };
        let words = |envelope: &Envelope| [i64::from(envelope.tag) as u64, envelope.group];
        let mut bytes = vec![kind];
        bytes.extend(u64::to_le_bytes(sequence));
        match self {
            Wire::Hello(Some(address)) => bytes.extend(address.to_bytes()),
            Wire::Link(message) | Wire::Begin { rts: message, .. } => bytes.extend(message),
            Wire::Notice(notice) => {
                let [tag, group] = words(&notice.envelope);
                bytes.extend(
                    [tag, group, notice.total]
                        .map(u64::to_le_bytes)
                        .as_flattened(),
                );
            }
            Wire::Retired(Some(envelope)) => {
                bytes.extend(words(envelope).map(u64::to_le_bytes).as_flattened());
            }
            _ => {}
        }
        bytes
    }

    /// What a peer has sent; `None` if it is nothing that anybody sends.
    pub fn from_bytes(bytes: &[u8]) -> Option<Wire> {
        let (kind, rest) = bytes.split_first()?;
        let sequence = word(rest, 0)?;
        let rest = &rest[8..];
        let envelope = || {
            Some(Envelope {
                tag: i32::try_from(word(rest, 0)? as i64).ok()?,
                group: word(rest, 8)?,
            })
        };
        let (wire, len) = match kind {
            1 if rest.is_empty() => (Wire::Hello(None), 0),
            1 => {
                let address = Address::from_bytes(rest.try_into().ok()?);
                (Wire::Hello(Some(address)), Address::BYTES)
            }
            2 => (Wire::Ready, 0),
            3 => (Wire::Link(rest.to_vec()), rest.len()),
            4 => (Wire::Pull { sequence }, 0),
            5 => {
                let rts = rest.to_vec();
                (Wire::Begin { sequence, rts }, rest.len())
            }
            6 => (Wire::Pack { sequence }, 0),
            7 => (Wire::Packed { sequence }, 0),
            8 => (Wire::Lost { sequence }, 0),
            9 => (Wire::Truncated { sequence }, 0),
            10 => {
                let notice = Notice {
                    sequence,
                    envelope: envelope()?,
                    total: word(rest, 16)?,
                };
                (Wire::Notice(notice), 24)
            }
            11 if rest.is_empty() => (Wire::Retired(None), 0),
            11 => (Wire::Retired(Some(envelope()?)), 16),
            12 => (Wire::End, 0),
            _ => return None,
        };
        (rest.len() == len).then_some(wire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_damage_is_refused() {
        let address = Address {
            gid: [7; 16],
            qp_num: 1,
            lid: 2,
            mtu: 3,
        };
        let envelope = Envelope { tag: -5, group: 6 };
        let (sequence, total) = (9, 1 << 40);
        let all = [
            Wire::Hello(None),
            Wire::Hello(Some(address)),
            Wire::Ready,
            Wire::Link(vec![1, 2, 3]),
            Wire::Pull { sequence },
            Wire::Begin {
                sequence,
                rts: vec![4, 5],
            },
            Wire::Pack { sequence },
            Wire::Packed { sequence },
            Wire::Lost { sequence },
            Wire::Truncated { sequence },
            Wire::Notice(Notice {
                sequence,
                envelope,
                total,
            }),
            Wire::Retired(Some(envelope)),
            Wire::Retired(None),
            Wire::End,
        ];
        for wire in all {
            let bytes = wire.to_bytes();
            assert_eq!(Wire::from_bytes(&bytes), Some(wire.clone()));
            let shorter = Wire::from_bytes(&bytes[..bytes.len() - 1]);
            assert_ne!(shorter, Some(wire.clone()));
            if !matches!(wire, Wire::Link(_) | Wire::Begin { .. }) {
                assert_eq!(Wire::from_bytes(&[&bytes[..], &[0]].concat()), None);
            }
        }
        assert_eq!(Wire::from_bytes(&[13; 30]), None);
        assert_eq!(Wire::from_bytes(&[]), None);
    }
}
