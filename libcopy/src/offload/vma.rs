// SPDX-License-Identifier: MIT OR Apache-2.0

//! What protection memory has now: a guard must give back what was there. Memory that other
//! processes may have mapped as well is none that a guard holds: it protects this process's pages
//! only.

use std::fs::File;
use std::os::fd::{AsRawFd, IntoRawFd, RawFd};
use std::sync::Mutex;

/// `struct procmap_query` of `include/uapi/linux/fs.h` (Linux 6.11).
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    vma_flags: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    major: u32,
    minor: u32,
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}

/// `PROCMAP_QUERY`, `_IOWR('f', 17, struct procmap_query)`.
const PROCMAP_QUERY: u32 = 0xC068_6611;

const _: () = assert!(std::mem::size_of::<Query>() == 0x68);

/// The process that asks, and its file, because opening it takes several times as long as asking.
/// It is never closed: after a fork, or when the application has closed what it did not know, the
/// number may be somebody else's.
static ASKED: Mutex<Option<(u32, RawFd)>> = Mutex::new(None);

/// `PROCMAP_QUERY_VMA_SHARED`
const SHARED: u64 = 8;

/// `PROCMAP_QUERY_COVERING_OR_NEXT_VMA`
const OR_NEXT: u64 = 0x10;

/// The protection that all of `start..end` has, if it is all mapped alike and privately, with
/// ordinary pages.
pub(super) fn protection(start: usize, end: usize) -> Option<i32> {
    match asking(|file| by_query(file, start, end))? {
        Some(answer) => answer,
        // An older kernel, whose text does not tell huge pages; mprotect refuses those.
        None => by_text(
            &std::fs::read_to_string("/proc/self/maps").ok()?,
            start,
            end,
        ),
    }
}

/// Calls `each` with the parts of `start..end` that are private and have this protection; whether
/// the kernel can be asked for them. Async-signal-safe.
pub(super) fn with_protection(
    (start, end): (usize, usize),
    protection: i32,
    mut each: impl FnMut(usize, usize),
) -> bool {
    let mut at = start as u64;
    let walk = |file| {
        while at < end as u64 {
            let Some(found) = query(file, at, OR_NEXT)? else {
                break;
            };
            if found.vma_flags & SHARED == 0 && (found.vma_flags & 7) as i32 == protection {
                let (from, to) = (found.start.max(at), found.end.min(end as u64));
                if from < to {
                    each(from as usize, to as usize);
                }
            }
            if found.end <= at {
                break;
            }
            at = found.end;
        }
        Some(())
    };
    asking(walk).flatten().is_some()
}

/// Asks with the file of this process.
fn asking<T>(ask: impl FnOnce(RawFd) -> T) -> Option<T> {
    let open = || File::open("/proc/self/maps");
    // A child may have been forked while another thread held the lock, and a handler may have
    // interrupted who does.
    match ASKED.try_lock() {
        Ok(mut asked) => {
            let me = std::process::id();
            let file = match *asked {
                // A child would ask about its parent.
                Some((who, file)) if who == me => file,
                _ => {
                    let file = open().ok()?.into_raw_fd();
                    *asked = Some((me, file));
                    file
                }
            };
            Some(ask(file))
        }
        Err(_) => Some(ask(open().ok()?.as_raw_fd())),
    }
}

/// The mapping at an address, or, as the flags ask, behind it; `Some(None)` if there is none,
/// `None` if the kernel does not know the question.
fn query(file: RawFd, address: u64, flags: u64) -> Option<Option<Query>> {
    let mut query = Query {
        size: std::mem::size_of::<Query>() as u64,
        flags,
        address,
        ..Default::default()
    };
    // SAFETY: the structure is what the command takes, and outlives the call.
    let answer = unsafe { libc::ioctl(file, PROCMAP_QUERY as libc::Ioctl, &mut query) };
    if answer >= 0 {
        return Some(Some(query));
    }
    match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::ENOENT) => Some(None),
        _ => None,
    }
}

fn merge(all: &mut Option<i32>, one: i32) -> bool {
    *all.get_or_insert(one) == one
}

/// `None`: the kernel does not know the question.
fn by_query(file: RawFd, start: usize, end: usize) -> Option<Option<i32>> {
    let mut at = start as u64;
    let mut all = None;
    while at < end as u64 {
        let Some(query) = query(file, at, 0)? else {
            return Some(None);
        };
        // SAFETY: no memory is passed.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
        let one = (query.vma_flags & 7) as i32;
        let plain = query.page_size == page && query.vma_flags & SHARED == 0;
        if !plain || !merge(&mut all, one) || query.end <= at {
            return Some(None);
        }
        at = query.end;
    }
    Some(all)
}

fn by_text(maps: &str, start: usize, end: usize) -> Option<i32> {
    let mut at = start;
    let mut all = None;
    for line in maps.lines() {
        let (range, rest) = line.split_once(' ')?;
        let (low, high) = range.split_once('-')?;
        let low = usize::from_str_radix(low, 16).ok()?;
        let high = usize::from_str_radix(high, 16).ok()?;
        if high <= at {
            continue;
        }
        if low > at || at >= end {
            break;
        }
        let flags = [
            ('r', libc::PROT_READ),
            ('w', libc::PROT_WRITE),
            ('x', libc::PROT_EXEC),
        ];
        let one = rest
            .chars()
            .take(3)
            .filter_map(|c| flags.iter().find(|(letter, _)| *letter == c))
            .fold(0, |all, (_, bit)| all | bit);
        if rest.chars().nth(3) != Some('p') || !merge(&mut all, one) {
            return None;
        }
        at = high;
    }
    if at >= end { all } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_query_agree() {
        let text = "1000-3000 rw-p 0 0:0 0\n3000-4000 rw-p 0 0:0 0\n4000-5000 r--p 0 0:0 0\n\
                    6000-7000 rwxp 0 0:0 0\n8000-9000 rw-s 0 0:0 0\n";
        assert_eq!(by_text(text, 0x1000, 0x4000), Some(3));
        assert_eq!(by_text(text, 0x2000, 0x5000), None, "two protections");
        assert_eq!(by_text(text, 0x4000, 0x5000), Some(1));
        assert_eq!(by_text(text, 0x4000, 0x6000), None, "a hole");
        assert_eq!(by_text(text, 0x6000, 0x7000), Some(7));
        assert_eq!(by_text(text, 0x8000, 0x9000), None, "shared");
        let bytes = vec![1_u8; 1 << 20];
        let start = (bytes.as_ptr() as usize).next_multiple_of(1 << 16);
        let end = start + (1 << 16);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert_eq!(by_text(&maps, start, end), Some(3));
        assert_eq!(protection(start, end), Some(3));
        assert_eq!(protection(4096, 8192), None);
    }

    #[test]
    fn shared_memory_is_none_to_guard() {
        // SAFETY: new memory, which is given back below.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                1 << 16,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(memory, libc::MAP_FAILED);
        let (start, end) = (memory as usize, memory as usize + (1 << 16));
        assert_eq!(protection(start, end), None);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert_eq!(by_text(&maps, start, end), None);
        // SAFETY: as above.
        unsafe { libc::munmap(memory, 1 << 16) };
    }
}
