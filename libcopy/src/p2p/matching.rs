// SPDX-License-Identifier: MIT OR Apache-2.0

//! Which message a receive gets, as the MPI standard orders them (MPI 4.1, section 3.5): of two
//! messages of one sender that both match, the one that was sent first; of two receives that both
//! match, the one that was posted first.

use std::collections::VecDeque;

/// Receives from any rank.
pub const ANY_SOURCE: usize = usize::MAX;

/// Receives with any tag.
pub const ANY_TAG: i32 = -1;

/// What a message is matched by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Envelope {
    pub(crate) source: usize,
    pub(crate) tag: i32,
}

/// Which messages a receive wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    /// A rank, or [`ANY_SOURCE`].
    pub(crate) source: usize,
    /// A tag, or [`ANY_TAG`].
    pub(crate) tag: i32,
}

impl Pattern {
    fn matches(self, envelope: Envelope) -> bool {
        (self.source == ANY_SOURCE || self.source == envelope.source)
            && (self.tag == ANY_TAG || self.tag == envelope.tag)
    }
}

/// Receives that nothing has come for, and messages that nobody has received: one of the two never
/// matches the other.
#[derive(Debug)]
pub(crate) struct Matcher<M, R> {
    /// In the order in which they were posted.
    posted: VecDeque<(Pattern, R)>,
    /// In the order in which they came.
    unexpected: VecDeque<(Envelope, M)>,
}

impl<M, R> Matcher<M, R> {
    pub(crate) fn new() -> Self {
        Matcher {
            posted: VecDeque::new(),
            unexpected: VecDeque::new(),
        }
    }

    /// Takes the message that a receive gets that is posted now.
    pub(crate) fn take(&mut self, pattern: Pattern) -> Option<(Envelope, M)> {
        let mut all = self.unexpected.iter();
        let index = all.position(|(envelope, _)| pattern.matches(*envelope))?;
        self.unexpected.remove(index)
    }

    /// The message that [`Matcher::take`] would take.
    pub(crate) fn find(&self, pattern: Pattern) -> Option<(Envelope, &M)> {
        let mut all = self.unexpected.iter();
        let found = all.find(|(envelope, _)| pattern.matches(*envelope));
        found.map(|(envelope, message)| (*envelope, message))
    }

    /// Posts a receive for which nothing is there.
    pub(crate) fn post(&mut self, pattern: Pattern, receive: R) {
        self.posted.push_back((pattern, receive));
    }

    /// Takes the receive that gets a message which comes now.
    pub(crate) fn claim(&mut self, envelope: Envelope) -> Option<R> {
        let mut all = self.posted.iter();
        let index = all.position(|(pattern, _)| pattern.matches(envelope))?;
        self.posted.remove(index).map(|(_, receive)| receive)
    }

    /// Keeps a message that no receive has claimed.
    pub(crate) fn keep(&mut self, envelope: Envelope, message: M) {
        self.unexpected.push_back((envelope, message));
    }

    /// Takes back the receives that `unwanted` names.
    pub(crate) fn cancel(&mut self, unwanted: impl Fn(&R) -> bool) {
        self.posted.retain(|(_, receive)| !unwanted(receive));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Event {
        Arrives(Envelope),
        Posted(Pattern),
        Cancelled(usize),
    }

    fn event() -> impl Strategy<Value = Event> {
        let source = || prop_oneof![4 => 0..3usize, 1 => Just(ANY_SOURCE)];
        let tag = || prop_oneof![4 => 0..3i32, 1 => Just(ANY_TAG)];
        prop_oneof![
            4 => (0..3usize, 0..3i32).prop_map(|(source, tag)| Event::Arrives(Envelope { source, tag })),
            4 => (source(), tag()).prop_map(|(source, tag)| Event::Posted(Pattern { source, tag })),
            1 => (0..50usize).prop_map(Event::Cancelled),
        ]
    }

    /// Every pair of a message and a receive, by their numbers, as the standard's rules say: each
    /// event is compared with all earlier ones that have no partner.
    fn oracle(events: &[Event]) -> Vec<(usize, usize)> {
        let mut free: Vec<usize> = Vec::new();
        let mut pairs = Vec::new();
        for (now, event) in events.iter().enumerate() {
            let fits = |before: &usize| match (event, &events[*before]) {
                (Event::Arrives(m), Event::Posted(p)) | (Event::Posted(p), Event::Arrives(m)) => {
                    let source = p.source == ANY_SOURCE || p.source == m.source;
                    source && (p.tag == ANY_TAG || p.tag == m.tag)
                }
                _ => false,
            };
            if let Event::Cancelled(which) = event {
                free.retain(|one| one != which || !matches!(events[*one], Event::Posted(_)));
                continue;
            }
            match free.iter().position(fits) {
                Some(index) => {
                    let before = free.remove(index);
                    pairs.push((before, now));
                }
                None => free.push(now),
            }
        }
        pairs
    }

    proptest! {
        #[test]
        fn pairs_are_those_of_the_standard(events in proptest::collection::vec(event(), 0..60)) {
            let mut matcher: Matcher<usize, usize> = Matcher::new();
            let mut pairs = Vec::new();
            for (now, event) in events.iter().enumerate() {
                match event {
                    Event::Arrives(envelope) => match matcher.claim(*envelope) {
                        Some(receive) => pairs.push((receive, now)),
                        None => matcher.keep(*envelope, now),
                    },
                    Event::Posted(pattern) => {
                        let found = matcher.find(*pattern).map(|(_, message)| *message);
                        match matcher.take(*pattern) {
                            Some((_, message)) => {
                                prop_assert_eq!(found, Some(message));
                                pairs.push((message, now));
                            }
                            None => matcher.post(*pattern, now),
                        }
                    }
                    Event::Cancelled(which) => matcher.cancel(|receive| receive == which),
                }
            }
            prop_assert_eq!(pairs, oracle(&events));
        }
    }
}
