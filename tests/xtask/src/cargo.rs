// SPDX-License-Identifier: MIT OR Apache-2.0

//! What `cargo build --message-format=json` says that it has built.

use std::path::PathBuf;

use serde_json::Value;

/// The files that cargo has built or found up to date.
#[derive(Debug)]
pub struct Artifacts(Vec<Value>);

impl Artifacts {
    /// Reads cargo's messages, one a line; other lines are skipped.
    pub fn read(messages: &str) -> Artifacts {
        let values = messages
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        let artifacts = values.filter(|value: &Value| value["reason"] == "compiler-artifact");
        Artifacts(artifacts.collect())
    }

    /// Executables of a kind: `bin` or `test`. The unit tests of a `bin` are none.
    pub fn executables(&self, kind: &str) -> impl Iterator<Item = PathBuf> {
        let is_harness = kind == "test";
        let of_kind = self.0.iter().filter(move |artifact| {
            let kinds = artifact["target"]["kind"].as_array();
            kinds.is_some_and(|kinds| kinds.iter().any(|value| value == kind))
                && artifact["profile"]["test"] == is_harness
        });
        of_kind.filter_map(|artifact| Some(artifact["executable"].as_str()?.into()))
    }

    /// The file of this name, for example a shared library.
    pub fn file(&self, name: &str) -> Option<PathBuf> {
        let files = self
            .0
            .iter()
            .filter_map(|artifact| artifact["filenames"].as_array());
        let mut paths = files
            .flatten()
            .filter_map(|file| Some(PathBuf::from(file.as_str()?)));
        paths.find(|path| path.file_name().is_some_and(|file| file == name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn artifacts_are_found_by_kind_and_by_name() {
        let built = Artifacts::read(include_str!("samples/cargo.json"));
        let bins: Vec<_> = built.executables("bin").collect();
        assert_eq!(bins, [PathBuf::from("/target/debug/guest-suite")]);
        let tests: Vec<_> = built.executables("test").collect();
        assert_eq!(
            tests,
            [PathBuf::from(
                "/target/debug/deps/collectives-4f8f7045cdc28b03"
            )]
        );
        assert_eq!(
            built.file("libcopy.so"),
            Some("/target/debug/libcopy.so".into())
        );
        assert_eq!(built.file("libcopy_mpi.so"), None);
    }

    #[test]
    fn what_is_cut_off_names_nothing() {
        let line = include_str!("samples/cargo.json").lines().next().unwrap();
        let built = Artifacts::read(&line[..line.len() - 20]);
        assert_eq!(built.executables("bin").count(), 0);
        assert_eq!(Artifacts::read("").file("libcopy.so"), None);
    }
}
