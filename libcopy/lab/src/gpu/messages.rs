// SPDX-License-Identifier: MIT OR Apache-2.0

//! E4, messages of an MPI program by each method, and E8, which share of the time moves data, and a
//! stencil.

use anyhow::{Context, Result};
use libcopy::datatype::{Datatype, Named};
use libcopy_gpu::{
    Buffer, Error, GRID_STRIDE, Method, Ptx, copy_batch, copy_blocks, copy_layout,
    start_copy_layout,
};

use super::cell::Cell;
use super::program::{Line, Program};
use super::setup::{Setup, Sheet, Typed, get, put};

/// A choice is good if its time divided by that of the best one is at most this.
const NEAR: f64 = 1.1;

/// Copies under way together, whose mean time is that of moving the data.
const UNDER_WAY: usize = 16;

/// Edge of a rank's field in E8 (FALCON-X, figure 15).
const STENCIL_EDGE: u64 = 1048;

fn vector(bytes: u64, block: u64) -> Result<Datatype> {
    Ok(Datatype::named(Named::Byte).vector(bytes / block, block, GRID_STRIDE as i64)?)
}

/// The MPI program, or a note that there is none.
fn program<'a>(setup: &'a Setup, sheet: &mut Sheet<'_>, what: &str) -> Option<&'a Program> {
    if setup.program.is_none() {
        sheet.note_once(format!(
            "{what} left out: it needs an MPI program, which scripts/bench gpu makes where there is an MPI library"
        ));
    }
    setup.program.as_ref()
}

/// Milliseconds that a case of the MPI program gets.
fn budget(setup: &Setup) -> String {
    setup.sized("100", "1").to_owned()
}

/// E4: messages between two processes, of 1 KiB to 4 MiB in blocks every 512 bytes (TEMPI), by the
/// method that the model chooses and by each one. A method that is not possible here is one that
/// the library puts another one in the place of.
pub fn e4(setup: &Setup, sheet: &mut Sheet<'_>) -> Result<()> {
    let Some(program) = program(setup, sheet, "E4") else {
        return Ok(());
    };
    let sizes: &[u64] = setup.sized(&[1 << 10, 64 << 10, 1 << 20, 4 << 20], &[1 << 10, 16 << 10]);
    let blocks: &[u64] = setup.sized(&[1, 8, 32, 64, 256], &[8, 256]);
    let mut arguments = vec!["messages".to_owned(), budget(setup)];
    for bytes in sizes {
        arguments.extend(blocks.iter().map(|block| format!("{bytes}:{block}")));
    }
    let methods = Method::ALL.map(Method::name);
    let mut found = Vec::new();
    for method in ["auto"].into_iter().chain(methods) {
        (sheet.say)(&format!("E4, messages by {method}"));
        let lines = program.run(method, &arguments)?;
        for line in &lines {
            sheet.cells.push(Cell {
                experiment: "E4",
                case: format!("message by {}", program.name),
                bytes: line.bytes,
                block: line.block,
                method: method.to_owned(),
                time: line.time,
                bound_us: setup.bound(2 * touched(line.bytes, line.block)),
                verified: line.verified,
            });
        }
        found.push((method, lines));
    }
    sheet.notes.extend(judged(&found));
    Ok(())
}

/// Bytes of the sectors that a vector's blocks lie in.
fn touched(bytes: u64, block: u64) -> u64 {
    bytes / block * block.next_multiple_of(32)
}

/// How good the choice was, and where one-shot is the best of the three methods of TEMPI, and where
/// not.
fn judged(found: &[(&str, Vec<Line>)]) -> Vec<String> {
    let Some((_, chosen)) = found.iter().find(|(method, _)| *method == "auto") else {
        return Vec::new();
    };
    let time = |method: &str, at: usize| {
        let lines = found.iter().find(|(name, _)| *name == method);
        lines
            .and_then(|(_, lines)| lines.get(at))
            .map(|line| line.time.median)
    };
    let (mut good, mut wins, mut losses) = (0, Vec::new(), Vec::new());
    for (at, line) in chosen.iter().enumerate() {
        let forced = found.iter().filter(|(method, _)| *method != "auto");
        let best = forced
            .filter_map(|(method, _)| time(method, at))
            .fold(f64::INFINITY, f64::min);
        good += usize::from(line.time.median <= NEAR * best);
        let [one_shot, staged, device] =
            ["one-shot", "staged", "device"].map(|method| time(method, at).unwrap_or(f64::MAX));
        let cell = format!("{} bytes in blocks of {}", line.bytes, line.block);
        if one_shot < staged.min(device) {
            wins.push(cell);
        } else {
            losses.push(cell);
        }
    }
    let list = |cells: &[String]| {
        let first = cells.first().map_or("none", String::as_str);
        format!("{} of {} cells (first: {first})", cells.len(), chosen.len())
    };
    vec![
        format!(
            "E4: the method that the model chose took at most {NEAR} times as long as the best one in {good} of {} cells",
            chosen.len()
        ),
        format!(
            "E4: one-shot was faster than device and staged in {}, slower in {}",
            list(&wins),
            list(&losses)
        ),
    ]
}

/// E8: which share of a message's time moves data (FALCON-X, figure 1b), and steps of a stencil
/// (figure 15). In the rows `breakdown` `bound_us` is the mean time of copies from layout to layout
/// that are under way together, so that their start and end are hidden: `of bound` is the share.
pub fn e8(setup: &Setup, sheet: &mut Sheet<'_>) -> Result<()> {
    let bytes: u64 = setup.sized(4 << 20, 16 << 10);
    for block in [8_u64, 64, 256] {
        (sheet.say)(&format!("E8, breakdown, blocks of {block} bytes"));
        breakdown(setup, sheet, bytes, block)?;
    }
    let Some(program) = program(setup, sheet, "E8's stencil") else {
        return Ok(());
    };
    (sheet.say)("E8, stencil");
    let edge = setup.sized(STENCIL_EDGE, 24);
    let file = Text::new(&Ptx::Baseline.text())?;
    let arguments = ["stencil", &budget(setup), &edge.to_string(), &file.0].map(str::to_owned);
    let lines = program.run("auto", &arguments)?;
    let of = |case: &str| lines.iter().find(|line| line.case == case);
    let compute = of("compute").context("no times of the stencil alone")?.time;
    for line in &lines {
        sheet.cells.push(Cell {
            experiment: "E8",
            case: format!("stencil {edge} x {edge} by {}", program.name),
            bytes: line.bytes,
            block: line.block,
            method: line.case.clone(),
            time: line.time,
            bound_us: compute.median,
            verified: line.verified,
        });
    }
    if let (Some(typed), Some(staged)) = (of("typed"), of("hand-staged")) {
        // Eight sums and a product for each cell.
        let flops = 9.0 * (edge * edge) as f64 * 1e-3;
        sheet.notes.push(format!(
            "E8: stencil, GFLOPS of a rank: {:.2} with datatypes in GPU memory, {:.2} hand-staged, ratio {:.2}; `bound_us` is the step without exchange",
            flops / typed.time.median,
            flops / staged.time.median,
            staged.time.median / typed.time.median
        ));
    }
    Ok(())
}

/// One length of blocks.
fn breakdown(setup: &Setup, sheet: &mut Sheet<'_>, bytes: u64, block: u64) -> Result<()> {
    let typed = Typed::new(setup, &vector(bytes, block)?, 1)?;
    let target = Buffer::device(setup.driver, &setup.near, typed.host.len())?;
    let (gpu, to, from) = (&typed.gpu, target.address(), typed.buffer.address());
    let together = setup.time(|| {
        let mut under_way = Vec::new();
        for _ in 0..UNDER_WAY {
            // SAFETY: the buffers were made for the layout; all copies write the same bytes to the
            // same place.
            under_way.push(unsafe { start_copy_layout(setup.driver, gpu, to, gpu, from) }?);
        }
        for mut copy in under_way {
            copy.wait()?;
        }
        Ok(())
    })?;
    let moving_us = together.median / UNDER_WAY as f64;
    let add = |sheet: &mut Sheet<'_>, method: String, time, verified| {
        sheet.cells.push(Cell {
            experiment: "E8",
            case: "breakdown".to_owned(),
            bytes,
            block,
            method,
            time,
            bound_us: moving_us,
            verified,
        });
    };
    for method in ["kernel", "naive", "one batch"] {
        put(setup, &target, &vec![0; typed.host.len()])?;
        let run = || -> libcopy_gpu::Result<()> {
            // SAFETY: as above.
            unsafe {
                match method {
                    "kernel" => copy_layout(setup.driver, gpu, to, gpu, from),
                    "naive" => copy_blocks(setup.driver, gpu, to, gpu, from).map(drop),
                    _ => copy_batch(setup.driver, gpu, to, gpu, from).map(drop),
                }
            }
        };
        if let Err(error @ Error::NoMethod { .. }) = run() {
            sheet.note_once(format!("method \"{method}\" left out: {error}"));
            continue;
        }
        let time = setup.time(|| Ok(run()?))?;
        let verified = get(setup, to, typed.host.len())? == typed.unpacked(&typed.packed()?)?;
        add(sheet, method.to_owned(), time, verified);
    }
    let Some(program) = program(setup, sheet, "E8's messages") else {
        return Ok(());
    };
    let arguments = ["messages", &budget(setup), &format!("{bytes}:{block}")].map(str::to_owned);
    for line in program.run("auto", &arguments)? {
        let method = format!("message by {}", program.name);
        add(sheet, method, line.time, line.verified);
    }
    Ok(())
}

/// A file that is there as long as this.
struct Text(String);

impl Text {
    fn new(text: &[u8]) -> Result<Text> {
        let path = std::env::temp_dir().join(format!("libcopy-stencil-{}.ptx", std::process::id()));
        let name = path.display().to_string();
        // The zero byte behind the text is the reader's.
        let text = text.strip_suffix(b"\0").unwrap_or(text);
        std::fs::write(&path, text).with_context(|| format!("cannot write {name}"))?;
        Ok(Text(name))
    }
}

impl Drop for Text {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use libcopy_measure::sample::Spread;

    #[test]
    fn choices_are_compared_with_the_best_method() {
        let lines = |times: [f64; 3]| -> Vec<Line> {
            let line = |time: f64| Line {
                case: "message".to_owned(),
                bytes: 64,
                block: 8,
                verified: true,
                time: Spread::of(&[time]).unwrap(),
            };
            times.map(line).to_vec()
        };
        let found = [
            ("auto", lines([1.05, 3.0, 5.0])),
            ("one-shot", lines([1.0, 4.0, 9.0])),
            ("staged", lines([2.0, 2.0, 5.0])),
            ("device", lines([2.0, 5.0, 6.0])),
        ];
        let notes = judged(&found);
        assert!(notes[0].ends_with("in 2 of 3 cells"), "{notes:?}");
        assert!(
            notes[1].contains("faster than device and staged in 1 of 3 cells (first: 64 bytes in blocks of 8), slower in 2 of 3"),
            "{notes:?}"
        );
        assert!(judged(&found[1..]).is_empty());
    }
}
