// SPDX-License-Identifier: GPL-2.0

//! What moves bytes while the caller goes on: engines with their channels, user workers, and the requests
//! that they serve.

pub(crate) mod atomic;
pub(crate) mod channel;
pub(crate) mod copier;
pub(crate) mod device;
pub(crate) mod dma_device;
pub(crate) mod dma_map;
pub(crate) mod dmaengine;
pub(crate) mod engines;
pub(crate) mod facts;
pub(crate) mod fragments;
pub(crate) mod hardware;
pub(crate) mod job;
pub(crate) mod leaving;
pub(crate) mod lost;
pub(crate) mod queue;
pub(crate) mod request;
pub(crate) mod slot;
pub(crate) mod slots;
pub(crate) mod status;
pub(crate) mod supervisor;
pub(crate) mod trial;
