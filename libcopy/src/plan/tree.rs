// SPDX-License-Identifier: MIT OR Apache-2.0

//! Ranks in groups of groups, by what of the machine they share.

use crate::topology::{Level, Object};

/// Members of a group at most, so that no line of progress has more readers and no lock of memory
/// more waiters. Readers of one line slow coherence down (Katevenis, Ploumidis, Marazakis, ICPP
/// 2023).
pub const MOST_MEMBERS: usize = 16;

/// Ranks that share processors and combine in chunks in shared memory, at most: all chunks of a
/// team of more than [`MOST_MEMBERS`] have up to 8 MiB together, and a team of 128 ranks, which
/// takes 12 MiB without, is to take no more than 16.
pub const MOST_IN_CHUNKS: usize = 64;

/// What a group consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Member {
    /// A rank.
    Rank(usize),
    /// A group, by its number in [`Tree::groups`].
    Group(usize),
}

/// Ranks that share something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its members, in the order of their lowest ranks.
    pub members: Vec<Member>,
    /// All its ranks, in order.
    pub ranks: Vec<usize>,
    /// The group that it is a member of.
    pub within: Option<usize>,
}

/// All ranks of a team in groups of groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    /// The groups, each behind its members; the last one has all ranks.
    groups: Vec<Group>,
    /// The smallest group of each rank.
    of: Vec<usize>,
    /// 0, 1, ..: a slice of it is one rank as a list.
    every: Vec<usize>,
}

impl Tree {
    /// Groups of the ranks of a machine. `places` has, for each rank, the smallest object that
    /// holds the processors it may run on, by its position in [`Object::all`]; objects of `levels`
    /// become groups. A group with one member is left out, and one of more than `most` is split in
    /// the order of ranks.
    pub fn new(machine: &Object, places: &[usize], levels: &[Level], most: usize) -> Tree {
        let mut at: Vec<Vec<usize>> = Vec::new();
        for (rank, place) in places.iter().enumerate() {
            if at.len() <= *place {
                at.resize(place + 1, Vec::new());
            }
            at[*place].push(rank);
        }
        let mut tree = Tree::without_groups(places.len());
        let mut next = 0;
        let members = tree.members(machine, &mut next, &mut at, levels, most);
        tree.finish(members, most)
    }

    /// Groups in the order of ranks alone, of at most `most`.
    pub fn in_rank_order(ranks: usize, most: usize) -> Tree {
        let members = (0..ranks).map(Member::Rank).collect();
        Tree::without_groups(ranks).finish(members, most)
    }

    fn without_groups(ranks: usize) -> Tree {
        Tree {
            groups: Vec::new(),
            of: vec![0; ranks],
            every: (0..ranks).collect(),
        }
    }

    /// The members that an object and those inside it make.
    fn members(
        &mut self,
        object: &Object,
        next: &mut usize,
        at: &mut [Vec<usize>],
        levels: &[Level],
        most: usize,
    ) -> Vec<Member> {
        let here = at.get_mut(*next).map(std::mem::take).unwrap_or_default();
        *next += 1;
        let mut members: Vec<Member> = here.into_iter().map(Member::Rank).collect();
        for inside in &object.inside {
            members.extend(self.members(inside, next, at, levels, most));
        }
        let wanted = object.names.iter().any(|name| levels.contains(&name.level));
        if wanted {
            self.grouped(members, most)
        } else {
            members
        }
    }

    /// The members as one group, or the only one as it is.
    fn grouped(&mut self, mut members: Vec<Member>, most: usize) -> Vec<Member> {
        members.sort_by_key(|member| self.ranks(*member)[0]);
        while members.len() > most.max(2) {
            let parts = members.len().div_ceil(most.max(2));
            let share = |part: usize| members.len() * part / parts;
            let runs = (0..parts).map(|part| members[share(part)..share(part + 1)].to_vec());
            let runs: Vec<Vec<Member>> = runs.collect();
            members = runs.into_iter().map(|run| self.group(run)).collect();
        }
        if members.len() > 1 {
            vec![self.group(members)]
        } else {
            members
        }
    }

    fn group(&mut self, members: Vec<Member>) -> Member {
        if let [only] = members[..] {
            return only;
        }
        let number = self.groups.len();
        let ranks = members
            .iter()
            .flat_map(|it| self.ranks(*it).iter().copied());
        let mut ranks: Vec<usize> = ranks.collect();
        ranks.sort_unstable();
        for member in &members {
            match *member {
                Member::Rank(rank) => self.of[rank] = number,
                Member::Group(group) => self.groups[group].within = Some(number),
            }
        }
        self.groups.push(Group {
            members,
            ranks,
            within: None,
        });
        Member::Group(number)
    }

    fn finish(mut self, members: Vec<Member>, most: usize) -> Tree {
        if let [Member::Rank(rank)] = self.grouped(members, most)[..] {
            // A team of one is a group of one.
            self.groups.push(Group {
                members: vec![Member::Rank(rank)],
                ranks: vec![rank],
                within: None,
            });
        }
        self
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.of.len()
    }

    /// All groups; members stand before what they are in, and the last one has all ranks.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// The number of the group that has all ranks.
    pub fn top(&self) -> usize {
        self.groups.len() - 1
    }

    /// A member's ranks, in order.
    pub fn ranks(&self, member: Member) -> &[usize] {
        match member {
            Member::Rank(rank) => &self.every[rank..=rank],
            Member::Group(group) => &self.groups[group].ranks,
        }
    }

    /// The groups of a rank, the smallest first.
    pub fn chain(&self, rank: usize) -> impl Iterator<Item = usize> + '_ {
        let first = self.of.get(rank).copied();
        std::iter::successors(first, |group| self.groups[*group].within)
    }

    /// Which of a rank's groups a group is: 0 for the smallest.
    pub fn position(&self, rank: usize, group: usize) -> usize {
        let mut chain = self.chain(rank);
        chain.position(|it| it == group).unwrap_or(0)
    }

    /// The smallest group that has both ranks.
    pub fn common(&self, one: usize, other: usize) -> usize {
        let has_other = |group: &usize| self.groups[*group].ranks.binary_search(&other).is_ok();
        self.chain(one).find(has_other).unwrap_or(self.top())
    }

    /// The rank that acts for a member: the root if it has it, otherwise its lowest.
    pub fn leader(&self, member: Member, root: usize) -> usize {
        let ranks = self.ranks(member);
        match ranks.binary_search(&root) {
            Ok(_) => root,
            Err(_) => ranks[0],
        }
    }

    /// Whom a rank follows: the leader of the smallest group that another rank leads. None for the
    /// root.
    pub fn parent(&self, rank: usize, root: usize) -> Option<usize> {
        let mut leaders = self
            .chain(rank)
            .map(|group| self.leader(Member::Group(group), root));
        leaders.find(|leader| *leader != rank)
    }

    /// Those that follow a rank in a group that it leads.
    pub fn children(&self, group: usize, root: usize) -> impl Iterator<Item = usize> + '_ {
        let leader = self.leader(Member::Group(group), root);
        let members = self.groups[group].members.iter();
        let leaders = members.map(move |member| self.leader(*member, root));
        leaders.filter(move |rank| *rank != leader)
    }

    /// Whether each group's ranks follow each other without a gap, so that what is combined group
    /// by group is combined in the order of ranks.
    pub fn is_in_rank_order(&self) -> bool {
        let mut groups = self.groups.iter();
        groups.all(|group| group.ranks.windows(2).all(|pair| pair[0] + 1 == pair[1]))
    }

    /// Whether a rank that has its share of what a member of a group holds is read from by no more
    /// than [`MOST_MEMBERS`] ranks of the other members, if these share out what they read. The
    /// ranks of the largest group read what each has from the beginning.
    pub(super) fn has_even_members(&self) -> bool {
        let mut inner = self.groups[..self.top()].iter();
        inner.all(|group| {
            let sizes = group.members.iter().map(|member| self.ranks(*member).len());
            let sizes: Vec<usize> = sizes.collect();
            let readers = |own: usize| {
                let others = sizes
                    .iter()
                    .enumerate()
                    .filter(|(member, _)| *member != own);
                let readers = others.map(|(_, size)| (size.div_ceil(sizes[own]) + 1).min(*size));
                readers.sum::<usize>()
            };
            (0..sizes.len()).all(|own| readers(own) <= MOST_MEMBERS)
        })
    }

    /// Members of the largest group, or [`MOST_MEMBERS`]: a rank is followed by no more ranks of a
    /// group.
    pub(super) fn most_followers(&self) -> usize {
        let sizes = self.groups.iter().map(|group| group.members.len());
        sizes.max().unwrap_or(0).max(MOST_MEMBERS)
    }

    /// Groups of a rank at most.
    pub fn depth(&self) -> usize {
        let depths = (0..self.size()).map(|rank| self.chain(rank).count());
        depths.max().unwrap_or(0)
    }
}
