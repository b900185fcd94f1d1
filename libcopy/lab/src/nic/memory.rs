// SPDX-License-Identifier: MIT OR Apache-2.0

//! NIC memory that other types have already.

use anyhow::Result;
use clap::Args;
use libcopy::datatype::Layout;
use libcopy_nic::card::{Allocation, NicMemory};
use libcopy_nic::plan::{Options, Plan, Verdict, plan};

/// Other types on the card.
#[derive(Args, Debug)]
pub struct OtherTypes {
    /// A type that was received before and still has NIC memory: it gives way if it has to, the
    /// oldest first (may be repeated)
    #[arg(long, value_name = "TYPE")]
    before: Vec<String>,

    /// A type with which a receive is posted: it does not give way (may be repeated)
    #[arg(long, value_name = "TYPE")]
    posted: Vec<String>,
}

/// What posting a receive came to.
#[derive(Debug, PartialEq, Eq)]
pub enum Placed {
    /// There is room; these types had to give way.
    Room(Vec<String>),
    /// There is none: the host unpacks.
    None,
}

impl OtherTypes {
    fn all(&self) -> impl Iterator<Item = (&String, bool)> {
        let before = self.before.iter().map(|name| (name, false));
        before.chain(self.posted.iter().map(|name| (name, true)))
    }

    /// Posts a receive with the type of `own` on a card that has the other types, each with
    /// priority 0.
    ///
    /// # Errors
    ///
    /// Another type that is none.
    pub fn place(&self, own: &Plan, options: &Options) -> Result<Placed> {
        let mut memory = NicMemory::new(options.parameters.nic_memory);
        let of_default = Options {
            parameters: options.parameters,
            ..Options::default()
        };
        let mut names = Vec::new();
        for (id, (name, is_posted)) in (0..).zip(self.all()) {
            let layout = Layout::new(&name.parse()?, 1)?;
            // A type that a card does not unpack has no memory there.
            if let Verdict::Offload(plan) = plan(&layout, &of_default) {
                memory.post(id, plan.nic_bytes, plan.priority);
                if !is_posted {
                    memory.complete(id);
                }
            }
            names.push(name.clone());
        }
        let own = memory.post(names.len() as u64, own.nic_bytes, own.priority);
        Ok(match own {
            Allocation::Refused => Placed::None,
            Allocation::Resident => Placed::Room(Vec::new()),
            Allocation::Placed { evicted } => {
                let evicted = evicted.into_iter();
                Placed::Room(evicted.map(|id| names[id as usize].clone()).collect())
            }
        })
    }
}
