// SPDX-License-Identifier: GPL-2.0

//! What the files of `/dev/libcopy` do.
//!
//! There is no `poll`: a completion must not walk a list of waiters as long as a user likes, with
//! interrupts off. Without it, `epoll_ctl(2)` refuses the file.

use crate::abstractions::miscdevice::MiscDevice;
use crate::attach::attachment;
use crate::attach::vma;
use crate::file::handle::Handle;
use crate::file::ioctl;
use kernel::fs::file::flags;
use kernel::fs::File;
use kernel::mm::virt::VmaNew;
use kernel::prelude::*;
use kernel::seq_file::SeqFile;

impl MiscDevice for Handle {
    const NAME: &'static CStr = c"libcopy";

    fn open() -> Result<Pin<KBox<Self>>> {
        Self::new()
    }

    fn release(&self) {
        self.close();
    }

    fn ioctl(&self, file: &File, cmd: u32, arg: usize) -> Result {
        let may_change = file.flags() & flags::O_ACCMODE == flags::O_RDWR;
        ioctl::ioctl(self, may_change, cmd, arg)
    }

    fn mmap(&self, vma: &VmaNew, page_offset: usize) -> Result {
        let (id, first) = attachment::decode(page_offset);
        // No region has the id zero; its share of the offsets is the status table's.
        if page_offset == 0 {
            return self.shared()?.requests.table()?.map(vma);
        }
        let room = attachment::Room::new()?;
        let region = self.shared()?.regions.find(id)?;
        vma::map(room, region, first, vma)
    }

    fn show_fdinfo(&self, seq: &SeqFile) {
        self.show(seq);
    }
}
