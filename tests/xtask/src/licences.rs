// SPDX-License-Identifier: MIT OR Apache-2.0

//! `scripts/package`: the licences of the crates that are linked into what it packs, which have to
//! be handed on with it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::{Verdict, read};

/// Prints the licences of all crates of registries that these packages of the workspace are linked
/// with on a platform.
pub fn print(platform: &str, packages: &[&str]) -> Verdict {
    let mut cargo = Command::new("cargo");
    cargo
        .args(["metadata", "--format-version=1", "--filter-platform"])
        .arg(platform)
        .stderr(Stdio::inherit());
    let output = cargo
        .output()
        .map_err(|error| format!("cargo metadata: {error}"))?;
    let metadata = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("what cargo metadata says: {error}"))?;
    let mut crates = Vec::new();
    for linked in linked(&metadata, packages)? {
        let files = files(&linked.directory)?;
        crates.push((linked, files));
    }
    print!("{}", text(crates));
    Ok(true)
}

/// A crate of a registry.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Linked {
    /// With its version.
    name: String,
    /// The expression in its manifest.
    licence: String,
    directory: PathBuf,
}

/// The crates of registries that packages are linked with, sorted. What runs in the compiler is not
/// linked.
fn linked(metadata: &Value, packages: &[&str]) -> Result<BTreeSet<Linked>, String> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let [described, resolved] = [&metadata["packages"], &metadata["resolve"]["nodes"]].map(|all| {
        let by_id = list(all).into_iter().filter_map(|each| {
            let id = each["id"].as_str()?.to_owned();
            Some((id, each))
        });
        by_id.collect::<BTreeMap<String, Value>>()
    });
    let mut open = Vec::new();
    for package in packages {
        let found = described.iter().find(|(_, each)| each["name"] == *package);
        let (id, _) = found.ok_or_else(|| format!("no package {package} in the workspace"))?;
        open.push(id.clone());
    }
    let (mut seen, mut crates) = (BTreeSet::new(), BTreeSet::new());
    while let Some(id) = open.pop() {
        let (Some(package), Some(node)) = (described.get(&id), resolved.get(&id)) else {
            return Err(format!("cargo metadata does not describe {id}"));
        };
        let kinds = list(&package["targets"]);
        let mut kinds = kinds.iter().flat_map(|target| list(&target["kind"]));
        if kinds.any(|kind| kind == "proc-macro") || !seen.insert(id) {
            continue;
        }
        let dependencies = list(&node["deps"]);
        let linked = dependencies.iter().filter(|dependency| {
            // Neither `build` nor `dev`.
            list(&dependency["dep_kinds"])
                .iter()
                .any(|kind| kind["kind"].is_null())
        });
        open.extend(
            linked
                .filter_map(|each| each["pkg"].as_str())
                .map(str::to_owned),
        );
        if package["source"].is_null() {
            continue;
        }
        let said = |key: &str| package[key].as_str().unwrap_or_default().to_owned();
        let manifest = PathBuf::from(said("manifest_path"));
        crates.insert(Linked {
            name: format!("{} {}", said("name"), said("version")),
            licence: said("license"),
            directory: manifest.parent().unwrap_or(Path::new("")).to_owned(),
        });
    }
    Ok(crates)
}

/// The files with licences in a crate's directory and below, where fonts and the like have theirs:
/// their names and texts.
fn files(directory: &Path) -> Result<Vec<(String, String)>, String> {
    const NAMES: [&str; 6] = [
        "LICENSE",
        "LICENCE",
        "COPYING",
        "COPYRIGHT",
        "NOTICE",
        "UNLICENSE",
    ];
    let (mut found, mut open) = (Vec::new(), vec![directory.to_owned()]);
    while let Some(directory) = open.pop() {
        let failed = |error| format!("{}: {error}", directory.display());
        for entry in std::fs::read_dir(&directory).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let name = path.file_name().unwrap_or_default();
            let name = name.to_string_lossy().to_uppercase();
            if path.is_dir() {
                open.push(path);
            } else if NAMES.iter().any(|word| name.starts_with(word)) {
                found.push((name, read(&path)?));
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Each text once, below the crates that have it. Of a crate that leaves the choice, the Apache
/// licence is left out where there is the MIT one.
fn text(crates: impl IntoIterator<Item = (Linked, Vec<(String, String)>)>) -> String {
    let mut by_text: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (linked, files) in crates {
        let name = format!("{} ({})", linked.name, linked.licence);
        let has_choice = linked.licence.contains(" OR ") || linked.licence.contains('/');
        let has_mit = has_choice && files.iter().any(|(file, _)| file.contains("MIT"));
        let mut texts: Vec<_> = files
            .into_iter()
            .filter(|(file, _)| !(has_mit && file.contains("APACHE")))
            .map(|(_, text)| text.trim().to_owned())
            .collect();
        if texts.is_empty() {
            texts.push("(The crate has no file with its licence.)".to_owned());
        }
        for text in texts {
            by_text.entry(text).or_default().push(name.clone());
        }
    }
    let mut groups: Vec<_> = by_text
        .into_iter()
        .map(|(text, names)| (names, text))
        .collect();
    groups.sort();
    let line = "-".repeat(80);
    let mut all = "Crates that libcopy is linked with, and their licences.\n".to_owned();
    for (names, text) in groups {
        all.push_str(&format!("\n{line}\n{}\n\n{text}\n", names.join("\n")));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn package(id: &str, source: Option<&str>, kind: &str) -> Value {
        json!({
            "id": id, "name": id, "version": "1.0", "license": "MIT OR Apache-2.0", "source": source,
            "manifest_path": format!("/crates/{id}/Cargo.toml"), "targets": [{"kind": [kind]}],
        })
    }

    fn node(id: &str, dependencies: &[(&str, Option<&str>)]) -> Value {
        let dependencies = dependencies
            .iter()
            .map(|(id, kind)| json!({"pkg": id, "dep_kinds": [{"kind": kind}]}));
        json!({"id": id, "deps": dependencies.collect::<Vec<_>>()})
    }

    #[test]
    fn what_is_linked_is_found_through_own_crates() {
        let metadata = json!({
            "packages": [
                package("tool", None, "bin"), package("own", None, "lib"),
                package("far", Some("registry"), "lib"), package("macros", Some("registry"), "proc-macro"),
                package("of-macros", Some("registry"), "lib"), package("tests", Some("registry"), "lib"),
            ],
            "resolve": {"nodes": [
                node("tool", &[("own", None), ("tests", Some("dev")), ("macros", None)]),
                node("own", &[("far", None)]), node("far", &[]),
                node("macros", &[("of-macros", None)]), node("of-macros", &[]), node("tests", &[]),
            ]},
        });
        let found = linked(&metadata, &["tool"]).unwrap();
        let found: Vec<_> = found.iter().map(|each| each.name.as_str()).collect();
        assert_eq!(found, ["far 1.0"]);
        assert!(linked(&metadata, &["nothing"]).is_err());
    }

    #[test]
    fn each_text_stands_once() {
        let linked = |name: &str, licence: &str| Linked {
            name: name.to_owned(),
            licence: licence.to_owned(),
            directory: PathBuf::new(),
        };
        let file = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        let both = || {
            vec![
                file("LICENSE-APACHE", "apache"),
                file("LICENSE-MIT", "mit\n"),
            ]
        };
        let said = text([
            (linked("a 1.0", "MIT OR Apache-2.0"), both()),
            (linked("b 2.0", "MIT/Apache-2.0"), both()),
            (linked("c 3.0", "MIT AND Apache-2.0"), both()),
            (linked("d 4.0", "MIT"), Vec::new()),
        ]);
        assert_eq!(said.matches("mit\n").count(), 1, "{said}");
        assert!(
            said.contains("a 1.0 (MIT OR Apache-2.0)\nb 2.0 (MIT/Apache-2.0)\nc 3.0 "),
            "{said}"
        );
        assert!(
            said.contains("\nc 3.0 (MIT AND Apache-2.0)\n\napache\n"),
            "{said}"
        );
        assert!(
            said.contains("d 4.0 (MIT)\n\n(The crate has no file"),
            "{said}"
        );
    }
}
