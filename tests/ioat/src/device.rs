// SPDX-License-Identifier: MIT OR Apache-2.0

//! One function as a vfio-user device: what QEMU's `vfio-user-pci` talks to.
//!
//! Nothing here fails towards the monitor, because a failed command would leave crate `vfio_user`
//! out of step with the stream: what cannot be mapped is not there, and an engine that needs it
//! reports an address error, as hardware would.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_INFO_EVENTFD, VFIO_IRQ_INFO_NORESIZE, VFIO_IRQ_SET_ACTION_TRIGGER,
    VFIO_IRQ_SET_DATA_EVENTFD, VFIO_PCI_BAR0_REGION_INDEX, VFIO_PCI_CONFIG_REGION_INDEX,
    VFIO_PCI_MSI_IRQ_INDEX, VFIO_PCI_MSIX_IRQ_INDEX, VFIO_PCI_NUM_IRQS, VFIO_PCI_NUM_REGIONS,
    VFIO_REGION_INFO_FLAG_READ, VFIO_REGION_INFO_FLAG_WRITE, vfio_region_info,
};
use vfio_user::{DmaMapFlags, DmaUnmapFlags, IrqInfo, Server, ServerBackend, ServerRegion};

use crate::control;
use crate::engine::Engine;
use crate::function::{Function, Interrupts};
use crate::mailbox::{self, Mailbox, Progress};
use crate::memory::Memory;
use crate::model::Model;
use crate::pci::{CHANERR_INT, ConfigSpace, MAILBOX, SIZE};
use crate::registers::BAR_SIZE;
use crate::topology::ChannelId;

/// A function behind a socket.
pub struct Device {
    model: Arc<Model>,
    engine: Arc<Engine>,
    index: usize,
    memory: Arc<Memory>,
    config: ConfigSpace,
    mailbox: Mailbox,
}

impl Device {
    /// The device of a channel, or `None` when the model has no such channel.
    pub fn new(model: &Arc<Model>, id: ChannelId) -> Option<Self> {
        let engine = model.engine(id)?.clone();
        let index = usize::from(id.channel);
        let memory = engine.look(|state| state.functions[index].channel.memory().clone());
        Some(Self {
            model: model.clone(),
            engine,
            index,
            memory,
            config: ConfigSpace::new(id),
            mailbox: Mailbox::new(id, model.topology()),
        })
    }

    /// Makes the socket; [`Server::run`] with this device then serves one monitor.
    pub fn listen(path: &Path) -> Result<Server, vfio_user::Error> {
        Server::new(path, true, irqs(), regions())
    }

    /// Looks at the function.
    fn look<T>(&self, body: impl FnOnce(&mut Function) -> T) -> T {
        self.engine
            .look(|state| body(&mut state.functions[self.index]))
    }

    /// Changes the function, which may give its engine work.
    fn change<T>(&self, body: impl FnOnce(&mut Function) -> T) -> T {
        self.engine
            .with(|state| body(&mut state.functions[self.index]))
    }

    fn read_config(&mut self, offset: u64, data: &mut [u8]) {
        self.config.read(offset, data);
        if let Some(at) = mailbox_word(offset, data.len()) {
            let (engine, index) = (&self.engine, self.index);
            let progress = || {
                let counters = engine.look(|state| state.functions[index].channel.counters);
                Progress {
                    bytes: counters.bytes,
                    copies: counters.copies,
                }
            };
            data.copy_from_slice(&self.mailbox.read(at, progress).to_le_bytes());
        } else if offset == CHANERR_INT as u64 && data.len() == 4 {
            let errors = self.look(|function| function.channel.errors());
            data.copy_from_slice(&errors.to_le_bytes());
        }
    }

    fn write_config(&mut self, offset: u64, data: &[u8]) {
        self.config.write(offset, data);
        let Ok(word) = <[u8; 4]>::try_from(data) else {
            return;
        };
        let word = u32::from_le_bytes(word);
        if let Some(at) = mailbox_word(offset, data.len()) {
            let model = &self.model;
            self.mailbox.write(at, word, |request| {
                control::execute(model, request).map(|answer| answer.to_string())
            });
        } else if offset == CHANERR_INT as u64 {
            self.look(|function| function.channel.clear_errors(word));
        }
    }
}

/// The offset in the mailbox of an aligned access of four bytes to it, without its header.
fn mailbox_word(offset: u64, length: usize) -> Option<u64> {
    let at = offset.checked_sub(MAILBOX as u64)?;
    (length == 4 && at % 4 == 0 && at >= 4 && at < mailbox::SIZE as u64).then_some(at)
}

impl ServerBackend for Device {
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> io::Result<()> {
        data.fill(0);
        match region {
            VFIO_PCI_BAR0_REGION_INDEX => self.look(|function| function.read(offset, data)),
            VFIO_PCI_CONFIG_REGION_INDEX => self.read_config(offset, data),
            _ => {}
        }
        Ok(())
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> io::Result<()> {
        match region {
            VFIO_PCI_BAR0_REGION_INDEX => self.change(|function| function.write(offset, data)),
            VFIO_PCI_CONFIG_REGION_INDEX => self.write_config(offset, data),
            _ => {}
        }
        Ok(())
    }

    fn dma_map(
        &mut self,
        flags: DmaMapFlags,
        offset: u64,
        address: u64,
        size: u64,
        file: Option<File>,
    ) -> io::Result<()> {
        // Video memory and ROMs come without a file: no copy goes there.
        let Some(file) = file else { return Ok(()) };
        let writable = flags.contains(DmaMapFlags::WRITE);
        if let Err(error) =
            self.memory
                .map(self.model.mappings(), file, offset, address, size, writable)
        {
            eprintln!("ioat-model: cannot map {size:#x} bytes at {address:#x}: {error}");
        }
        Ok(())
    }

    fn dma_unmap(&mut self, flags: DmaUnmapFlags, address: u64, size: u64) -> io::Result<()> {
        if flags.contains(DmaUnmapFlags::UNMAP_ALL) {
            self.memory.clear();
        } else {
            self.memory.unmap(address, size);
        }
        Ok(())
    }

    fn reset(&mut self) -> io::Result<()> {
        self.change(Function::reset);
        Ok(())
    }

    fn set_irqs(
        &mut self,
        index: u32,
        flags: u32,
        start: u32,
        count: u32,
        fds: Vec<File>,
    ) -> io::Result<()> {
        // Of one vector at most; none or no descriptor means that nobody listens.
        if start > 0 || flags & VFIO_IRQ_SET_ACTION_TRIGGER == 0 {
            return Ok(());
        }
        let event = (count > 0 && flags & VFIO_IRQ_SET_DATA_EVENTFD != 0)
            .then(|| fds.into_iter().next())
            .flatten();
        self.look(|function| match index {
            VFIO_PCI_MSIX_IRQ_INDEX => function.interrupts.msix = event,
            VFIO_PCI_MSI_IRQ_INDEX => function.interrupts.msi = event,
            _ => {}
        });
        Ok(())
    }
}

impl Drop for Device {
    /// The monitor has gone, and with it the memory.
    fn drop(&mut self) {
        self.change(|function| {
            function.reset();
            function.interrupts = Interrupts::default();
        });
        self.memory.clear();
    }
}

fn regions() -> Vec<ServerRegion> {
    (0..VFIO_PCI_NUM_REGIONS)
        .map(|index| {
            let size = match index {
                VFIO_PCI_BAR0_REGION_INDEX => BAR_SIZE,
                VFIO_PCI_CONFIG_REGION_INDEX => SIZE as u64,
                _ => 0,
            };
            let flags = if size > 0 {
                VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE
            } else {
                0
            };
            ServerRegion {
                region_info: vfio_region_info {
                    argsz: size_of::<vfio_region_info>() as u32,
                    index,
                    size,
                    flags,
                    ..Default::default()
                },
                sparse_areas: Vec::new(),
                mmap_fd: None,
            }
        })
        .collect()
}

fn irqs() -> Vec<IrqInfo> {
    (0..VFIO_PCI_NUM_IRQS)
        .map(|index| {
            let one = matches!(index, VFIO_PCI_MSI_IRQ_INDEX | VFIO_PCI_MSIX_IRQ_INDEX);
            IrqInfo {
                index,
                flags: if one {
                    VFIO_IRQ_INFO_EVENTFD | VFIO_IRQ_INFO_NORESIZE
                } else {
                    0
                },
                count: one.into(),
            }
        })
        .collect()
}
