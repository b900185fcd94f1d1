// SPDX-License-Identifier: MIT OR Apache-2.0

//! Requests while engines change, fail, lose their drivers or copy wrongly.

use std::fs;

use crate::abi::*;
use crate::device::{Answer, Device};
use crate::harness::{Context, Outcome, skip};
use crate::kernel::Stats;
use crate::request_setup::{
    HANG_NS, IOATDMA, LONG, PARAMETER, Pair, THREADS, all_in_service, ask, choose, errno, modelled,
    request, with_each,
};
use crate::sys::PAGE;
use crate::{check, check_eq, check_err, tests};

tests!(request:
    engines, engine_changes(120), corruption(120), device_taken_away(180),
    channels_change_numbers(120), engines_are_left_while_the_machine_sleeps(120),
);

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes)
        .trim_end_matches('\0')
        .to_owned()
}

fn engines(_: &Context) -> Outcome {
    let device = Device::open()?;
    {
        let _chosen = choose(THREADS)?;
        let count = device.info()?.engines;
        let all: Vec<EngineInfo> = (0..count)
            .map(|index| device.engine(index))
            .collect::<Answer<_>>()?;
        let threads: Vec<&EngineInfo> = all
            .iter()
            .filter(|engine| engine.kind == ENGINE_KTHREAD)
            .collect();
        check!(!threads.is_empty(), "no threads in {all:?}");
        for (index, engine) in threads.iter().enumerate() {
            check_eq!(text(&engine.driver), "libcopy");
            check_eq!(engine.channels, 1);
            check_eq!(engine.alignment, 1);
            check!(
                threads[..index]
                    .iter()
                    .all(|other| other.node != engine.node)
            );
        }
        check_err!(device.engine(count), ENOENT);
    }
    {
        let _chosen = choose("off")?;
        for index in 0..device.info()?.engines {
            check_eq!(device.engine(index)?.channels, 0, "engine {index}");
        }
    }
    check_err!(fs::write(PARAMETER, "nonsense").map_err(errno), EINVAL);
    let _chosen = choose("auto")?;
    for index in 0..device.info()?.engines {
        let engine = device.engine(index)?;
        check_eq!(engine.index, index);
        if engine.kind == ENGINE_DMA {
            check!(!text(&engine.driver).is_empty() && engine.max_transfer >= 64);
        }
    }
    Ok(())
}

/// The engine is taken away, and given back, while it is at work.
fn engine_changes(context: &Context) -> Outcome {
    with_each(|| {
        let (device, _) = Device::domain()?;
        let now = fs::read_to_string(PARAMETER)?.trim().to_owned();
        for _ in 0..context.rounds(10, 3) {
            let pair = Pair::new(&device, LONG / 2)?;
            let id = pair.submit(&device)?;
            {
                let _chosen = choose("off")?;
                // The list is brought up to date by the call that looks at it.
                device.info()?;
                check_err!(
                    device.submit((pair.source, 0), (pair.destination, 0), 8),
                    ENODEV
                );
            }
            check_eq!(fs::read_to_string(PARAMETER)?.trim(), now);
            device.complete(id)?;
            pair.check()?;
            device.unpin(pair.source)?;
            device.unpin(pair.destination)?;
        }
        Ok(())
    })
}

/// Before the machine sleeps, channels are given back, and CPUs do what is under way; then engines
/// are found anew.
fn engines_are_left_while_the_machine_sleeps(_: &Context) -> Outcome {
    if !modelled() {
        return skip("no model of copy engines (scripts/vm --ioat)");
    }
    let _chosen = choose("auto")?;
    // All but the devices: the guest's disks would not come back.
    if fs::write("/sys/power/pm_test", "freezer").is_err() {
        return skip("a kernel that cannot try to sleep (CONFIG_PM_DEBUG)");
    }
    let _ = fs::write("/sys/module/suspend/parameters/pm_test_delay", "1");
    let (device, _) = Device::domain()?;
    let acquired = || -> Answer<u32> {
        let engines = 0..device.info()?.engines;
        engines
            .map(|index| Ok(device.engine(index)?.acquired))
            .sum()
    };
    let pair = Pair::new(&device, LONG)?;
    for _ in 0..2 {
        let id = pair.submit(&device)?;
        check!(acquired()? > 0, "no channel is used");
        fs::write("/sys/power/state", "freeze")?;
        check_eq!(acquired()?, 0);
        device.complete(id)?;
        pair.check()?;
    }
    let before = Stats::read()?;
    device.complete(pair.submit(&device)?)?;
    check!(
        Stats::read()?.since(&before, "bytes_engine")? > 0,
        "no engine was found again"
    );
    fs::write("/sys/power/pm_test", "none")?;
    Ok(())
}

/// A wrong byte that nobody reports is found by verification, and mended.
fn corruption(_: &Context) -> Outcome {
    if !modelled() {
        return skip("no model of copy engines (scripts/vm --ioat)");
    }
    let _chosen = choose("auto")?;
    let (device, _) = Device::domain()?;
    let pair = Pair::new(&device, 1 << 20)?;
    let before = Stats::read()?;
    ask(&["fault", "*", "corrupt", "after=5", "count=3"])?;
    let id = device
        .submit_with(RequestSubmit {
            flags: SUBMIT_VERIFY,
            ..request((pair.source, 0), (pair.destination, 0), 1 << 20)
        })?
        .id;
    let answer = device.complete(id);
    ask(&["clear-faults", "*"])?;
    answer?;
    // More if a slow machine had the request forwarded to a second channel.
    check!(Stats::read()?.since(&before, "verify_failures")? >= 3);
    pair.check()
}

/// The device loses its driver while it is at work, and gets it back.
fn device_taken_away(context: &Context) -> Outcome {
    if !modelled() {
        return skip("no model of copy engines (scripts/vm --ioat)");
    }
    let _chosen = choose("auto")?;
    let (device, _) = Device::domain()?;
    for _ in 0..3 {
        let pair = Pair::new(&device, LONG / 4)?;
        let ids: Vec<u32> = (0..3)
            .map(|_| pair.submit(&device))
            .collect::<Answer<_>>()?;
        let devices: Vec<String> = fs::read_dir(IOATDMA)?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| name.starts_with("0000:"))
            .collect();
        for name in &devices {
            fs::write(format!("{IOATDMA}/unbind"), name)?;
        }
        // Channels that were never used are found gone by the call that looks.
        device.info()?;
        check_err!(
            device.submit((pair.source, 0), (pair.destination, 0), 8),
            ENODEV
        );
        for id in ids {
            let (answer, left) = device.await_request(id, REQUEST_RELEASE, HANG_NS);
            check!(answer.is_ok(), "{answer:?} {left:?}");
        }
        pair.check()?;
        for name in &devices {
            fs::write(format!("{IOATDMA}/bind"), name)?;
        }
        device.unpin(pair.source)?;
        device.unpin(pair.destination)?;
        let pair = Pair::new(&device, 64 * PAGE)?;
        device.info()?;
        let id = pair.submit(&device)?;
        device.complete(id)?;
        pair.check()?;
        device.unpin(pair.source)?;
        device.unpin(pair.destination)?;
        all_in_service(context, &device)?;
    }
    Ok(())
}

/// dmaengine gives numbers of devices that went to those that come next. Here two functions of
/// different engines change numbers; each engine has as many channels as before, and each channel
/// works for one engine.
fn channels_change_numbers(context: &Context) -> Outcome {
    if !modelled() {
        return skip("no model of copy engines (scripts/vm --ioat)");
    }
    let _chosen = choose("auto")?;
    let (device, _) = Device::domain()?;
    let channels = || -> Outcome<Vec<u32>> {
        let engines = 0..device.info()?.engines;
        let live = engines.map(|index| Ok(device.engine(index)?.channels));
        live.filter(|count| !matches!(count, Ok(0))).collect()
    };
    let before = channels()?;
    let mut functions = fs::read_dir(IOATDMA)?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.starts_with("0000:"))
        .collect::<Vec<_>>();
    functions.sort();
    let (Some(first), Some(last)) = (functions.first(), functions.last()) else {
        return skip("there are no functions");
    };
    if first.split_once('.').map(|(slot, _)| slot) == last.split_once('.').map(|(slot, _)| slot) {
        return skip("there is one engine only");
    }
    let number = |function: &str| -> Outcome<String> {
        let devices = fs::read_dir(format!("/sys/bus/pci/devices/{function}/dma"))?;
        let name = devices.flatten().next().map(|entry| entry.file_name());
        let name = name.and_then(|name| name.into_string().ok());
        Ok(name.ok_or_else(|| format!("{function} has no channel"))?)
    };
    let numbers = (number(first)?, number(last)?);
    for name in [first, last] {
        fs::write(format!("{IOATDMA}/unbind"), name)?;
    }
    device.info()?;
    // The lower number is given first.
    let shortlex = |name: &String| (name.len(), name.clone());
    let order = if shortlex(&numbers.0) < shortlex(&numbers.1) {
        [last, first]
    } else {
        [first, last]
    };
    for name in order {
        fs::write(format!("{IOATDMA}/bind"), name)?;
    }
    check_eq!(
        (number(last)?, number(first)?),
        numbers,
        "the numbers are the same"
    );
    check_eq!(channels()?, before);
    // All channels at work: none is wanted twice.
    let pairs = (0..2 * functions.len())
        .map(|_| Pair::new(&device, 64 * PAGE))
        .collect::<Outcome<Vec<_>>>()?;
    for pair in &pairs {
        let id = pair.submit(&device)?;
        device.complete(id)?;
        pair.check()?;
        device.unpin(pair.source)?;
        device.unpin(pair.destination)?;
    }
    all_in_service(context, &device)
}
