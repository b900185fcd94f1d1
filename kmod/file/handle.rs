// SPDX-License-Identifier: GPL-2.0

//! [`Handle`]: what an open file stands for.

use crate::abstractions::errno;
use crate::file::domains::Shared;
use crate::file::process::Process;
use kernel::mm::MmWithUser;
use kernel::prelude::*;
use kernel::seq_file::SeqFile;
use kernel::seq_print;
use kernel::sync::{new_mutex, Arc, Mutex, SetOnce};

/// What an open file stands for.
#[pin_data]
pub(crate) struct Handle {
    /// Set once, by create or join.
    shared: SetOnce<Arc<Shared>>,
    /// The processes that use the file. The lock also serialises create and join, so that the
    /// loser takes nothing.
    #[pin]
    processes: Mutex<KVec<Arc<Process>>>,
    /// The first of them, which is the only one that nearly every file ever has; found without
    /// the lock.
    first: SetOnce<Arc<Process>>,
}

impl Handle {
    /// A new file, of no domain.
    pub(crate) fn new() -> Result<Pin<KBox<Self>>> {
        KBox::pin_init(
            pin_init!(Self {
                shared: SetOnce::new(),
                processes <- new_mutex!(KVec::new()),
                first: SetOnce::new(),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// What the file's domain has in common.
    ///
    /// - `ENOTCONN`: the file belongs to no domain.
    pub(crate) fn shared(&self) -> Result<&Arc<Shared>> {
        self.shared.as_ref().ok_or_else(errno::enotconn)
    }

    /// What the file's domain has in common, for the process `mm`, which calls; see [`process`].
    ///
    /// [`process`]: Self::process
    pub(crate) fn shared_with(&self, mm: &MmWithUser) -> Result<&Arc<Shared>> {
        let shared = self.shared()?;
        if self.first_if(mm).is_none() {
            self.process(mm)?;
        }
        Ok(shared)
    }

    /// The file's first process, if that is `mm`.
    fn first_if(&self, mm: &MmWithUser) -> Option<&Arc<Process>> {
        self.first.as_ref().filter(|first| first.is_here(mm))
    }

    /// The process `mm`, which calls; it becomes a member with its first use of an inherited file.
    pub(crate) fn process(&self, mm: &MmWithUser) -> Result<Arc<Process>> {
        let shared = self.shared()?;
        if let Some(first) = self.first_if(mm) {
            return Ok(first.clone());
        }
        let known = |processes: &[Arc<Process>]| {
            let mut all = processes.iter();
            all.find(|process| process.is_here(mm)).cloned()
        };
        if let Some(known) = known(&self.processes.lock()) {
            return Ok(known);
        }
        // The memory manager's locks are taken in here, so ours is not held.
        let new = Process::new(mm, shared)?;
        let mut processes = self.processes.lock();
        if let Some(known) = known(&processes) {
            drop(processes);
            new.depart();
            return Ok(known);
        }
        processes.retain(|process| !process.member.has_left());
        if let Err(error) = processes.push(new.clone(), GFP_KERNEL_ACCOUNT) {
            drop(processes);
            new.depart();
            return Err(error.into());
        }
        drop(processes);
        self.first.populate(new.clone());
        Ok(new)
    }

    /// Puts the file into the domain that `find` returns, already counted as a file of it, with the
    /// calling process as its first member.
    pub(crate) fn enter(
        &self,
        mm: &MmWithUser,
        find: impl FnOnce() -> Result<Arc<Shared>>,
    ) -> Result<&Arc<Shared>> {
        if self.shared.as_ref().is_some() {
            return Err(errno::eisconn());
        }
        let shared = find()?;
        // What can be interrupted comes first: an error leaves the file as it was.
        let entered = Process::new(mm, &shared).and_then(|process| {
            let mut processes = self.processes.lock();
            let room = if self.shared.as_ref().is_some() {
                Err(errno::eisconn())
            } else {
                processes
                    .reserve(1, GFP_KERNEL_ACCOUNT)
                    .map_err(Error::from)
            };
            if let Err(error) = room {
                drop(processes);
                process.depart();
                return Err(error);
            }
            self.shared.populate(shared.clone());
            let _ = processes.push_within_capacity(process.clone());
            drop(processes);
            self.first.populate(process);
            Ok(())
        });
        if let Err(error) = entered {
            shared.file_released();
            return Err(error);
        }
        self.shared()
    }

    /// Takes the process `mm` out of the domain.
    pub(crate) fn leave(&self, mm: &MmWithUser) -> Result {
        self.shared()?;
        let process = {
            let mut processes = self.processes.lock();
            let index = processes.iter().position(|process| process.is_here(mm));
            index.and_then(|index| processes.remove(index).ok())
        };
        if let Some(process) = process {
            process.cancel_requests();
            process.depart();
        }
        Ok(())
    }

    /// What `/proc/<pid>/fdinfo/<fd>` shows.
    pub(crate) fn show(&self, seq: &SeqFile) {
        let Some(shared) = self.shared.as_ref() else {
            seq_print!(seq, "libcopy-domain:\tnone\n");
            return;
        };
        seq_print!(seq, "libcopy-domain-regions:\t{}\n", shared.regions.live());
        let (mut idle, mut bytes, mut members) = (0, 0, 0);
        for process in self.processes.lock().iter() {
            let (count, size) = process.member.idle();
            idle += count;
            bytes += size;
            members += 1;
        }
        seq_print!(
            seq,
            "libcopy-domain-requests:\t{}\n",
            shared.requests.live()
        );
        seq_print!(seq, "libcopy-file-members:\t{members}\n");
        seq_print!(seq, "libcopy-file-idle-mappings:\t{idle}\n");
        seq_print!(seq, "libcopy-file-idle-bytes:\t{bytes}\n");
        for (name, value) in shared.domain.stats.iter() {
            seq_print!(seq, "libcopy-{name}:\t{value}\n");
        }
    }

    /// The file is closed for good: all that was created through it goes.
    pub(crate) fn close(&self) {
        let processes = core::mem::take(&mut *self.processes.lock());
        for process in &processes {
            process.file_closed();
        }
        if let Some(shared) = self.shared.as_ref() {
            shared.file_released();
        }
    }
}
