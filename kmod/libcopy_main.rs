// SPDX-License-Identifier: GPL-2.0

//! libcopy: moves bytes between the processes of one machine.
//!
//! A process publishes memory once ([`region`]), which pins it ([`pin`]) and watches it
//! ([`watch`]); every member of its sharing group ([`domain`]) copies from or to it by the CPU
//! ([`copy`]), maps it ([`attach`]), or has an [`engine`] move it while it goes on
//! ([`request`]). [`file`] is the device, [`ioctl`] the table of its commands. The ABI is in [`uapi`].
//!
//! Files use each other only downwards; the order is in `tests/layers/src/table.rs`.

#![warn(clippy::match_bool)]

mod account;
mod address_space;
mod argument;
mod atomic;
mod attach;
mod attach_fault;
mod attach_vma;
mod changed;
mod changes;
mod channel;
mod channel_hardware;
mod channel_queue;
mod channel_slot;
mod copier;
mod copy;
mod declarations;
mod device;
mod dma_device;
mod dma_map;
mod dmaengine;
mod domain;
mod domains;
mod engine;
mod engines;
mod errno;
mod few;
mod file;
mod fragments;
mod handle;
mod idle;
mod ioctl;
mod irqlock;
mod job;
mod leaving;
mod lost;
mod mapping;
mod member;
mod params;
mod pin;
mod process;
mod region;
mod regions;
mod request;
mod shim;
mod shrinker;
mod slots;
mod spans;
mod stats;
mod status;
mod supervisor;
mod thread;
mod trial;
#[allow(dead_code, unreachable_pub)]
mod uapi;
mod user;
mod user_account;
mod user_namespace;
mod watch;
mod workqueue;

use kernel::prelude::*;

module! {
    type: Libcopy,
    name: "libcopy",
    authors: ["the libcopy authors"],
    description: "Pin once, copy many times: memory sharing between processes of one machine",
    license: "GPL",
    params: {
        max_regions: u32 {
            default: 4096,
            description: "Regions a domain may have at a time (default 4096)",
        },
        reuse_pages: u64 {
            default: 65536,
            description: "Pages a process may leave pinned for reuse, 0: none (default 65536)",
        },
    },
}

/// The loaded module. Fields are dropped in this order: first nobody can open the device any more,
/// then workers that end and what is queued are waited for.
#[pin_data]
struct Libcopy {
    #[pin]
    _device: file::Device,
    #[pin]
    _debugfs: stats::Debugfs,
    _engines: engines::Guard,
    _workers: copier::Guard,
    _queue: workqueue::Guard,
    _domains: domains::Guard,
    _users: user::Guard,
    _shrinker: shrinker::Guard,
}

impl kernel::InPlaceModule for Libcopy {
    fn init(module: &'static ThisModule) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            // SAFETY: Called once, when the module is loaded.
            _domains: unsafe { domains::init() },
            // SAFETY: Called once, when the module is loaded.
            _users: unsafe { user::init() },
            // SAFETY: Called once, when the module is loaded.
            _shrinker: unsafe { shrinker::init() }?,
            _queue: workqueue::create()?,
            _workers: copier::Guard,
            // SAFETY: Called once, when the module is loaded.
            _engines: unsafe { engines::init() }?,
            _debugfs <- stats::Debugfs::new(),
            _device <- file::Device::register(module)?,
        })
    }
}
