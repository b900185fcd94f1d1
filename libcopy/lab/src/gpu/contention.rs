// SPDX-License-Identifier: MIT OR Apache-2.0

//! E7: how much packing slows down a program's own kernel.

use std::collections::VecDeque;
use std::time::Instant;

use anyhow::{Context, Result};
use libcopy::datatype::{Datatype, Named};
use libcopy_gpu::{Buffer, Gemm, limit_multiprocessors, start_pack, use_copy_units};

use super::cell::Cell;
use super::setup::{Setup, Sheet, Typed, get, put};
use libcopy_measure::sample::Spread;

/// Packs that are under way beside the product of matrices.
const UNDER_WAY: usize = 3;

/// How packing is done beside the product of matrices.
#[derive(Clone, Copy)]
struct Variant {
    /// Multiprocessors at most; all.
    limit: Option<u32>,
    /// By copy units.
    is_bulk: bool,
}

/// E7: a product of matrices alone, and with packing on other streams all the while: by copy units
/// and by threads of few multiprocessors, and by threads of all. `median_us` of a row `gemm` is the
/// product's time, `bound_us` its time alone: their ratio is the slow-down.
pub fn e7(setup: &Setup, sheet: &mut Sheet<'_>) -> Result<()> {
    let edge: u64 = setup.sized(4096, 64);
    let bytes: u64 = setup.sized(64 << 20, 64 << 10);
    let gemm = Gemm::new(setup.driver, &setup.near, edge)?;
    let (factors, product) = matrices(edge as usize);
    put(setup, gemm.factors(), &factors)?;
    let is_right =
        || -> Result<bool> { Ok(get(setup, gemm.product().address(), product.len())? == product) };
    let clear = || put(setup, gemm.product(), &vec![0xff; product.len()]);
    let flops_bytes = (factors.len() + product.len()) as u64;
    clear()?;
    let alone = beside(setup, &gemm, None)?.0;
    let alone_us = alone.median;
    sheet.cells.push(Cell {
        experiment: "E7",
        case: format!("gemm {edge}"),
        bytes: flops_bytes,
        block: 0,
        method: "alone".to_owned(),
        time: alone,
        bound_us: alone_us,
        verified: is_right()?,
    });
    let has_units = setup.device.capability >= (9, 0);
    for block in [1024_u64, 4096, 65_536] {
        let datatype =
            Datatype::named(Named::Byte).vector((bytes / block).max(2), block, 2 * block as i64)?;
        let typed = Typed::new(setup, &datatype, 1)?;
        let packed = Buffer::device(setup.driver, &setup.near, typed.size() as usize)?;
        let mut slow_downs = Vec::new();
        for (limit, is_bulk) in [
            (Some(8), true),
            (Some(8), false),
            (Some(16), true),
            (Some(16), false),
            (None, false),
        ] {
            if is_bulk && !has_units {
                continue;
            }
            let variant = Variant { limit, is_bulk };
            let count = limit.unwrap_or(setup.device.multiprocessors);
            let name = if is_bulk { "bulk" } else { "strided" };
            let method = format!("{name} on {count}");
            (sheet.say)(&format!("E7, blocks of {block} bytes, {method}"));
            clear()?;
            put(setup, &packed, &vec![0; typed.size() as usize])?;
            let (time, pack) = beside(setup, &gemm, Some((variant, &typed, &packed)))?;
            let verified = is_right()?
                && get(setup, packed.address(), typed.size() as usize)? == typed.packed()?;
            slow_downs.push(format!("{method} {:.2}", time.median / alone_us));
            for (case, bytes, time, bound_us) in [
                (format!("gemm {edge}"), flops_bytes, Some(time), alone_us),
                (
                    "pack beside gemm".to_owned(),
                    typed.size(),
                    pack,
                    setup.bound(typed.size() + typed.touched()),
                ),
            ] {
                sheet.cells.push(Cell {
                    experiment: "E7",
                    case,
                    bytes,
                    block,
                    method: method.clone(),
                    time: time.context("no pack was done")?,
                    bound_us,
                    verified,
                });
            }
        }
        sheet.notes.push(format!(
            "E7: time of the product of matrices by that of it alone, while blocks of {block} bytes are packed: {}",
            slow_downs.join(", ")
        ));
    }
    Ok(())
}

/// The times of the product of matrices from when it was submitted, and of packs meanwhile: each
/// from when it was submitted, or from when the one before it was done, if that was later.
fn beside(
    setup: &Setup,
    gemm: &Gemm,
    packing: Option<(Variant, &Typed, &Buffer)>,
) -> Result<(Spread, Option<Spread>)> {
    if let Some((variant, ..)) = packing {
        limit_multiprocessors(variant.limit);
        use_copy_units(variant.is_bulk);
    }
    let (mut products, mut packs) = (Vec::new(), Vec::new());
    let done = setup.time(|| {
        let mut under_way = VecDeque::new();
        let mut last = Instant::now();
        let submit = || -> Result<_> {
            let Some((_, typed, packed)) = packing else {
                return Ok(None);
            };
            let (from, to) = (typed.buffer.address(), packed.address());
            // SAFETY: the buffers were made for the layout. All packs write the same bytes to the
            // same place.
            let pending =
                unsafe { start_pack(setup.driver, &typed.gpu, from, 0..typed.size(), to) }?;
            Ok(Some((pending, Instant::now())))
        };
        for _ in 0..UNDER_WAY {
            under_way.extend(submit()?);
        }
        let begin = Instant::now();
        // SAFETY: `gemm` is the caller's, and the product is dropped here.
        let mut product = unsafe { gemm.start(setup.driver) }?;
        let mut is_over = false;
        while !is_over {
            is_over = product.is_done()?;
            if is_over {
                products.push(begin.elapsed().as_nanos().max(1) as f64 / 1000.0);
            }
            while let Some((pending, since)) = under_way.front_mut() {
                if !pending.is_done()? {
                    break;
                }
                let now = Instant::now();
                packs.push((now - last.max(*since)).as_nanos().max(1) as f64 / 1000.0);
                last = now;
                under_way.pop_front();
                if !is_over {
                    under_way.extend(submit()?);
                }
            }
        }
        for (mut pending, _) in under_way {
            pending.wait()?;
        }
        Ok(())
    });
    limit_multiprocessors(None);
    use_copy_units(true);
    done?;
    // The first one may have loaded the kernel.
    let first = usize::from(products.len() > 1);
    let time = Spread::of(&products[first..]).context("no product was done")?;
    Ok((time, Spread::of(&packs)))
}

/// Two matrices of small integers, and their product, as bytes.
fn matrices(edge: usize) -> (Vec<u8>, Vec<u8>) {
    // The rows of the first factor and the columns of the second one repeat, so that few sums have
    // to be made.
    const PERIOD: usize = 8;
    let left = |row: usize, k: usize| ((row % PERIOD * 5 + k * 3) % 7) as f32 - 3.0;
    let right = |k: usize, column: usize| ((column % PERIOD * 2 + k) % 5) as f32 - 2.0;
    let sums: Vec<f32> = (0..PERIOD * PERIOD)
        .map(|i| {
            (0..edge)
                .map(|k| left(i / PERIOD, k) * right(k, i % PERIOD))
                .sum()
        })
        .collect();
    let all = |value: &dyn Fn(usize, usize) -> f32| -> Vec<u8> {
        (0..edge * edge)
            .flat_map(|i| value(i / edge, i % edge).to_le_bytes())
            .collect()
    };
    let mut factors = all(&left);
    factors.extend(all(&right));
    let product = all(&|row, column| sums[row % PERIOD * PERIOD + column % PERIOD]);
    (factors, product)
}
