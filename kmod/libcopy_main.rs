// SPDX-License-Identifier: GPL-2.0

//! libcopy: moves bytes between the processes of one machine.
//!
//! A process publishes memory once ([`domain::region`]), which pins it and watches it ([`memory`]);
//! every member of its sharing group ([`domain`]) copies from or to it by the CPU
//! ([`domain::copy`]), maps it ([`attach`]), or has an [`engine`] move it while it goes on
//! ([`requests::request`]). [`file`] has the device and the table of its commands. The ABI is in
//! [`uapi`].
//!
//! Folders use each other only downwards. From the bottom: [`abstractions`], [`base`], [`memory`],
//! [`domain`], [`attach`], [`requests`], [`engine`], [`file`].

#![warn(clippy::match_bool)]
// What only engines use of the other folders.
#![cfg_attr(not(CONFIG_LIBCOPY_ENGINES), allow(dead_code))]

mod abstractions;
mod attach;
mod base;
mod domain;
#[cfg(CONFIG_LIBCOPY_ENGINES)]
mod engine;
mod file;
mod memory;
mod requests;
#[allow(dead_code, unreachable_pub)]
mod uapi;

use abstractions::miscdevice;
use base::{stats, workqueue};
#[cfg(CONFIG_LIBCOPY_ENGINES)]
use engine::engines;

use file::domains;
use file::handle::Handle;
use kernel::prelude::*;
use memory::{shrinker, user};
#[cfg(not(CONFIG_LIBCOPY_ENGINES))]
use requests::workers as engines;
use requests::{copier, copiers};

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
    _device: miscdevice::Registration,
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
            _workers: {
                // SAFETY: Called once, when the module is loaded.
                unsafe { copiers::init() };
                copier::Guard
            },
            // SAFETY: Called once, when the module is loaded.
            _engines: unsafe { engines::init() }?,
            _debugfs <- stats::Debugfs::new(),
            _device <- miscdevice::Registration::new::<Handle>(module)?,
        })
    }
}
