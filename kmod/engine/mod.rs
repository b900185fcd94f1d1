// SPDX-License-Identifier: GPL-2.0

//! What moves bytes while the caller goes on: engines with their channels. A module that was built
//! with `LIBCOPY_ENGINES=n` has none of it.

pub(crate) mod channel;
pub(crate) mod device;
pub(crate) mod dma_device;
pub(crate) mod dma_map;
pub(crate) mod dmaengine;
pub(crate) mod engines;
pub(crate) mod facts;
pub(crate) mod hardware;
pub(crate) mod leaving;
pub(crate) mod queue;
pub(crate) mod slot;
pub(crate) mod supervisor;
pub(crate) mod thread;
pub(crate) mod trial;
