// SPDX-License-Identifier: MIT OR Apache-2.0

//! What calls cannot be faster than on this machine: each has to learn of another rank, for which a
//! cache line goes from one processor to the other, and has to copy what the other has written.
//! Both are measured with two threads of this program.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::{Verdict, read};

/// Bytes that are in the cache line by which a rank learns that there is something for it.
const LINE: f64 = 64.0;
/// Copies that are measured: powers of two of bytes.
const SHIFTS: std::ops::RangeInclusive<u32> = 6..=24;
/// What is written anew and then copied, in parts where the copies are smaller.
const REGION: usize = 64 << 10;
/// Rounds of a line there and back that are timed together, and how often that is done.
const ROUNDS: u64 = 2000;
const SAMPLES: usize = 50;

/// How often a call has to learn of others, and what has to be copied in it, on average over the
/// ranks of a communicator.
struct Least {
    /// Lines that come from another rank one after the other.
    lines: f64,
    /// Copies, in what the profile counts as bytes of a call.
    copies: f64,
}

/// The table of limits. `ranks` are those of the communicator, in number.
fn least(function: &str, ranks: f64) -> Option<Least> {
    let others = (ranks - 1.0) / ranks;
    let (lines, copies) = match function.strip_prefix("MPI_")? {
        // Nobody can leave before the last one has come.
        "Barrier" => (1.0, 0.0),
        // Each but the root learns of the data and copies it; all of them count its bytes.
        "Bcast" => (others, others),
        // Each but the root copies its part; those who count are the root, with all parts, and the
        // ranks with their own.
        "Scatter" | "Scatterv" => (others, ranks / (2.0 * ranks - 1.0)),
        // The same, but the root waits for parts.
        "Gather" | "Gatherv" => (1.0 / ranks, ranks / (2.0 * ranks - 1.0)),
        // Parts of all but one are read and added.
        "Reduce" => (1.0 / ranks, others),
        // Each part of the vector is read by who adds it up, and the sum by everybody else.
        "Allreduce" => (1.0, 2.0 * others),
        "Scan" | "Exscan" => (others, others),
        // Bytes are those of the own part, for which those of all others are read.
        "Reduce_scatter" | "Reduce_scatter_block" => (1.0, ranks - 1.0),
        // All parts, the own one included, are copied once.
        "Allgather" | "Allgatherv" | "Alltoall" | "Alltoallv" | "Alltoallw" => (1.0, 1.0),
        // A message is copied once, by its receiver, who has to learn of it.
        "Recv" | "Mrecv" => (1.0, 1.0),
        // What is sent counts as well; that is the other rank's to copy.
        "Sendrecv" | "Sendrecv_replace" => (1.0, 0.5),
        "Send" | "Ssend" | "Bsend" | "Rsend" => (0.0, 0.0),
        // To start a request is to leave a note; half of what completes was received.
        "Isend" | "Issend" | "Ibsend" | "Irsend" | "Irecv" | "Start" | "Startall" => (0.0, 0.0),
        "Wait" | "Waitall" | "Waitany" | "Waitsome" => (1.0, 0.5),
        "Test" | "Testall" | "Testany" | "Testsome" => (0.0, 0.5),
        "Probe" | "Mprobe" => (1.0, 0.0),
        "Iprobe" | "Improbe" => (0.0, 0.0),
        _ => return None,
    };
    let alone = ranks < 2.0;
    Some(Least {
        lines: if alone { 0.0 } else { lines },
        copies: match function {
            "MPI_Alltoall" | "MPI_Alltoallv" | "MPI_Alltoallw" | "MPI_Allgather" => copies,
            _ if alone => 0.0,
            _ => copies,
        },
    })
}

/// What was measured.
#[derive(Debug)]
pub struct Limits {
    /// Microseconds until a processor sees what the other one has written.
    line: f64,
    /// Bytes, and microseconds of a copy of so many.
    copies: Vec<(f64, f64)>,
}

impl Limits {
    /// Reads what [`measure`] has written.
    pub fn read(path: &Path) -> Result<Limits, String> {
        let text = read(path)?;
        Limits::of(&text).ok_or_else(|| format!("{}: no limits", path.display()))
    }

    pub fn of(text: &str) -> Option<Limits> {
        let rows = text.lines().skip(1).map(|line| {
            let (bytes, time) = line.split_once(',')?;
            Some((bytes.parse::<f64>().ok()?, time.parse::<f64>().ok()?))
        });
        let mut copies: Vec<(f64, f64)> = rows.collect::<Option<_>>()?;
        if copies.len() < 2 {
            return None;
        }
        let (_, line) = copies.remove(0);
        Some(Limits { line, copies })
    }

    /// Microseconds of a copy of so many bytes that the other processor has written.
    fn copy(&self, bytes: f64) -> f64 {
        // They have come with the line.
        if bytes <= LINE {
            return 0.0;
        }
        let at = self.copies.partition_point(|(size, _)| *size < bytes);
        let (below, above) = (self.copies.get(at.wrapping_sub(1)), self.copies.get(at));
        match (below, above) {
            (Some((low, fast)), Some((high, slow))) => {
                fast + (slow - fast) * (bytes - low) / (high - low)
            }
            (Some((size, time)), None) | (None, Some((size, time))) => time * bytes / size,
            (None, None) => 0.0,
        }
    }

    /// The least microseconds of a call with so many bytes, as the profile counts them, on a
    /// communicator of so many ranks; none for a function that the table does not have.
    pub fn of_call(&self, function: &str, ranks: u64, bytes: f64) -> Option<f64> {
        let least = least(function, ranks.max(1) as f64)?;
        Some(least.lines * self.line + self.copy(least.copies * bytes))
    }

    /// The limits as a table of a page.
    pub fn table(&self) -> String {
        let mut text = "bytes,us,what\n".to_owned();
        let _ = writeln!(text, "0,{:.3},a cache line", self.line);
        for (bytes, time) in &self.copies {
            let _ = writeln!(text, "{bytes},{time:.3},a copy");
        }
        text
    }
}

/// Has the calling thread stay on a processor.
fn stay_on(processor: usize) -> Result<(), String> {
    let mut set = CpuSet::new();
    set.set(processor).map_err(|error| error.to_string())?;
    sched_setaffinity(Pid::from_raw(0), &set).map_err(|error| error.to_string())
}

/// Two processors that this program may use; without a second one there is nothing to measure.
fn processors() -> Result<[usize; 2], String> {
    let set = sched_getaffinity(Pid::from_raw(0)).map_err(|error| error.to_string())?;
    let mut may = (0..CpuSet::count()).filter(|cpu| set.is_set(*cpu) == Ok(true));
    match (may.next(), may.next()) {
        (Some(one), Some(two)) => Ok([one, two]),
        _ => Err("limits are those of two processors, and there is one".to_owned()),
    }
}

/// A counter that has its cache line for itself.
#[repr(align(128))]
#[derive(Default)]
struct Line(AtomicU64);

/// Microseconds until the other processor sees a line: half of there and back, the fastest of
/// some tries, since others use the machine.
fn line([here, there]: [usize; 2]) -> Result<f64, String> {
    let (out, back) = (Line::default(), Line::default());
    let end = ROUNDS * SAMPLES as u64;
    thread::scope(|scope| {
        let echo = scope.spawn(|| {
            let stays = stay_on(there);
            for round in 1..=end {
                while out.0.load(Ordering::Acquire) < round {
                    std::hint::spin_loop();
                }
                back.0.store(round, Ordering::Release);
            }
            stays
        });
        let stays = stay_on(here);
        let mut best = Duration::MAX;
        for sample in 0..SAMPLES as u64 {
            let start = Instant::now();
            for round in sample * ROUNDS + 1..=(sample + 1) * ROUNDS {
                out.0.store(round, Ordering::Release);
                while back.0.load(Ordering::Acquire) < round {
                    std::hint::spin_loop();
                }
            }
            best = best.min(start.elapsed());
        }
        let echoed = echo.join().map_err(|_| "a thread has failed".to_owned())?;
        echoed.and(stays)?;
        Ok(best.as_secs_f64() * 1e6 / (2 * ROUNDS) as f64)
    })
}

/// Microseconds of a copy of `bytes` that the other processor has just written.
fn copy(bytes: usize, [here, there]: [usize; 2]) -> Result<f64, String> {
    let source = Mutex::new(vec![0u8; source_len(bytes)]);
    let (begun, written) = (Barrier::new(2), Barrier::new(2));
    let samples = (SAMPLES * (1 << 22) / source_len(bytes)).clamp(9, SAMPLES);
    let locked = || source.lock().unwrap_or_else(PoisonError::into_inner);
    thread::scope(|scope| {
        let writer = scope.spawn(|| -> Result<(), String> {
            let stays = stay_on(there);
            for sample in 0..samples {
                begun.wait();
                locked().fill(sample as u8);
                written.wait();
            }
            stays
        });
        let stays = stay_on(here);
        let mut target = vec![0u8; source_len(bytes)];
        let (mut times, mut is_right) = (Vec::new(), true);
        for sample in 0..samples {
            // What is copied to is this processor's.
            target.fill(0xff);
            begun.wait();
            written.wait();
            let source = locked();
            let start = Instant::now();
            for (to, from) in target
                .chunks_exact_mut(bytes)
                .zip(source.chunks_exact(bytes))
            {
                std::hint::black_box(to).copy_from_slice(std::hint::black_box(from));
            }
            times.push(start.elapsed());
            is_right &= target.iter().all(|byte| *byte == sample as u8);
        }
        let wrote = writer
            .join()
            .map_err(|_| "a thread has failed".to_owned())?;
        wrote.and(stays)?;
        if !is_right {
            return Err("a copy has other bytes than its source".to_owned());
        }
        times.sort_unstable();
        // The lowest tenth: who else uses the machine makes copies slow, nobody makes them fast.
        let time = times[times.len() / 10].as_secs_f64() * 1e6;
        Ok(time / (source_len(bytes) / bytes) as f64)
    })
}

/// What is copied in parts of `bytes`.
fn source_len(bytes: usize) -> usize {
    bytes.max(REGION)
}

/// Measures, and writes the file that [`Limits::read`] reads.
pub fn measure(path: &Path) -> Verdict {
    let processors = processors()?;
    let mut text = "bytes,us\n".to_owned();
    let _ = writeln!(text, "0,{:.4}", line(processors)?);
    for shift in SHIFTS {
        let bytes = 1usize << shift;
        let _ = writeln!(text, "{bytes},{:.4}", copy(bytes, processors)?);
    }
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Limits {
        Limits::of("bytes,us\n0,0.1\n64,0.02\n128,0.04\n1024,0.2\n").expect("limits")
    }

    #[test]
    fn a_limit_is_lines_and_a_copy() {
        let near = |a: Option<f64>, b: f64| assert!((a.unwrap() - b).abs() < 1e-9, "{a:?} {b}");
        let limits = limits();
        // Of two ranks one copies nothing: half a line and a copy of half of the bytes.
        near(limits.of_call("MPI_Bcast", 2, 256.0), 0.05 + 0.04);
        // Short ones come with the line.
        near(limits.of_call("MPI_Allreduce", 2, 8.0), 0.1);
        // Between two sizes, and beyond the largest one.
        near(limits.of_call("MPI_Recv", 2, 576.0), 0.1 + 0.12);
        near(limits.of_call("MPI_Recv", 2, 4096.0), 0.1 + 0.8);
        near(limits.of_call("MPI_Sendrecv", 2, 256.0), 0.1 + 0.04);
        near(limits.of_call("MPI_Barrier", 4, 0.0), 0.1);
        // Who is alone learns of nobody, but copies its own part.
        near(limits.of_call("MPI_Alltoallw", 1, 1024.0), 0.2);
        near(limits.of_call("MPI_Bcast", 1, 1024.0), 0.0);
        assert_eq!(limits.of_call("MPI_Win_fence", 2, 8.0), None);
    }

    #[test]
    fn what_is_no_table_of_limits_is_refused() {
        for text in ["", "bytes,us\n0,0.1\n", "bytes,us\n0,0.1\n64,x\n"] {
            assert!(Limits::of(text).is_none(), "{text}");
        }
    }

    #[test]
    fn what_is_measured_can_be_true() {
        let Ok(processors) = processors() else {
            // One processor has no other one to wait for.
            return;
        };
        let line = line(processors).unwrap();
        assert!((0.005..1000.0).contains(&line), "{line} us for a line");
        let [short, long] = [1 << 10, 1 << 22].map(|bytes| copy(bytes, processors).unwrap());
        // Nothing copies faster than a terabyte a second.
        assert!(
            long > 4.0 && short > 0.001 && long > short,
            "{short} {long}"
        );
    }
}
