// SPDX-License-Identifier: MIT OR Apache-2.0

//! One of our ranks in a comparison: does what the socket says (see
//! [`crate::peer_process`]).

use crate::buffer::Skewed;
use crate::pattern::{self, ELEMENT};
use crate::peer_process::serve;
use anyhow::{Result, bail};
use clap::Args;
use libcopy::topology;
use libcopy::{Team, TransportKind};
use nix::time::{ClockId, clock_gettime};
use std::path::PathBuf;
use std::time::Duration;

/// The variant that does with process_vm_readv and process_vm_writev what an MPI library does.
pub const PLAIN_CMA: &str = "cma-plain";

/// The variant in which all ranks are one group.
pub const FLAT: &str = "flat";

/// `libcopy bench rank`
#[derive(Args, Clone, Debug)]
pub struct RankArgs {
    /// Socket that commands come from
    #[arg(long, value_name = "SOCKET")]
    control: PathBuf,
}

struct Rank {
    team: Team,
    /// The transport that is set now; `None` before the first command.
    word: Option<String>,
    one: Skewed,
    all: Skewed,
    /// What an alltoall sends.
    many: Skewed,
    oversubscribed: bool,
}

/// Runs `libcopy bench rank`.
///
/// # Errors
///
/// No team, or nobody who says what to do.
pub fn run(args: &RankArgs) -> Result<()> {
    let cores = topology::affinity();
    let number = libcopy::config::RANK.or_default().parse().unwrap_or(0);
    topology::pin(&cores, number);
    let team = Team::from_env()?;
    let (place, description) = ((team.rank(), team.size()), describe(&team));
    let mut rank = Rank {
        oversubscribed: team.size() > cores.len(),
        one: Skewed::new(0, 2 * team.rank())?,
        all: Skewed::new(0, 2 * team.rank() + 1)?,
        many: Skewed::new(0, 2 * team.rank() + 2)?,
        word: None,
        team,
    };
    serve(&args.control, place, &description, |command| {
        rank.obey(command)
    })
}

impl Rank {
    fn obey(&mut self, command: &str) -> Result<String> {
        let words: Vec<&str> = command.split(' ').collect();
        let [what, op, bytes, variant, first, second] = words[..] else {
            bail!("unknown command");
        };
        let bytes: usize = bytes.parse()?;
        match what {
            "time" | "written" => {
                let counts = (first.parse()?, second.parse()?);
                let times = self.time(op, bytes, variant, counts, what == "written")?;
                let times: Vec<String> = times.iter().map(u64::to_string).collect();
                Ok(format!("times {}", times.join(" ")))
            }
            "check" => self.check(op, bytes, variant, first.parse()?, second.parse()?),
            _ => bail!("unknown command"),
        }
    }

    fn prepare(&mut self, op: &str, bytes: usize, variant: &str) -> Result<()> {
        let (rank, size) = (self.team.rank(), self.team.size());
        self.one.reserve(bytes.max(1), 2 * rank)?;
        match op {
            "barrier" => {}
            "bcast" if variant != "memcpy" => {}
            "bcast" => self.all.reserve(bytes.max(1), 2 * rank + 1)?,
            _ => self.all.reserve(bytes.max(1) * size, 2 * rank + 1)?,
        }
        if op == "alltoall" {
            self.many.reserve(bytes.max(1) * size, 2 * rank + 2)?;
        }
        // "-" is what peers are told, of which another libcopy may be one: as its environment says.
        let ours = !["memcpy", PLAIN_CMA, "-"].contains(&variant);
        if ours && self.word.as_deref() != Some(variant) {
            let kind = match variant {
                "auto" | FLAT => None,
                name => Some(name.parse::<TransportKind>()?),
            };
            self.team.set_transport(kind)?;
            if variant == FLAT {
                self.team.set_flat();
            } else {
                self.team.unset_groups();
            }
            self.word = Some(variant.to_owned());
        }
        Ok(())
    }

    fn call(&mut self, op: &str, bytes: usize, root: usize) -> Result<()> {
        let total = bytes * self.team.size();
        let is_root = self.team.rank() == root;
        let team = &mut self.team;
        let one = &mut self.one;
        match op {
            "barrier" => team.barrier()?,
            "bcast" => team.bcast(&mut one[..bytes], root)?,
            "gather" => {
                team.gather(&one[..bytes], is_root.then(|| &mut self.all[..total]), root)?;
            }
            "scatter" => {
                team.scatter(is_root.then(|| &self.all[..total]), &mut one[..bytes], root)?;
            }
            "allgather" => team.allgather(&one[..bytes], &mut self.all[..total])?,
            "alltoall" => team.alltoall(&self.many[..total], &mut self.all[..total])?,
            "reduce" => {
                let to = is_root.then(|| &mut self.all[..bytes]);
                team.reduce_bytes(Some(&one[..bytes]), to, root, ELEMENT, pattern::add)?;
            }
            "allreduce" => {
                team.allreduce_bytes(
                    Some(&one[..bytes]),
                    &mut self.all[..bytes],
                    ELEMENT,
                    pattern::add,
                )?;
            }
            _ => bail!("unknown operation {op:?}"),
        }
        Ok(())
    }

    /// The same without any of our cleverness: the owner tells where its buffer is, each peer
    /// moves its part with one system call, the owner waits for all of them.
    fn plain_cma(&mut self, op: &str, bytes: usize, root: usize) -> Result<()> {
        let (rank, size) = (self.team.rank(), self.team.size());
        let buffer = match op {
            "bcast" | "allgather" => self.one.as_mut_ptr(),
            _ => self.all.as_mut_ptr(),
        };
        let words = [u64::from(std::process::id()), buffer as u64];
        let mut place = words.map(u64::to_ne_bytes).concat();
        let part = rank * bytes..(rank + 1) * bytes;
        let mut places = vec![0; place.len() * size];
        match op {
            "allgather" => self.team.allgather(&place, &mut places)?,
            _ => self.team.bcast(&mut place, root)?,
        }
        match op {
            "bcast" if rank == root => {}
            "bcast" => plain_copy(libc::process_vm_readv, &place, 0, &mut self.one[..bytes])?,
            "scatter" if rank == root => self.one[..bytes].copy_from_slice(&self.all[part]),
            "scatter" => {
                let own = &mut self.one[..bytes];
                plain_copy(libc::process_vm_readv, &place, part.start, own)?;
            }
            "gather" if rank == root => self.all[part].copy_from_slice(&self.one[..bytes]),
            "gather" => {
                let own = &mut self.one[..bytes];
                plain_copy(libc::process_vm_writev, &place, part.start, own)?;
            }
            _ => {
                self.all[part].copy_from_slice(&self.one[..bytes]);
                for peer in (rank + 1..size).chain(0..rank) {
                    let place = &places[peer * place.len()..][..place.len()];
                    let to = &mut self.all[peer * bytes..][..bytes];
                    plain_copy(libc::process_vm_readv, place, 0, to)?;
                }
            }
        }
        self.team.barrier()?;
        Ok(())
    }

    /// One operation as `variant` does it.
    fn run(&mut self, op: &str, bytes: usize, variant: &str, root: usize) -> Result<()> {
        match variant {
            PLAIN_CMA => self.plain_cma(op, bytes, root),
            _ => self.call(op, bytes, root),
        }
    }

    /// The bytes that this rank has to move, moved by a plain memcpy: the physical limit.
    fn memcpy(&mut self, op: &str, bytes: usize) {
        let (source, target) = (&self.one[..bytes], &mut self.all);
        let times = if ["allgather", "alltoall"].contains(&op) {
            self.team.size()
        } else {
            1
        };
        for i in 0..times {
            target[i * bytes..][..bytes].copy_from_slice(std::hint::black_box(source));
            std::hint::black_box(&mut target[i * bytes..][..bytes]);
        }
    }

    fn time(
        &mut self,
        op: &str,
        bytes: usize,
        variant: &str,
        (warmup, count): (usize, usize),
        is_written: bool,
    ) -> Result<Vec<u64>> {
        self.prepare(op, bytes, variant)?;
        let memcpy = variant == "memcpy";
        // The root of a broadcast only gives.
        let idle = memcpy && op == "bcast" && self.team.rank() == 0 && self.team.size() > 1;
        // A copy that shares its core must not count the time in which the other one ran.
        let clock = if memcpy && self.oversubscribed {
            ClockId::CLOCK_THREAD_CPUTIME_ID
        } else {
            ClockId::CLOCK_MONOTONIC
        };
        let mut times = Vec::with_capacity(count);
        for _ in 0..warmup {
            match (memcpy, idle) {
                (true, false) => self.memcpy(op, bytes),
                (true, true) => {}
                (false, _) => self.run(op, bytes, variant, 0)?,
            }
        }
        self.team.barrier()?;
        for round in 0..count {
            if is_written {
                self.write(op, bytes, round as u8);
            }
            let start = clock_gettime(clock)?;
            if !memcpy {
                self.run(op, bytes, variant, 0)?;
            } else if !idle {
                self.memcpy(op, bytes);
            }
            let end = clock_gettime(clock)?;
            self.team.barrier()?;
            if !idle {
                times.push(Duration::from(end - start).as_nanos() as u64);
            }
        }
        Ok(times)
    }

    /// Writes what this rank contributes, as programs do between calls: nobody else has it in a
    /// cache then. Sums of it do not overflow.
    fn write(&mut self, op: &str, bytes: usize, byte: u8) {
        let total = bytes * self.team.size();
        match op {
            "alltoall" => self.many[..total].fill(byte & 0x3f),
            "scatter" if self.team.rank() == 0 => self.all[..total].fill(byte & 0x3f),
            _ => self.one[..bytes].fill(byte & 0x3f),
        }
    }

    fn check(
        &mut self,
        op: &str,
        bytes: usize,
        variant: &str,
        root: usize,
        round: u64,
    ) -> Result<String> {
        self.prepare(op, bytes, variant)?;
        let (rank, size) = (self.team.rank(), self.team.size());
        let total = bytes * size;
        let is_root = rank == root;
        let poison = round as u8 ^ 0x5a;
        if variant == "memcpy" {
            pattern::fill(&mut self.one[..bytes], round, rank);
            let is_all = ["allgather", "alltoall"].contains(&op);
            let times = if is_all { size } else { 1 };
            self.all[..bytes * times].fill(poison);
            self.memcpy(op, bytes);
            let copies = self.all[..bytes * times].chunks(bytes.max(1));
            return Ok(verdict(copies.map(|copy| (copy, rank)), round));
        }
        self.one[..bytes].fill(poison);
        match op {
            "bcast" if is_root => pattern::fill(&mut self.one[..bytes], round, root),
            "bcast" => {}
            "scatter" if is_root => {
                for (to, block) in self.all[..total].chunks_mut(bytes.max(1)).enumerate() {
                    pattern::fill(block, round, to);
                }
            }
            "scatter" => {}
            "alltoall" => {
                for (to, block) in self.many[..total].chunks_mut(bytes.max(1)).enumerate() {
                    pattern::fill(block, round + 3 * to as u64, rank);
                }
                self.all[..total].fill(poison);
            }
            "reduce" | "allreduce" => {
                for (at, element) in self.one[..bytes].chunks_exact_mut(ELEMENT).enumerate() {
                    element.copy_from_slice(&pattern::number(round, rank, at).to_ne_bytes());
                }
                self.all[..bytes].fill(poison);
            }
            _ => {
                pattern::fill(&mut self.one[..bytes], round, rank);
                if is_root || op == "allgather" {
                    self.all[..total].fill(poison);
                }
            }
        }
        self.run(op, bytes, variant, root)?;
        Ok(match op {
            "bcast" => verdict(std::iter::once((&self.one[..bytes], root)), round),
            "scatter" => verdict(std::iter::once((&self.one[..bytes], rank)), round),
            "alltoall" => {
                let blocks = self.all[..total].chunks(bytes.max(1)).enumerate();
                verdict(
                    blocks.map(|(from, block)| (block, from)),
                    round + 3 * rank as u64,
                )
            }
            "reduce" | "allreduce" => {
                let sums = self.all[..bytes].chunks_exact(ELEMENT).enumerate();
                let wrong = sums
                    .filter(|_| is_root || op == "allreduce")
                    .find(|(at, sum)| {
                        let all = (0..size).map(|from| pattern::number(round, from, *at));
                        **sum != all.sum::<f64>().to_ne_bytes()
                    });
                wrong.map_or("ok".to_owned(), |(at, _)| format!("bad sum {at}"))
            }
            _ if is_root || op == "allgather" => {
                let blocks = self.all[..total].chunks(bytes.max(1));
                verdict(blocks.enumerate().map(|(from, block)| (block, from)), round)
            }
            _ => "ok".to_owned(),
        })
    }
}

/// `process_vm_readv` or `process_vm_writev`.
type CmaCall = unsafe extern "C" fn(
    libc::pid_t,
    *const libc::iovec,
    libc::c_ulong,
    *const libc::iovec,
    libc::c_ulong,
    libc::c_ulong,
) -> isize;

/// One system call between `ours` and the same number of bytes behind `place`, which is a process
/// and an address.
fn plain_copy(call: CmaCall, place: &[u8], offset: usize, ours: &mut [u8]) -> Result<()> {
    let (process, address) = place.split_at(8);
    let process = u64::from_ne_bytes(process.try_into()?) as libc::pid_t;
    let address = u64::from_ne_bytes(address.try_into()?) as usize + offset;
    let iovec = |base, len| libc::iovec {
        iov_base: base,
        iov_len: len,
    };
    let local = iovec(ours.as_mut_ptr().cast(), ours.len());
    let remote = iovec(address as *mut _, ours.len());
    // SAFETY: the local side is borrowed; the kernel checks the remote one, which its owner keeps
    // until the barrier behind the copy.
    let moved = unsafe { call(process, &raw const local, 1, &raw const remote, 1, 0) };
    if moved != ours.len() as isize {
        let error = std::io::Error::last_os_error();
        bail!(
            "process_vm_* moved {moved} of {} bytes: {error}",
            ours.len()
        );
    }
    Ok(())
}

fn verdict<'a>(blocks: impl Iterator<Item = (&'a [u8], usize)>, round: u64) -> String {
    for (block, from) in blocks {
        if let Some(at) = pattern::first_difference(block, round, from) {
            return format!("bad byte {at} of the block of rank {from}");
        }
    }
    "ok".to_owned()
}

/// What our ranks say of themselves.
fn describe(team: &libcopy::Team) -> String {
    let names: Vec<&str> = team
        .transports()
        .iter()
        .filter(|r| r.usable)
        .map(|r| r.kind.name())
        .collect();
    format!(
        "libcopy {} ({})",
        env!("CARGO_PKG_VERSION"),
        names.join(", ")
    )
}
