// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a rank tells its peers so that they reach memory of its own, and its form in a message.

use super::kind::TransportKind;
use crate::device::RegionId;
use crate::error::{Error, Result};

/// Memory that a rank opened to its peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RemoteKey {
    /// A region of the team's domain.
    Kmod {
        region: RegionId,
        /// Given if the peers should map the region.
        mapping: Option<Mapping>,
    },
    /// An address in the owner's address space.
    Cma { base: u64, len: u64 },
}

/// What peers that map a region have to know, beside its id: ids are used again, serial numbers
/// never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    /// The region's number among all that its owner ever opened, from 1 on.
    pub(crate) serial: u32,
    /// No region of this owner with a lower number is open any more.
    pub(crate) oldest: u32,
}

impl RemoteKey {
    /// A region that peers do not map.
    pub(crate) fn unmapped(region: RegionId) -> Self {
        RemoteKey::Kmod {
            region,
            mapping: None,
        }
    }

    /// The transport that takes the key.
    pub(crate) fn kind(&self) -> TransportKind {
        match self {
            RemoteKey::Kmod { .. } => TransportKind::Kmod,
            RemoteKey::Cma { .. } => TransportKind::Cma,
        }
    }

    /// The key as words of a message: the transport's number, then two words whose meaning is the
    /// transport's. Without a key, the bytes go through shared memory, and the number is that of
    /// [`TransportKind::Shm`].
    pub(crate) fn to_words(key: Option<Self>) -> [u64; 3] {
        match key {
            Some(RemoteKey::Kmod { region, mapping }) => {
                let numbers = mapping.map_or(0, |Mapping { serial, oldest }| {
                    u64::from(serial) << 32 | u64::from(oldest)
                });
                [TransportKind::Kmod.number(), region.get().into(), numbers]
            }
            Some(RemoteKey::Cma { base, len }) => [TransportKind::Cma.number(), base, len],
            None => [TransportKind::Shm.number(), 0, 0],
        }
    }

    /// What [`RemoteKey::to_words`] made the words from.
    pub(crate) fn from_words([kind, a, b]: [u64; 3]) -> Result<Option<Self>> {
        let corrupt = |what, value| Error::Corrupt { what, value };
        match TransportKind::from_number(kind).ok_or_else(|| corrupt("a transport", kind))? {
            TransportKind::Kmod => {
                let id = u32::try_from(a).ok().map(RegionId::new);
                let Some(Ok(region)) = id else {
                    return Err(corrupt("a region id", a));
                };
                let (serial, oldest) = ((b >> 32) as u32, b as u32);
                Ok(Some(RemoteKey::Kmod {
                    region,
                    mapping: (serial != 0).then_some(Mapping { serial, oldest }),
                }))
            }
            TransportKind::Cma => Ok(Some(RemoteKey::Cma { base: a, len: b })),
            TransportKind::Shm => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uapi;

    #[test]
    fn keys_survive_words() {
        let region = RegionId::new(uapi::MAX_REGION_ID).unwrap();
        let mapping = Some(Mapping {
            serial: u32::MAX - 1,
            oldest: 7,
        });
        for key in [
            Some(RemoteKey::unmapped(region)),
            Some(RemoteKey::Kmod { region, mapping }),
            Some(RemoteKey::Cma {
                base: 0xffff_ffff_ffff_f000,
                len: 1 << 40,
            }),
            None,
        ] {
            assert_eq!(
                RemoteKey::from_words(RemoteKey::to_words(key)).unwrap(),
                key
            );
        }
    }

    #[test]
    fn what_is_no_key_is_refused() {
        let too_large = u64::from(uapi::MAX_REGION_ID) + 1;
        for words in [
            [0, 0, 0],
            [9, 1, 0],
            [TransportKind::Kmod.number(), 0, 0],
            [TransportKind::Kmod.number(), too_large, 0],
            [TransportKind::Kmod.number(), 1 << 32 | 1, 0],
        ] {
            assert!(RemoteKey::from_words(words).is_err(), "{words:?}");
        }
    }
}
