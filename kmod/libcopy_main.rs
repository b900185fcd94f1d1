// SPDX-License-Identifier: GPL-2.0

//! libcopy: moves bytes between the processes of one machine.
//!
//! A process publishes memory once ([`region`]), which pins it ([`pin`]) and watches it
//! ([`watch`]); every member of its sharing group ([`domain`]) copies from or to it by the CPU
//! ([`copy`], [`strided`]), maps it ([`attach`]), or has an [`engine`] move it while it goes on
//! ([`request`]). The ABI is in [`uapi`].

mod account;
mod attach;
mod channel;
mod chardev;
mod copier;
mod copy;
mod dma;
mod domain;
mod engine;
mod errno;
mod fragments;
mod idle;
mod irqlock;
mod mapping;
mod member;
mod params;
mod pin;
mod queue;
mod region;
mod request;
mod shim;
mod shrinker;
mod spans;
mod stats;
mod status;
mod strided;
#[allow(dead_code, unreachable_pub)]
mod uapi;
mod user;
mod watch;
mod word;

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
/// then what is queued is waited for.
#[pin_data]
struct Libcopy {
    #[pin]
    _device: chardev::Device,
    #[pin]
    _debugfs: stats::Debugfs,
    _engines: engine::Guard,
    _queue: queue::Guard,
    _domains: domain::Guard,
    _users: user::Guard,
    _shrinker: shrinker::Guard,
}

impl kernel::InPlaceModule for Libcopy {
    fn init(module: &'static ThisModule) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            // SAFETY: Called once, when the module is loaded.
            _domains: unsafe { domain::init() },
            // SAFETY: Called once, when the module is loaded.
            _users: unsafe { user::init() },
            // SAFETY: Called once, when the module is loaded.
            _shrinker: unsafe { shrinker::init() }?,
            _queue: queue::create()?,
            // SAFETY: Called once, when the module is loaded.
            _engines: unsafe { engine::init() }?,
            _debugfs <- stats::Debugfs::new(),
            _device <- chardev::Device::register(module)?,
        })
    }
}
