// SPDX-License-Identifier: MIT OR Apache-2.0

//! Asks a running model: on the host through its control socket, in the guest through the
//! [mailbox](crate::mailbox) of any of its functions.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;
use thiserror::Error;

use crate::mailbox::{self, command, offset, state};
use crate::pci;
use crate::topology::ChannelId;

/// Why there is no answer.
#[derive(Debug, Error)]
pub enum Error {
    /// The way to the model does not work.
    #[error("cannot reach the model through {path}")]
    Reach {
        /// Socket or configuration space.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// No function of this machine is a modelled one.
    #[error("no PCI function of this machine is a modelled copy engine (scripts/vm --ioat 2x8)")]
    NoModel,
    /// The model refuses.
    #[error("the model refuses '{request}': {reason}")]
    Refused {
        /// What was asked.
        request: String,
        /// Why it is refused.
        reason: String,
    },
    /// The answer makes no sense.
    #[error("the model's answer is no JSON")]
    Answer(#[from] serde_json::Error),
}

/// A modelled function as the guest's kernel shows it.
#[derive(Clone, Debug, Serialize)]
pub struct Found {
    /// What the model calls it.
    #[serde(serialize_with = "as_text")]
    pub channel: ChannelId,
    /// Domain, bus, slot and function.
    pub address: String,
    /// The NUMA node, -1 when the machine has none.
    pub node: i32,
    /// The driver that is bound, if any.
    pub driver: Option<String>,
    /// The names of its dmaengine channels, `dma0chan0` and so on; one when `ioatdma` is bound.
    pub dma: Vec<String>,
    #[serde(skip)]
    path: PathBuf,
}

fn as_text<S: serde::Serializer>(id: &ChannelId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(id)
}

/// The modelled functions of this machine, by channel. Only root finds any: others may not read so
/// much of the configuration space.
pub fn functions() -> io::Result<Vec<Found>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/sys/bus/pci/devices")? {
        let entry = entry?;
        if let Some(function) = examine(&entry.path(), entry.file_name().to_string_lossy().into()) {
            found.push(function);
        }
    }
    found.sort_by_key(|function| function.channel);
    Ok(found)
}

fn examine(path: &Path, address: String) -> Option<Found> {
    let config = File::open(path.join("config")).ok()?;
    let word = |at: u64| -> Option<[u8; 4]> {
        let mut bytes = [0; 4];
        config.read_exact_at(&mut bytes, at).ok()?;
        Some(bytes)
    };
    let [a, b, c, d] = word(0)?;
    let device = u16::from_le_bytes([c, d]);
    let at = pci::MAILBOX as u64;
    if u16::from_le_bytes([a, b]) != pci::VENDOR
        || !(pci::DEVICE..pci::DEVICE + 8).contains(&device)
        || word(at + offset::SIGNATURE)? != mailbox::SIGNATURE
    {
        return None;
    }
    let [engine, channel, ..] = word(at + offset::IDENTITY)?;
    let node = fs::read_to_string(path.join("numa_node")).ok()?;
    let driver = fs::read_link(path.join("driver"))
        .ok()
        .and_then(|link| Some(link.file_name()?.to_string_lossy().into_owned()));
    let mut dma: Vec<String> = fs::read_dir(path.join("dma"))
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    dma.sort();
    Some(Found {
        channel: ChannelId { engine, channel },
        address,
        node: node.trim().parse().ok()?,
        driver,
        dma,
        path: path.join("config"),
    })
}

enum Way {
    Socket(BufReader<UnixStream>),
    Config(File),
}

/// A way to the model.
pub struct Client {
    way: Way,
    path: PathBuf,
}

impl Client {
    /// Through the control socket.
    pub fn connect(socket: &Path) -> Result<Self, Error> {
        let stream = UnixStream::connect(socket).map_err(|source| Error::Reach {
            path: socket.to_owned(),
            source,
        })?;
        Ok(Self {
            way: Way::Socket(BufReader::new(stream)),
            path: socket.to_owned(),
        })
    }

    /// Through the first modelled function of this machine.
    pub fn in_guest() -> Result<Self, Error> {
        let functions = functions().map_err(|source| Error::Reach {
            path: "/sys/bus/pci/devices".into(),
            source,
        })?;
        Self::of(functions.first().ok_or(Error::NoModel)?)
    }

    /// Through a certain function: [`Client::progress`] is then about its channel.
    pub fn of(function: &Found) -> Result<Self, Error> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&function.path)
            .map_err(|source| Error::Reach {
                path: function.path.clone(),
                source,
            })?;
        Ok(Self {
            way: Way::Config(file),
            path: function.path.clone(),
        })
    }

    /// Executes a request of [`crate::control`] and gives back its answer.
    pub fn ask(&mut self, request: &str) -> Result<Value, Error> {
        let answer = match &mut self.way {
            Way::Socket(stream) => over_socket(stream, request),
            Way::Config(file) => over_config(file, request),
        }
        .map_err(|source| Error::Reach {
            path: self.path.clone(),
            source,
        })?;
        let refused = |reason| Error::Refused {
            request: request.to_owned(),
            reason,
        };
        let answer: Value = serde_json::from_str(&answer.map_err(refused)?)?;
        match answer.get("error").and_then(Value::as_str) {
            Some(reason) => Err(refused(reason.to_owned())),
            None => Ok(answer),
        }
    }

    /// Bytes and copies of this function's channel so far, with four configuration accesses.
    pub fn progress(&self) -> Result<mailbox::Progress, Error> {
        let Way::Config(file) = &self.way else {
            return Err(Error::Reach {
                path: self.path.clone(),
                source: io::Error::other("only a function has a channel of its own"),
            });
        };
        let read = || -> io::Result<mailbox::Progress> {
            let _lock = Lock::take(file)?;
            let long =
                |at| Ok::<_, io::Error>(get(file, at)? as u64 | (get(file, at + 4)? as u64) << 32);
            Ok(mailbox::Progress {
                bytes: long(offset::BYTES)?,
                copies: long(offset::COPIES)?,
            })
        };
        read().map_err(|source| Error::Reach {
            path: self.path.clone(),
            source,
        })
    }
}

type Answer = Result<String, String>;

fn over_socket(stream: &mut BufReader<UnixStream>, request: &str) -> io::Result<Answer> {
    writeln!(stream.get_mut(), "{}", request.replace('\n', " "))?;
    let mut answer = String::new();
    if stream.read_line(&mut answer)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Ok(answer))
}

fn over_config(file: &File, request: &str) -> io::Result<Answer> {
    let _lock = Lock::take(file)?;
    put(file, offset::COMMAND, command::BEGIN)?;
    for word in request.as_bytes().chunks(4) {
        let mut bytes = [0; 4];
        bytes[..word.len()].copy_from_slice(word);
        put(file, offset::DATA, u32::from_le_bytes(bytes))?;
    }
    put(file, offset::LENGTH, request.len() as u32)?;
    put(file, offset::COMMAND, command::EXECUTE)?;
    let state = get(file, offset::COMMAND)?;
    let length = get(file, offset::LENGTH)? as usize;
    let mut answer = Vec::with_capacity(length + 4);
    while answer.len() < length {
        answer.extend_from_slice(&get(file, offset::DATA)?.to_le_bytes());
    }
    answer.truncate(length);
    let answer = String::from_utf8(answer).map_err(io::Error::other)?;
    match state {
        state::DONE => Ok(Ok(answer)),
        state::REFUSED => Ok(Err(answer)),
        state => Err(io::Error::other(format!("the mailbox is in state {state}"))),
    }
}

fn get(file: &File, at: u64) -> io::Result<u32> {
    let mut bytes = [0; 4];
    file.read_exact_at(&mut bytes, pci::MAILBOX as u64 + at)?;
    Ok(u32::from_le_bytes(bytes))
}

fn put(file: &File, at: u64, value: u32) -> io::Result<()> {
    file.write_all_at(&value.to_le_bytes(), pci::MAILBOX as u64 + at)
}

/// Keeps other clients away from a mailbox.
struct Lock<'a>(&'a File);

impl<'a> Lock<'a> {
    fn take(file: &'a File) -> io::Result<Self> {
        // SAFETY: the descriptor is open as long as the file is borrowed.
        while unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } != 0 {
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        Ok(Self(file))
    }
}

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        // SAFETY: the descriptor is open as long as the file is borrowed.
        unsafe { libc::flock(self.0.as_raw_fd(), libc::LOCK_UN) };
    }
}
