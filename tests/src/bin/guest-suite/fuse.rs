// SPDX-License-Identifier: MIT OR Apache-2.0

//! A file whose pages somebody else brings in, late: the root of a FUSE file system of one file,
//! served by a process of the test's (`include/uapi/linux/fuse.h`).

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::time::Duration;

use crate::harness::{Outcome, skip};
use crate::rng::Rng;
use crate::sys::{Child, PAGE};
use crate::{check, check_eq};

/// Bytes of the file.
pub const LEN: usize = 1 << 20;

const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;

/// The file; it and its server go when this is dropped.
pub struct LateFile {
    /// The file, open for reading.
    pub file: File,
    server: Option<Child>,
}

impl LateFile {
    /// Every read of the file is answered after up to the time of `late`, by random numbers from
    /// its seed; none is without `late`.
    pub fn new(late: Option<(u64, Duration)>) -> Outcome<Self> {
        let connection = File::options().read(true).write(true).open("/dev/fuse");
        let Ok(connection) = connection else {
            return skip("this kernel has no FUSE");
        };
        let path = format!("/tmp/late-file.{}", std::process::id());
        fs::write(&path, "")?;
        let options = format!(
            "fd={},rootmode=100444,user_id=0,group_id=0,allow_other",
            connection.as_raw_fd()
        );
        // The root is a regular file, so that there is nothing to look up.
        nix::mount::mount(
            Some("guest-suite"),
            path.as_str(),
            Some("fuse"),
            nix::mount::MsFlags::empty(),
            Some(options.as_str()),
        )?;
        let late = late.map(|(seed, most)| (Rng::new(seed), most));
        let server = Child::spawn(move || serve(&connection, late))?;
        let file = File::open(&path);
        nix::mount::umount2(path.as_str(), nix::mount::MntFlags::MNT_DETACH)?;
        fs::remove_file(&path)?;
        let this = Self {
            file: file?,
            server: Some(server),
        };
        // The kernel does not ask for the length by itself.
        check_eq!(this.file.metadata()?.len(), LEN as u64);
        Ok(this)
    }
}

impl Drop for LateFile {
    fn drop(&mut self) {
        // With the server's end of the connection every wait for an answer ends.
        if let Some(server) = self.server.take() {
            let _ = server.kill();
        }
    }
}

fn serve(mut connection: &File, mut late: Option<(Rng, Duration)>) -> Outcome {
    let mut request = vec![0u8; 1 << 17];
    loop {
        let len = match connection.read(&mut request) {
            Ok(len) => len,
            // The file system is gone.
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Ok(()),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => continue,
            Err(error) => return Err(error.into()),
        };
        check!(len >= 40, "a request of {len} bytes");
        let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().expect("four"));
        let mut words: Vec<u32> = Vec::new();
        let mut error = 0;
        match word(4) {
            FORGET | INTERRUPT => continue,
            INIT => {
                words = vec![0; 16];
                (words[0], words[1], words[5]) = (7, 31, PAGE as u32);
                // Pages are read ahead, asynchronously: a thread that needs one waits for the page
                // alone.
                (words[2], words[3]) = (1 << 17, 1);
            }
            GETATTR => {
                words = vec![0; 26];
                // Inode, size, mode, links.
                (words[4], words[6], words[19], words[20]) = (1, LEN as u32, 0o100_444, 1);
            }
            OPEN => words = vec![0; 4],
            READ => {
                let Some((rng, most)) = &mut late else {
                    continue;
                };
                std::thread::sleep(most.mul_f64(rng.below(1000) as f64 / 1000.0));
                let (offset, size) = (word(48) as usize, word(56) as usize);
                words = vec![0x5a5a_5a5a; size.min(LEN.saturating_sub(offset)) / 4];
            }
            _ => error = -libc::ENOSYS,
        }
        let mut answer = Vec::with_capacity(16 + 4 * words.len());
        answer.extend((16 + 4 * words.len() as u32).to_ne_bytes());
        answer.extend(error.to_ne_bytes());
        answer.extend(&request[8..16]);
        for word in words {
            answer.extend(word.to_ne_bytes());
        }
        match connection.write_all(&answer) {
            Ok(()) => {}
            // The process that asked was killed.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}
