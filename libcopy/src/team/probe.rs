// SPDX-License-Identifier: MIT OR Apache-2.0

//! Which transports this team can use: tried for real, by every rank, so that all agree.

use std::sync::atomic::{AtomicU64 as PlainU64, Ordering as PlainOrdering};

use super::key::TeamKey;
use crate::device::{Domain, DomainKey};
use crate::error::{Error, Result};
use crate::process;
use crate::shm::mailbox::Mailbox;
use crate::shm::segment::{RankBlock, Segment};
use crate::shm::sync::Ordering;
use crate::transport::cma::{self, Cma};
use crate::transport::kmod::Kmod;
use crate::transport::{TransportKind, TransportReport, process_memory, stream};
use crate::uapi;

/// Stands for an error that has no errno.
const NO_ERRNO: u64 = 4096;

/// What was found.
pub(crate) struct Found {
    pub(crate) kmod: Option<Kmod>,
    pub(crate) cma: Option<Cma>,
    pub(crate) reports: Vec<TransportReport>,
}

/// Tries everything; collective.
pub(crate) fn probe(segment: &Segment, mailbox: &mut Mailbox) -> Result<Found> {
    let (kmod, kmod_report) = probe_kmod(segment, mailbox)?;
    let (cma, cma_report) = probe_cma(segment, mailbox)?;
    Ok(Found {
        kmod,
        cma,
        reports: vec![kmod_report, cma_report, stream::report()],
    })
}

fn probe_kmod(segment: &Segment, mailbox: &mut Mailbox) -> Result<(Option<Kmod>, TransportReport)> {
    let (rank, size) = (mailbox.rank(), mailbox.size());
    let words = &segment.preamble().domain_key;
    let mut domain = None;
    let mut report = |result: Result<Domain>| {
        let code = match &result {
            Ok(_) => 0,
            Err(error) => error.errno().map_or(NO_ERRNO, |errno| errno as u64),
        };
        segment
            .block(rank)
            .device_error
            .store(code, Ordering::Relaxed);
        domain = Some(result);
    };
    if rank == 0 {
        let created = Domain::create();
        if let Ok(key) = created.as_ref().map(Domain::key) {
            let (low, high) = split(key.to_bytes());
            words[0].store(low, Ordering::Relaxed);
            words[1].store(high, Ordering::Relaxed);
        }
        report(created);
    }
    mailbox.barrier()?;
    if rank != 0 {
        // Without rank 0 there is no domain, but our own reason may be another one.
        if segment.block(0).device_error.load(Ordering::Relaxed) == 0 {
            let key = [
                words[0].load(Ordering::Relaxed),
                words[1].load(Ordering::Relaxed),
            ];
            report(Domain::join(&DomainKey::from_bytes(joined(key))));
        } else {
            segment
                .block(rank)
                .device_error
                .store(NO_ERRNO, Ordering::Relaxed);
        }
    }
    mailbox.barrier()?;
    let failed = (0..size)
        .map(|rank| {
            (
                rank,
                segment.block(rank).device_error.load(Ordering::Relaxed),
            )
        })
        .find(|(_, code)| *code != 0);
    let kind = TransportKind::Kmod;
    Ok(match (failed, domain) {
        (None, Some(Ok(domain))) => {
            let why = format!("all ranks share a domain of {}", uapi::DEVICE_PATH);
            (Some(Kmod::new(domain)), kind.report(true, why))
        }
        (_, Some(Err(error))) => (None, kind.report(false, error.report())),
        (failed, _) => {
            let (rank, code) = failed.unwrap_or((rank, NO_ERRNO));
            let why = match i32::try_from(code) {
                Ok(errno) if code < NO_ERRNO => {
                    let source = std::io::Error::from_raw_os_error(errno);
                    let error = Error::Device {
                        path: uapi::DEVICE_PATH,
                        source,
                    };
                    format!("rank {rank}: {}", error.report())
                }
                _ => format!("rank {rank} cannot use {}", uapi::DEVICE_PATH),
            };
            (None, kind.report(false, why))
        }
    })
}

fn split(key: [u8; 16]) -> (u64, u64) {
    let key = u128::from_ne_bytes(key);
    (key as u64, (key >> 64) as u64)
}

pub(super) fn joined([low, high]: [u64; 2]) -> [u8; 16] {
    (u128::from(high) << 64 | u128::from(low)).to_ne_bytes()
}

fn probe_cma(segment: &Segment, mailbox: &mut Mailbox) -> Result<(Option<Cma>, TransportReport)> {
    let (rank, size) = (mailbox.rank(), mailbox.size());
    cma::permit_peers();
    // What peers must find, where they are told to look: a pid or an address that means something
    // else in their eyes cannot pass.
    let secret = u64::from_ne_bytes(
        TeamKey::random()?.to_bytes()[..8]
            .try_into()
            .unwrap_or_default(),
    );
    let word = Box::new(PlainU64::new(secret));
    let me = segment.block(rank);
    me.probe_value.store(secret, Ordering::Relaxed);
    me.probe_address
        .store((&raw const *word) as u64, Ordering::Relaxed);
    me.pid
        .store(u64::from(std::process::id()), Ordering::Relaxed);
    me.pid_namespace
        .store(process::pid_namespace().unwrap_or(0), Ordering::Relaxed);
    mailbox.barrier()?;
    let pids = pids(segment, size)?;
    let mut error = (0, 0);
    let unseen = pids.iter().position(|pid| *pid <= 0);
    for peer in unseen
        .into_iter()
        .chain(process_memory::tried_by(rank, size))
    {
        let block = segment.block(peer);
        let address = block.probe_address.load(Ordering::Relaxed);
        let read = match pids[peer] {
            pid @ 1.. => process_memory::read_word(pid, address)
                .map_err(|e| e.raw_os_error().unwrap_or(libc::EIO)),
            _ => Err(libc::ESRCH),
        };
        let found = read.and_then(|value| {
            let right = value == block.probe_value.load(Ordering::Relaxed);
            if right { Ok(()) } else { Err(libc::EFAULT) }
        });
        if let Err(errno) = found {
            error = (errno, peer);
            break;
        }
    }
    me.probe_error.store(error.0 as u64, Ordering::Relaxed);
    me.probe_peer.store(error.1 as u64, Ordering::Relaxed);
    mailbox.barrier()?;
    // Only now may the word go.
    word.store(0, PlainOrdering::Relaxed);
    drop(word);
    let kind = TransportKind::Cma;
    for rank in 0..size {
        let block = segment.block(rank);
        let errno = block.probe_error.load(Ordering::Relaxed) as i32;
        if errno != 0 {
            let peer = block.probe_peer.load(Ordering::Relaxed);
            let why = format!(
                "rank {rank} cannot read rank {peer}: {}",
                cma::explain(errno)
            );
            return Ok((None, kind.report(false, why)));
        }
    }
    let why = "each rank read a word of others, and each was read".to_owned();
    Ok((Some(Cma::new(pids)), kind.report(true, why)))
}

/// The ranks' processes, as our namespace numbers them; 0: not visible from here. What each says
/// about itself, if all are in one namespace; else the kernel is asked about each.
fn pids(segment: &Segment, size: usize) -> Result<Vec<i32>> {
    let blocks = || (0..size).map(|rank| segment.block(rank));
    let ours = segment.block(0).pid_namespace.load(Ordering::Relaxed);
    let is_ours = |block: &RankBlock| block.pid_namespace.load(Ordering::Relaxed) == ours;
    if ours != 0 && blocks().all(is_ours) {
        let pid = |block: &RankBlock| block.pid.load(Ordering::Relaxed) as i32;
        return Ok(blocks().map(pid).collect());
    }
    let holder = |rank| Ok(segment.holder(rank)?.unwrap_or(0));
    (0..size).map(holder).collect()
}
