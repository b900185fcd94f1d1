// SPDX-License-Identifier: MIT OR Apache-2.0

//! Unloading and loading the module.

use std::time::Duration;

use nix::errno::Errno;

use crate::abi::*;
use crate::device::Device;
use crate::harness::{Context, Outcome, skip};
use crate::sys::{self, Child, Map, PAGE, SharedCounters};
use crate::{check, check_eq, tests};

tests!(unload: refused_while_open, again_and_again(120));

/// The module's file: as told, or where the kernel's own tools would look.
fn file(context: &Context) -> Option<String> {
    context
        .module
        .clone()
        .filter(|path| std::fs::metadata(path).is_ok())
}

fn refused_while_open(context: &Context) -> Outcome {
    if file(context).is_none() {
        return skip("--module does not say where libcopy.ko is: it could not be loaded again");
    }
    let device = Device::open()?;
    check_eq!(
        sys::unload_module("libcopy"),
        Err(Errno::EAGAIN),
        "with an open file"
    );
    device.create()?;
    let map = Map::filled(PAGE, 1)?;
    let id = device.share(&map, RIGHT_READ)?;
    check_eq!(
        sys::unload_module("libcopy"),
        Err(Errno::EAGAIN),
        "with a region"
    );
    let (view, at) = device.map(id, RIGHT_READ)?;
    drop(device);
    // The mapping alone keeps the module.
    check_eq!(
        sys::unload_module("libcopy"),
        Err(Errno::EAGAIN),
        "with an attachment"
    );
    check!(view.read(at, PAGE) == map.bytes());
    Ok(())
}

fn again_and_again(context: &Context) -> Outcome {
    let Some(path) = file(context) else {
        return skip("--module does not say where libcopy.ko is: it could not be loaded again");
    };
    for round in 0..8 {
        // Used, and left behind by a kill, so that there is something to clean up.
        let counters = SharedCounters::new()?;
        let child = Child::spawn(|| {
            let (device, _) = Device::domain()?;
            let map = Map::filled(64 * PAGE, 1)?;
            let id = device.share(&map, RIGHT_READ)?;
            check!(device.fetch(id, 64 * PAGE)? == map.bytes());
            device.destroy(id)?;
            device.share(&map, RIGHT_READ | RIGHT_WRITE)?;
            counters.set(0, 1);
            std::thread::sleep(Duration::from_secs(600));
            Ok(())
        })?;
        counters.await_at_least(0, 1)?;
        child.kill()?;
        // The last reference may go a moment after the process.
        let mut answer = sys::unload_module("libcopy");
        for _ in 0..100 {
            if answer != Err(Errno::EAGAIN) {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
            answer = sys::unload_module("libcopy");
        }
        check_eq!(answer, Ok(()), "round {round}");
        check!(Device::open().is_err(), "the device is still there");
        check!(
            std::fs::metadata(crate::kernel::STATS).is_err(),
            "the counters are still there"
        );
        sys::load_module(&path)?;
        let opened = (0..100).find_map(|_| {
            std::thread::sleep(Duration::from_millis(10));
            Device::open().ok()
        });
        check!(opened.is_some(), "no device after loading in round {round}");
    }
    Ok(())
}
