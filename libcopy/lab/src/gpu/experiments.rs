// SPDX-License-Identifier: MIT OR Apache-2.0

//! The experiments that the library alone can run.

use anyhow::Result;
use libcopy::datatype::{Datatype, Named, Order};
use libcopy_gpu::peer::open;
use libcopy_gpu::{
    Buffer, Error, Mapping, Message, copy, copy_batch, copy_blocks, copy_layout, copy_planes, pack,
    pack_all, pack_with, unpack,
};

use super::cell::Cell;
use super::setup::{Setup, Sheet, Typed, get, put};
use libcopy_measure::gpu_owner::Owner;
use libcopy_measure::layouts;

fn byte() -> Datatype {
    Datatype::named(Named::Byte)
}

/// E1: packing and unpacking much data, by length of a block.
pub fn e1(setup: &Setup, sheet: &mut Sheet<'_>) -> Result<()> {
    let bytes: u64 = setup.sized(64 << 20, 16 << 10);
    for block in [1_u64, 2, 4, 8, 16, 32, 64, 128, 512, 4096] {
        (sheet.say)(&format!("E1, blocks of {block} bytes"));
        let datatype = byte().vector(bytes / block, block, 2 * block as i64)?;
        let typed = Typed::new(setup, &datatype, 1)?;
        pack_cell(setup, sheet, "E1", "pack", &typed)?;
        unpack_cell(setup, sheet, "E1", "unpack", &typed)?;
    }
    Ok(())
}

fn pack_cell(
    setup: &Setup,
    sheet: &mut Sheet<'_>,
    experiment: &'static str,
    case: &str,
    typed: &Typed,
) -> Result<()> {
    let size = typed.size();
    let packed = Buffer::device(setup.driver, &setup.near, size as usize)?;
    let (from, to) = (typed.buffer.address(), packed.address());
    let time = setup.time(|| {
        // SAFETY: the buffers were made for the layout.
        unsafe { pack(setup.driver, &typed.gpu, from, 0..size, to) }?;
        Ok(())
    })?;
    let verified = get(setup, to, size as usize)? == typed.packed()?;
    sheet.add_packing(
        setup,
        (experiment, case, "libcopy"),
        typed,
        (time, verified),
    );
    Ok(())
}

fn unpack_cell(
    setup: &Setup,
    sheet: &mut Sheet<'_>,
    experiment: &'static str,
    case: &str,
    typed: &Typed,
) -> Result<()> {
    let size = typed.size();
    let content = typed.packed()?;
    let packed = Buffer::device(setup.driver, &setup.near, content.len())?;
    put(setup, &packed, &content)?;
    put(setup, &typed.buffer, &vec![0; typed.host.len()])?;
    let (to, from) = (typed.buffer.address(), packed.address());
    let time = setup.time(|| {
        // SAFETY: the buffers were made for the layout.
        unsafe { unpack(setup.driver, &typed.gpu, to, 0..size, from) }?;
        Ok(())
    })?;
    let verified = get(setup, to, typed.host.len())? == typed.unpacked(&content)?;
    sheet.add_packing(
        setup,
        (experiment, case, "libcopy"),
        typed,
        (time, verified),
    );
    Ok(())
}

/// E2: one `MPI_Pack` of 1 KiB to 4 MiB (TEMPI), blocks every 512 bytes, by constructor and count,
/// beside TEMPI's and yaksa's mappings of bytes to threads and a copy per block.
pub fn e2(setup: &Setup, sheet: &mut Sheet<'_>) -> Result<()> {
    let sizes: &[u64] = setup.sized(&[1 << 10, 1 << 20, 4 << 20], &[1 << 10, 4 << 10]);
    for &bytes in sizes {
        for block in [1_u64, 8, 64, 256] {
            let count = bytes / block;
            (sheet.say)(&format!("E2, {bytes} bytes in blocks of {block}"));
            let array = [count, 512];
            let subarray = byte().subarray(&array, &[count, block], &[0, 0], Order::C)?;
            let vector = byte().vector(count, block, 512)?;
            let whole = 512 * count as i64;
            let cases = [
                ("vector", vector.clone(), 1),
                (
                    "hvector",
                    byte().contiguous(block)?.hvector(count, 1, 512)?,
                    1,
                ),
                ("subarray", subarray, 1),
                (
                    "two vectors",
                    byte()
                        .vector(count / 2, block, 512)?
                        .resized(0, whole / 2)?,
                    2,
                ),
            ];
            for (case, datatype, elements) in cases {
                let typed = Typed::new(setup, &datatype, elements)?;
                let name = format!("pack {case} {bytes}");
                pack_cell(setup, sheet, "E2", &name, &typed)?;
                mapping_cells(setup, sheet, "E2", &name, &typed)?;
            }
            // Milliseconds and more per call: only where it takes a few seconds at most.
            if count <= setup.sized(1 << 20, 1 << 12) {
                let typed = Typed::new(setup, &vector, 1)?;
                per_block(setup, sheet, "E2", &format!("pack vector {bytes}"), &typed)?;
            }
        }
    }
    // Three spellings of one cuboid (TEMPI, equivalence).
    let [x, y, z] = [100_u64, 13, 47];
    let sizes = [64, 32, 256];
    let (row, plane) = (sizes[2] as i64, (sizes[1] * sizes[2]) as i64);
    let rows = byte().contiguous(x)?.hvector(y, 1, row)?;
    for (case, datatype) in [
        (
            "subarray",
            byte().subarray(&sizes, &[z, y, x], &[0, 0, 0], Order::C)?,
        ),
        ("hvector of hvector", rows.hvector(z, 1, plane)?),
        (
            "hvector of vector",
            byte().vector(y, x, row)?.hvector(z, 1, plane)?,
        ),
    ] {
        let typed = Typed::new(setup, &datatype, 1)?;
        let name = format!("cuboid as {case}");
        pack_cell(setup, sheet, "E2", &name, &typed)?;
        mapping_cells(setup, sheet, "E2", &name, &typed)?;
    }
    Ok(())
}

/// Packing with the baseline kernels: the types of E2 consist of bytes, which are the elements of
/// yaksa's mapping.
fn mapping_cells(
    setup: &Setup,
    sheet: &mut Sheet<'_>,
    experiment: &'static str,
    case: &str,
    typed: &Typed,
) -> Result<()> {
    let size = typed.size() as usize;
    let packed = Buffer::device(setup.driver, &setup.near, size)?;
    let (from, to) = (typed.buffer.address(), packed.address());
    for (method, mapping) in [
        ("TEMPI mapping", Mapping::Tempi),
        ("yaksa mapping", Mapping::Yaksa { element: 1 }),
    ] {
        put(setup, &packed, &vec![0; size])?;
        let time = setup.time(|| {
            // SAFETY: the buffers were made for the layout.
            unsafe { pack_with(setup.driver, mapping, &typed.gpu, from, to) }?;
            Ok(())
        })?;
        let verified = get(setup, to, size)? == typed.packed()?;
        sheet.add_packing(setup, (experiment, case, method), typed, (time, verified));
    }
    Ok(())
}

/// Packing with a copy per block, as many MPI libraries do, each in a call of its own, and all in
/// one call.
fn per_block(
    setup: &Setup,
    sheet: &mut Sheet<'_>,
    experiment: &'static str,
    case: &str,
    typed: &Typed,
) -> Result<()> {
    let size = typed.size();
    let flat = Typed::new(setup, &byte().contiguous(size)?, 1)?;
    let (to, from) = (flat.buffer.address(), typed.buffer.address());
    for method in ["per-block", "one batch"] {
        put(setup, &flat.buffer, &vec![0; size as usize])?;
        let run = || {
            // SAFETY: the buffers were made for the layouts.
            unsafe {
                if method == "per-block" {
                    copy_blocks(setup.driver, &flat.gpu, to, &typed.gpu, from)
                } else {
                    copy_batch(setup.driver, &flat.gpu, to, &typed.gpu, from)
                }
            }
        };
        if let Err(error @ Error::NoMethod { .. }) = run() {
            sheet.note_once(format!("method \"{method}\" left out: {error}"));
            continue;
        }
        let time = setup.time(|| Ok(run().map(drop)?))?;
        let verified = get(setup, to, size as usize)? == typed.packed()?;
        sheet.add_packing(setup, (experiment, case, method), typed, (time, verified));
    }
    Ok(())
}

/// E3: the halo of a box, 26 directions (TEMPI): one launch, a launch each, a copy per block.
pub fn e3(setup: &Setup, sheet: &mut Sheet<'_>) -> Result<()> {
    let (edge, radius): (u64, u64) = setup.sized((256, 3), (10, 3));
    let point = 64;
    (sheet.say)("E3, halo");
    let whole = edge + 2 * radius;
    let sizes = [whole, whole, whole * point];
    let mut regions = Vec::new();
    for direction in 0..27_u64 {
        let steps = [direction / 9, direction / 3 % 3, direction % 3];
        if steps == [1, 1, 1] {
            continue;
        }
        // The own points next to a neighbour: the first ones, all, the last ones.
        let start = steps.map(|step| [radius, radius, edge][step as usize]);
        let length = steps.map(|step| [radius, edge, radius][step as usize]);
        regions.push(byte().subarray(
            &sizes,
            &[length[0], length[1], length[2] * point],
            &[start[0], start[1], start[2] * point],
            Order::C,
        )?);
    }
    let field = Typed::new(setup, &byte().contiguous(sizes.iter().product())?, 1)?;
    let mut parts = Vec::new();
    for datatype in &regions {
        let layout = libcopy::datatype::Layout::new(datatype, 1)?;
        let size = layout.size();
        parts.push((
            libcopy_gpu::GpuLayout::new(layout)?,
            Buffer::device(setup.driver, &setup.near, size as usize)?,
        ));
    }
    let bytes: u64 = parts.iter().map(|(gpu, _)| gpu.layout().size()).sum();
    let segments: u64 = parts
        .iter()
        .map(|(gpu, _)| gpu.layout().segment_count())
        .sum();
    let origin = field.buffer.address();
    let messages: Vec<Message<'_>> = parts
        .iter()
        .map(|(gpu, buffer)| Message {
            layout: gpu,
            origin,
            range: 0..gpu.layout().size(),
            packed: buffer.address(),
        })
        .collect();
    let clear = || {
        parts.iter().try_for_each(|(gpu, buffer)| {
            put(setup, buffer, &vec![0; gpu.layout().size() as usize])
        })
    };
    let verified = || -> Result<bool> {
        for (gpu, buffer) in &parts {
            let mut expected = vec![0; gpu.layout().size() as usize];
            gpu.layout().pack(&field.host, 0, &mut expected)?;
            if get(setup, buffer.address(), expected.len())? != expected {
                return Ok(false);
            }
        }
        Ok(true)
    };
    for method in ["batch", "separate", "per-block"] {
        clear()?;
        let time = setup.time(|| {
            match method {
                // SAFETY: the buffers were made for the layouts.
                "batch" => unsafe { pack_all(setup.driver, &messages) }?,
                "separate" => {
                    for message in &messages {
                        let range = message.range.clone();
                        // SAFETY: as above.
                        unsafe {
                            pack(setup.driver, message.layout, origin, range, message.packed)
                        }?;
                    }
                }
                _ => {
                    for message in &messages {
                        let size = message.range.end;
                        let flat = libcopy::datatype::Layout::new(&byte(), size)?;
                        let flat = libcopy_gpu::GpuLayout::new(flat)?;
                        // SAFETY: as above.
                        unsafe {
                            copy_blocks(setup.driver, &flat, message.packed, message.layout, origin)
                        }?;
                    }
                }
            }
            Ok(())
        })?;
        sheet.cells.push(Cell {
            experiment: "E3",
            case: format!("halo {edge}^3 radius {radius}"),
            bytes,
            block: bytes / segments.max(1),
            method: method.to_owned(),
            time,
            bound_us: setup.bound(2 * bytes),
            verified: verified()?,
        });
    }
    Ok(())
}

/// E5: from layout to layout out of another process's memory: one kernel, a copy per block, a copy
/// per plane.
pub fn e5(setup: &Setup, sheet: &mut Sheet<'_>) -> Result<()> {
    let mut owner = Owner::start(&["gpu-owner"], setup.device.ordinal as usize)?;
    for case in layouts::cases() {
        let wanted = [
            "SPECFEM3D_cm",
            "MILC_su3_zdown",
            "NAS_MG_x",
            "NAS_MG_y",
            "NAS_MG_z",
        ];
        let is_small = matches!(case.tier, layouts::Tier::Small);
        if !wanted.contains(&case.layout.as_str()) || (setup.is_small && !is_small) {
            continue;
        }
        (sheet.say)(&format!("E5, {}", case.layout));
        let datatype: Datatype = case.expression.parse()?;
        let typed = Typed::new(setup, &datatype, 1)?;
        let exported = match owner.allocate(typed.host.len()) {
            Ok(exported) => exported,
            Err(why) => {
                sheet.notes.push(format!("E5 left out: {why}"));
                return Ok(());
            }
        };
        let remote = match open(setup.driver, &setup.near, &exported) {
            Ok(remote) => remote,
            Err(why) => {
                sheet.notes.push(format!("E5 left out: {why}"));
                return Ok(());
            }
        };
        let (to, from) = (typed.buffer.address(), remote.address());
        let gpu = &typed.gpu;
        for method in ["peer", "naive", "one batch", "engine"] {
            put(setup, &typed.buffer, &vec![0; typed.host.len()])?;
            let run = || -> libcopy_gpu::Result<u64> {
                // SAFETY: both buffers were made for the layout.
                unsafe {
                    match method {
                        "peer" => copy_layout(setup.driver, gpu, to, gpu, from).map(|()| 1),
                        "naive" => copy_blocks(setup.driver, gpu, to, gpu, from),
                        "one batch" => copy_batch(setup.driver, gpu, to, gpu, from),
                        _ => copy_planes(setup.driver, gpu, to, gpu, from),
                    }
                }
            };
            if let Err(error @ Error::NoMethod { .. }) = run() {
                sheet.note_once(format!(
                    "{}, method \"{method}\" left out: {error}",
                    case.layout
                ));
                continue;
            }
            let time = setup.time(|| Ok(run().map(|_| ())?))?;
            sheet.cells.push(Cell {
                experiment: "E5",
                case: case.layout.clone(),
                bytes: typed.size(),
                block: typed.block(),
                method: method.to_owned(),
                time,
                bound_us: setup.bound(2 * typed.touched()),
                verified: get(setup, to, typed.host.len())? == typed.unpacked(&typed.packed()?)?,
            });
        }
    }
    sheet
        .notes
        .push("E5: two processes on one GPU, so that no link between GPUs is measured".to_owned());
    Ok(())
}

/// E6: one-shot, packed straight into pinned host memory, beside a copy of as many contiguous
/// bytes.
pub fn e6(setup: &Setup, sheet: &mut Sheet<'_>) -> Result<()> {
    let bytes: u64 = setup.sized(16 << 20, 16 << 10);
    let pinned = Buffer::pinned(setup.driver, &setup.near, bytes as usize)?;
    for block in [1_u64, 4, 8, 16, 32, 64, 256, 1024] {
        (sheet.say)(&format!("E6, blocks of {block} bytes"));
        let datatype = byte().vector(bytes / block, block, 2 * block as i64)?;
        let typed = Typed::new(setup, &datatype, 1)?;
        let expected = typed.packed()?;
        for method in ["one-shot", "contiguous copy"] {
            let from = typed.buffer.address();
            let time = setup.time(|| {
                // SAFETY: the buffers have as many bytes.
                unsafe {
                    if method == "one-shot" {
                        pack(setup.driver, &typed.gpu, from, 0..bytes, pinned.address())?;
                    } else {
                        copy(setup.driver, pinned.address(), from, bytes as usize)?;
                    }
                }
                Ok(())
            })?;
            let found = get(setup, pinned.address(), bytes as usize)?;
            let verified = if method == "one-shot" {
                found == expected
            } else {
                found == typed.host[..bytes as usize]
            };
            sheet.cells.push(Cell {
                experiment: "E6",
                case: "pack to the host".to_owned(),
                bytes,
                block,
                method: method.to_owned(),
                time,
                bound_us: bytes as f64 / setup.host_rate,
                verified,
            });
        }
    }
    Ok(())
}
