// SPDX-License-Identifier: MIT OR Apache-2.0

//! Registered memory that is kept for later messages of the same elements, where there are no
//! memory keys to keep.

use std::collections::HashMap;
use std::sync::Arc;

use crate::cache::ElementsKey;
use crate::card::Card;
use crate::error::{Result, is_locked_out};
use crate::iov::Elements;
use crate::keys::Memory;

/// How many are kept.
const KEPT: usize = 256;

#[derive(Debug)]
struct Kept<M> {
    memory: Arc<M>,
    /// What the memory was when it was registered.
    generation: u64,
    last_use: u64,
}

/// Registered memory of a link.
#[derive(Debug)]
pub(crate) struct Registrations<M> {
    kept: HashMap<ElementsKey, Kept<M>>,
    clock: u64,
}

impl<M> Default for Registrations<M> {
    fn default() -> Registrations<M> {
        Registrations {
            kept: HashMap::new(),
            clock: 0,
        }
    }
}

impl<M> Registrations<M> {
    /// Registers the memory of elements, to which bytes go if `is_target`, or finds it registered;
    /// whether it was.
    ///
    /// # Errors
    ///
    /// As for [`Card::register`].
    pub fn register<C: Card<Memory = M>>(
        &mut self,
        card: &C,
        elements: &Elements,
        memory: Memory,
        is_target: bool,
    ) -> Result<(Arc<M>, bool)> {
        let Memory::Generation(generation) = memory else {
            let registered = self.register_new(card, elements, is_target)?;
            return Ok((registered, false));
        };
        self.clock += 1;
        let key = ElementsKey::new(elements, is_target);
        if let Some(kept) = self.kept.get_mut(&key) {
            if kept.generation == generation {
                kept.last_use = self.clock;
                return Ok((kept.memory.clone(), true));
            }
            // Before the new one, which may not have room beside it.
            self.kept.remove(&key);
        }
        if self.kept.len() >= KEPT {
            self.drop_oldest();
        }
        let memory = self.register_new(card, elements, is_target)?;
        let kept = Kept {
            memory: memory.clone(),
            generation,
            last_use: self.clock,
        };
        self.kept.insert(key, kept);
        Ok((memory, false))
    }

    fn register_new<C: Card<Memory = M>>(
        &mut self,
        card: &C,
        elements: &Elements,
        is_target: bool,
    ) -> Result<Arc<M>> {
        let iovs = elements.iovs()?;
        loop {
            // SAFETY: elements of a transfer, whose caller keeps the promises of
            // `Link::start_matched_send` or `Link::start_matched_receive`.
            match unsafe { card.register(&iovs, is_target) } {
                Ok(memory) => return Ok(Arc::new(memory)),
                // What is kept is memory, of which no more may be locked.
                Err(error) if is_locked_out(&error) && self.drop_oldest() => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether there was one.
    fn drop_oldest(&mut self) -> bool {
        let oldest = self.kept.iter().min_by_key(|(_, kept)| kept.last_use);
        match oldest.map(|(key, _)| key.clone()) {
            Some(key) => self.kept.remove(&key).is_some(),
            None => false,
        }
    }

    /// The memory of a generation is other memory now, or nobody watches it any more.
    pub fn expire(&mut self, generation: u64) {
        self.kept.retain(|_, kept| kept.generation != generation);
    }

    /// Keeps nothing any more.
    pub fn clear(&mut self) {
        self.kept.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cut::Limits;
    use crate::emulated::{EmulatedCard, EmulatedEnd};
    use libcopy_datatype::{Datatype, Layout, Named};

    const LIMITS: Limits = Limits {
        max_iovs: 4,
        max_bytes: 1 << 31,
    };

    fn elements(base: u64) -> Elements {
        let column = Datatype::named(Named::Double).vector(4, 1, 8).unwrap();
        Elements::new(&Layout::new(&column, 1).unwrap(), base)
    }

    #[test]
    fn memory_is_registered_once_in_a_generation() {
        let card = EmulatedCard::new(LIMITS);
        let [end, _] = EmulatedEnd::pair([&card, &card], 8, None);
        let mut registrations = Registrations::default();
        let mut register = |base, memory, is_target| {
            let found = registrations.register(&*end, &elements(base), memory, is_target);
            found.unwrap().1
        };
        assert!(!register(0, Memory::Unwatched, false));
        assert_eq!(card.live().regions, 0, "for this message alone");
        assert!(!register(0, Memory::Generation(1), false));
        assert!(register(0, Memory::Generation(1), false));
        // To be written, at another place, and other memory at the same place.
        assert!(!register(0, Memory::Generation(1), true));
        assert!(!register(8, Memory::Generation(1), false));
        assert_eq!(card.live().regions, 3);
        assert!(!register(0, Memory::Generation(2), false));
        assert_eq!(card.live().regions, 3);
        assert!(!register(0, Memory::Unwatched, false));
        assert!(register(0, Memory::Generation(2), false));
        registrations.expire(1);
        assert_eq!(card.live().regions, 1);
        registrations.clear();
        assert_eq!(card.live().regions, 0);
    }

    #[test]
    fn what_a_message_uses_stays_until_it_has_ended() {
        let card = EmulatedCard::new(LIMITS);
        let [end, _] = EmulatedEnd::pair([&card, &card], 8, None);
        let mut registrations = Registrations::default();
        let used = registrations.register(&*end, &elements(0), Memory::Generation(1), true);
        registrations.expire(1);
        assert_eq!(card.live().regions, 1);
        drop(used);
        assert_eq!(card.live().regions, 0);
    }

    #[test]
    fn what_is_kept_makes_room() {
        let card = EmulatedCard::new(LIMITS);
        let [end, _] = EmulatedEnd::pair([&card, &card], 8, None);
        let mut registrations = Registrations::default();
        for base in 0..KEPT as u64 + 10 {
            let made =
                registrations.register(&*end, &elements(8 * base), Memory::Generation(1), true);
            assert!(made.is_ok_and(|(_, is_kept)| !is_kept));
        }
        assert_eq!(card.live().regions, KEPT);
        // The limit of locked memory: the one that was not used for longest goes.
        card.fail_after(Some(0));
        let made = registrations.register(&*end, &elements(8), Memory::Unwatched, false);
        assert!(made.is_ok());
        assert_eq!(card.live().regions, KEPT);
        let mut nothing = Registrations::default();
        card.fail_after(Some(0));
        assert!(
            nothing
                .register(&*end, &elements(8), Memory::Unwatched, false)
                .is_err()
        );
    }
}
