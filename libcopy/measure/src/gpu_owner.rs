// SPDX-License-Identifier: MIT OR Apache-2.0

//! Another process that has GPU memory, for what is reached through CUDA IPC.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Args;
use libcopy_gpu::peer::{Exported, Probe, export};
use libcopy_gpu::{Buffer, Device, Driver, copy};

/// Arguments of the program that [`serve`]s.
#[derive(Args, Debug)]
pub struct OwnerArgs {
    /// Number of the GPU
    #[arg(long, default_value_t = 0)]
    device: usize,
}

/// Does what standard input says: `probe` and `alloc BYTES` are answered with bytes in hexadecimal,
/// errors with `error`.
///
/// # Errors
///
/// No driver, no such GPU, a request that is none, or pipes that break.
pub fn serve(args: &OwnerArgs) -> Result<()> {
    let driver = Driver::load()?;
    let devices = Device::all(driver)?;
    let device = devices.get(args.device).context("no such GPU")?;
    let context = device.primary_context(driver)?;
    let near = context.near();
    let mut buffers = Vec::new();
    let mut probes = Vec::new();
    for line in std::io::stdin().lines() {
        let line = line?;
        let answer = match line.split_once(' ') {
            None if line == "probe" => Probe::offer(driver, &near).map(|probe| {
                let message = hex(probe.message());
                probes.push(probe);
                message
            }),
            Some(("alloc", bytes)) => {
                // The last one is not needed any more.
                buffers.clear();
                let bytes: usize = bytes.parse()?;
                let mut fill = || {
                    let buffer = Buffer::device(driver, &near, bytes)?;
                    let content = content(bytes);
                    // SAFETY: as many bytes on both sides.
                    unsafe { copy(driver, buffer.address(), content.as_ptr() as u64, bytes) }?;
                    let exported = export(driver, buffer.address())?;
                    buffers.push(buffer);
                    Ok(hex(&exported.to_bytes()))
                };
                fill()
            }
            _ => bail!("{line:?} is neither probe nor alloc BYTES"),
        };
        match answer {
            Ok(answer) => println!("{answer}"),
            Err(error) => println!("error {error}"),
        }
        std::io::stdout().flush()?;
    }
    Ok(())
}

/// Bytes that look random, the same for the same length everywhere.
pub fn content(bytes: usize) -> Vec<u8> {
    // A period that no layout has.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let unit: Vec<u8> = (0..bytes.min(1_000_003))
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 56) as u8
        })
        .collect();
    let mut all = Vec::with_capacity(bytes);
    while all.len() < bytes {
        let rest = (bytes - all.len()).min(unit.len());
        all.extend_from_slice(&unit[..rest]);
    }
    all
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The process that [`serve`]s, as long as this lives.
pub struct Owner {
    process: Child,
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Owner {
    /// Starts one on a GPU: this program again, with the words that lead to [`serve`].
    ///
    /// # Errors
    ///
    /// The process cannot be started.
    pub fn start(words: &[&str], device: usize) -> Result<Owner> {
        let mut process = Command::new(std::env::current_exe()?)
            .args(words)
            .args(["--device", &device.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start another process")?;
        Ok(Owner {
            requests: process.stdin.take(),
            answers: BufReader::new(process.stdout.take().context("no pipe")?),
            process,
        })
    }

    fn tell<const N: usize>(&mut self, request: &str) -> Result<[u8; N]> {
        let requests = self.requests.as_mut().context("no pipe")?;
        writeln!(requests, "{request}").context("the other process has ended")?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        let answer = answer.trim_end();
        if let Some(why) = answer.strip_prefix("error ") {
            bail!("{why}");
        }
        ensure!(
            answer.len() == 2 * N && answer.is_ascii(),
            "the other process answers {answer:?}"
        );
        let mut bytes = [0; N];
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&answer[2 * i..2 * i + 2], 16)?;
        }
        Ok(bytes)
    }

    /// Tries whether this process can read its memory in the context that `near` is in.
    ///
    /// # Errors
    ///
    /// It cannot, or the other process has ended.
    pub fn probe(&mut self, driver: &Driver, near: &libcopy_gpu::Pointer) -> Result<()> {
        let message = self.tell("probe")?;
        Probe::try_out(driver, near, &message).map_err(|error| anyhow!("{error}"))
    }

    /// `bytes` bytes of memory with [`content`].
    ///
    /// # Errors
    ///
    /// There is no such memory, or the other process has ended.
    pub fn allocate(&mut self, bytes: usize) -> Result<Exported> {
        let answer = self.tell(&format!("alloc {bytes}"))?;
        Ok(Exported::from_bytes(&answer)?)
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // It ends with its standard input.
        self.requests = None;
        let _ = self.process.wait();
    }
}
