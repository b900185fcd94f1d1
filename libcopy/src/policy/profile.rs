// SPDX-License-Identifier: MIT OR Apache-2.0

//! What `libcopy tune` has measured, in a file.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Mutex;

use serde::{Deserialize, Serialize};

use super::contention::Contention;
use super::thresholds::Policy;
use crate::config;
use crate::error::{Error, Result};
use crate::lock::lock;
use crate::refusal::without_signal;
use crate::topology::Topology;

/// What was measured on a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// [`crate::topology::Topology::machine`] of where it was measured.
    pub machine: String,
    /// The policy that follows.
    pub policy: Policy,
}

/// What a profile's file has of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// The thresholds.
    pub policy: Option<Policy>,
    /// What was measured with several readers.
    pub contention: Option<Contention>,
}

/// A profile's path, and what was found there.
type Read = (Option<PathBuf>, Found);

/// What [`Profile::current`] has read.
static CURRENT: Mutex<Option<Read>> = Mutex::new(None);

/// The profile file: one policy per machine, as a home directory may serve several.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProfileFile {
    #[serde(default)]
    machines: BTreeMap<String, Policy>,
    /// By machine, too.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    rdma: BTreeMap<String, RdmaProfile>,
    /// By machine, too.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    contention: BTreeMap<String, Contention>,
}

/// What `libcopy tune --rdma` has measured on a machine. This crate keeps it; the thresholds are a
/// text that `libcopy_rdma::Thresholds` writes and reads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RdmaProfile {
    /// Names of the devices.
    pub devices: String,
    /// Whether they are emulated, as soft RoCE is: then the thresholds say nothing of a card.
    pub is_emulated: bool,
    /// The thresholds.
    pub thresholds: String,
}

impl RdmaProfile {
    /// What was measured on a machine, if there is anything.
    ///
    /// # Errors
    ///
    /// [`Error::Profile`] if the file is there and cannot be read.
    pub fn load(machine: &str) -> Result<Option<Self>> {
        Ok(open()?.and_then(|mut file| file.rdma.remove(machine)))
    }

    /// The thresholds, in the type that reads their text.
    ///
    /// # Errors
    ///
    /// [`Error::Profile`] for a text that is none.
    pub fn thresholds<T: FromStr<Err: Display>>(&self) -> Result<T> {
        self.thresholds.parse().map_err(|error| Error::Profile {
            path: Profile::path().unwrap_or_default().display().to_string(),
            why: format!("{error}; run `libcopy tune --rdma` again, or delete it"),
        })
    }

    /// Writes this to [`Profile::path`], beside what else the file has; returns the path.
    ///
    /// # Errors
    ///
    /// As for [`Profile::save`].
    pub fn save(&self, machine: &str) -> Result<PathBuf> {
        change(|file| {
            file.rdma.insert(machine.to_owned(), self.clone());
        })
    }
}

impl Contention {
    /// What was measured on a machine, if there is anything.
    ///
    /// # Errors
    ///
    /// [`Error::Profile`] if the file is there and cannot be read.
    pub fn load(machine: &str) -> Result<Option<Self>> {
        Ok(open()?.and_then(|mut file| file.contention.remove(machine)))
    }

    /// Writes this to [`Profile::path`], beside what else the file has; returns the path.
    ///
    /// # Errors
    ///
    /// As for [`Profile::save`], and those of [`Contention::checked`].
    pub fn save(&self, machine: &str) -> Result<PathBuf> {
        let checked = self.checked()?;
        change(|file| {
            file.contention.insert(machine.to_owned(), checked);
        })
    }
}

impl Profile {
    /// Where profiles are kept; `None` if there is no home, or with `LIBCOPY_PROFILE=none`.
    pub fn path() -> Option<PathBuf> {
        if let Some(path) = config::PROFILE.value() {
            return (path != "none").then(|| PathBuf::from(path));
        }
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let directory = match variable("XDG_CONFIG_HOME") {
            Some(directory) => PathBuf::from(directory),
            None => PathBuf::from(variable("HOME")?).join(".config"),
        };
        Some(directory.join("libcopy/profile.toml"))
    }

    /// The profile of a machine, if there is one.
    ///
    /// # Errors
    ///
    /// [`Error::Profile`] if the file is there and cannot be read.
    pub fn load(machine: &str) -> Result<Option<Self>> {
        let policy = open()?.and_then(|mut file| file.machines.remove(machine));
        Ok(policy.map(|policy| Profile {
            machine: machine.to_owned(),
            policy,
        }))
    }

    /// The machines that the file has profiles of.
    ///
    /// # Errors
    ///
    /// [`Error::Profile`] if the file is there and cannot be read.
    pub fn machines() -> Result<Vec<String>> {
        let machines = open()?.map(|file| file.machines.into_keys().collect());
        Ok(machines.unwrap_or_default())
    }

    /// Whether [`Profile::save`] and [`RdmaProfile::save`] could write now, tried with a file
    /// beside theirs: to be asked before what is to be saved is measured.
    ///
    /// # Errors
    ///
    /// As for [`Profile::save`].
    pub fn check_place() -> Result<()> {
        let (path, _) = place()?;
        let directory = path.parent().unwrap_or(Path::new("."));
        try_directory(directory).map_err(|error| wrong(&path, error.to_string()))
    }

    /// What the file has of this machine, read once per process and path.
    pub(super) fn current() -> Result<Found> {
        let path = Self::path();
        let mut current = lock(&CURRENT);
        if let Some((_, found)) = current.as_ref().filter(|(known, _)| *known == path) {
            return Ok(found.clone());
        }
        let machine = Topology::current().machine();
        let found = open()?.map_or_else(Found::default, |mut file| Found {
            policy: file.machines.remove(&machine),
            contention: file.contention.remove(&machine),
        });
        *current = Some((path, found.clone()));
        Ok(found)
    }

    /// Writes the profile to [`Profile::path`], beside those of other machines; returns the path.
    ///
    /// # Errors
    ///
    /// [`Error::Profile`] if there is no place for it, or the file cannot be read or written.
    pub fn save(&self) -> Result<PathBuf> {
        change(|file| {
            let policy = self.policy.clone();
            file.machines.insert(self.machine.clone(), policy);
        })
    }
}

/// The file, if there is one.
fn open() -> Result<Option<ProfileFile>> {
    let Some(path) = Profile::path() else {
        return Ok(None);
    };
    // One that cannot be opened now, for want of descriptors or memory, is as good as none: it need
    // not even exist. So is another user's: HOME may still be that of who started the program.
    let is_named = config::PROFILE.value().is_some();
    let is_no_profile = |error: std::io::Error| {
        is_none(&error) || !is_named && error.kind() == std::io::ErrorKind::PermissionDenied
    };
    if fs::File::open(&path).is_err_and(is_no_profile) {
        return Ok(None);
    }
    read(&path).map(Some)
}

/// Whether files can be made in a directory, which is made itself if it is not there.
pub(crate) fn try_directory(directory: &Path) -> std::io::Result<()> {
    fs::create_dir_all(directory)?;
    let trial = directory.join(format!(".libcopy-{}", std::process::id()));
    // With a byte: a full file system still makes empty files.
    let written = without_signal(|| fs::write(&trial, "\n"));
    let _ = fs::remove_file(&trial);
    written
}

/// An error about a file of profiles.
fn wrong(path: &Path, why: String) -> Error {
    Error::Profile {
        path: path.display().to_string(),
        why,
    }
}

/// Where the file is or is to be, and what it has.
fn place() -> Result<(PathBuf, ProfileFile)> {
    let path = Profile::path().ok_or_else(|| Error::Profile {
        path: config::PROFILE.or_default(),
        why: "no place to write to: set HOME, XDG_CONFIG_HOME or LIBCOPY_PROFILE".to_owned(),
    })?;
    let file = read(&path)?;
    Ok((path, file))
}

/// Writes the file anew with a change; returns its path.
fn change(change: impl FnOnce(&mut ProfileFile)) -> Result<PathBuf> {
    let (path, mut file) = place()?;
    let wrong = |why| wrong(&path, why);
    change(&mut file);
    let text = toml::to_string(&file).map_err(|e| wrong(e.to_string()))?;
    let text = format!("# Written by `libcopy tune`; may be edited or deleted.\n{text}");
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory).map_err(|e| wrong(e.to_string()))?;
    }
    // A process that reads at the same time sees the old file or the new one.
    let fresh = path.with_extension(format!("toml.{}", std::process::id()));
    without_signal(|| fs::write(&fresh, text))
        .and_then(|()| fs::rename(&fresh, &path))
        .map_err(|e| wrong(e.to_string()))?;
    *lock(&CURRENT) = None;
    Ok(path)
}

fn read(path: &Path) -> Result<ProfileFile> {
    let wrong = |why| wrong(path, why);
    let again = |why: String| wrong(format!("{why}; run `libcopy tune` again, or delete it"));
    match fs::read_to_string(path) {
        Ok(text) => toml::from_str(&text).map_err(|e| again(e.to_string())),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(ProfileFile::default()),
        Err(e) if e.kind() == std::io::ErrorKind::InvalidData => Err(again(e.to_string())),
        Err(e) => Err(wrong(e.to_string())),
    }
}

/// Whether an error says that there is no profile, or nothing about it.
fn is_none(error: &std::io::Error) -> bool {
    use libc::{EMFILE, ENFILE, ENOMEM, ENOTDIR};
    error.kind() == std::io::ErrorKind::NotFound
        || error
            .raw_os_error()
            .is_some_and(|code| [EMFILE, ENFILE, ENOMEM, ENOTDIR].contains(&code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_survive_the_file_format() {
        let policy = Policy::built_in(&Topology::read());
        let machines = BTreeMap::from([("a machine, 2 cores".to_owned(), policy.clone())]);
        let text = toml::to_string(&file_of(machines)).unwrap();
        let read: ProfileFile = toml::from_str(&text).unwrap();
        assert_eq!(read.machines["a machine, 2 cores"], policy);
        assert!(toml::from_str::<ProfileFile>("nonsense = 1").is_err());
    }

    fn file_of(machines: BTreeMap<String, Policy>) -> ProfileFile {
        ProfileFile {
            machines,
            ..ProfileFile::default()
        }
    }

    #[test]
    fn rdma_thresholds_are_kept_beside_the_policy() {
        let policy = Policy::built_in(&Topology::read());
        let mut file = file_of(BTreeMap::from([("one".to_owned(), policy.clone())]));
        // Files without the section are as before.
        assert!(!toml::to_string(&file).unwrap().contains("rdma"));
        let rdma = RdmaProfile {
            devices: "rxe_a rxe_b".to_owned(),
            is_emulated: true,
            thresholds: "umr max_iovs=7 min_block=9\n".to_owned(),
        };
        file.rdma.insert("one".to_owned(), rdma.clone());
        let text = toml::to_string(&file).unwrap();
        let read: ProfileFile = toml::from_str(&text).unwrap();
        assert_eq!(read.rdma["one"], rdma);
        assert_eq!(read.machines["one"], policy);
        let text = rdma.thresholds::<String>().unwrap();
        assert_eq!(text, rdma.thresholds);
        let wrong = rdma.thresholds::<u32>().unwrap_err().to_string();
        assert!(wrong.contains("libcopy tune --rdma"), "{wrong}");
    }

    #[test]
    fn what_several_readers_take_is_kept_beside_the_policy() {
        let policy = Policy::built_in(&Topology::read());
        let mut file = file_of(BTreeMap::from([("one".to_owned(), policy.clone())]));
        assert!(!toml::to_string(&file).unwrap().contains("contention"));
        let measured = Contention {
            line_ns: Some(31),
            ..Contention::default()
        };
        file.contention.insert("one".to_owned(), measured);
        let text = toml::to_string(&file).unwrap();
        let read: ProfileFile = toml::from_str(&text).unwrap();
        assert_eq!(read.contention["one"], measured);
        assert_eq!(read.machines["one"], policy);
    }

    #[test]
    fn profiles_with_former_names_are_read() {
        let policy = Policy::built_in(&Topology::read());
        let machines = BTreeMap::from([("a machine".to_owned(), policy.clone())]);
        let text = toml::to_string(&file_of(machines)).unwrap();
        let former = text
            .replace("dedicated", "spacious")
            .replace("oversubscribed", "crowded");
        assert_ne!(former, text);
        let read: ProfileFile = toml::from_str(&former).unwrap();
        assert_eq!(read.machines["a machine"], policy);
    }
}
