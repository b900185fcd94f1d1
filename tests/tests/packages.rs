// SPDX-License-Identifier: MIT OR Apache-2.0

//! What `cargo package` would pack of each crate is all that it needs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use toml::{Table, Value};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// What cargo adds to a package; the README is that of the workspace.
const ADDED: [&str; 4] = [
    ".cargo_vcs_info.json",
    "Cargo.lock",
    "Cargo.toml.orig",
    "README.md",
];

/// The crates whose dependencies take minutes to compile. They are checked as well if
/// `LIBCOPY_TEST_PACKAGES` is `all`.
const LARGE: [&str; 3] = ["libcopy-measure", "libcopy-bench", "libcopy-cli"];

fn cargo(directory: &Path) -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(directory).arg("--offline");
    cargo
}

fn said_by(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}\n{errors}");
    said
}

fn manifest(directory: &Path) -> Table {
    let path = directory.join("Cargo.toml");
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    text.parse()
        .unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// A crate that can be published.
struct Package {
    name: String,
    directory: PathBuf,
    manifest: Table,
    /// The packed files, relative to the directory, without those that cargo adds.
    files: BTreeSet<PathBuf>,
}

fn packages() -> Vec<Package> {
    let root = Path::new(ROOT);
    let members = manifest(root)["workspace"]["members"].clone();
    let members = members.as_array().expect("a list of members").iter();
    let packages = members.filter_map(|member| {
        let directory = root.join(member.as_str().expect("members are paths"));
        let manifest = manifest(&directory);
        let package = &manifest["package"];
        if package.get("publish") == Some(&Value::Boolean(false)) {
            return None;
        }
        let name = package["name"].as_str().expect("a name").to_owned();
        let listed = said_by(cargo(root).args(["package", "--list", "--allow-dirty", "-p", &name]));
        let files = listed.lines().filter(|file| !ADDED.contains(file));
        Some(Package {
            files: files.map(PathBuf::from).collect(),
            name,
            directory,
            manifest,
        })
    });
    packages.collect()
}

/// The literal of each `include_str!("..")`, `include_bytes!("..")`, `include!("..")` in a source,
/// outside of its unit tests.
fn included(source: &str) -> Vec<&str> {
    let tests = source.find("\n#[cfg(test)]").unwrap_or(source.len());
    let source = &source[..tests];
    let calls = ["include_str!(\"", "include_bytes!(\"", "include!(\""];
    let literals = calls.iter().flat_map(|call| {
        source.match_indices(call).filter_map(|(at, call)| {
            let rest = &source[at + call.len()..];
            rest.split_once('"').map(|(literal, _)| literal)
        })
    });
    literals.collect()
}

#[test]
fn included_files_are_packed() {
    let mut seen = 0;
    for package in packages() {
        let sources = package
            .files
            .iter()
            .filter(|file| file.extension().is_some_and(|e| e == "rs"));
        for file in sources {
            let path = package.directory.join(file);
            let source = fs::read_to_string(&path).expect("a packed file is there");
            for literal in included(&source) {
                let wanted = path.parent().expect("a directory").join(literal);
                let is_packed = package.files.iter().any(|file| {
                    let packed = package.directory.join(file).canonicalize();
                    packed.is_ok_and(|packed| {
                        wanted.canonicalize().is_ok_and(|wanted| packed == wanted)
                    })
                });
                assert!(
                    is_packed,
                    "{}: {literal} is not in the package {}",
                    path.display(),
                    package.name
                );
                seen += 1;
            }
        }
    }
    assert!(seen > 0, "nothing includes a file any more");
}

/// The dependencies on sister crates lead to the directories beside this one; those of tests are
/// left out.
fn flattened(mut manifest: Table) -> Table {
    manifest.remove("dev-dependencies");
    if let Some(Value::Table(dependencies)) = manifest.get_mut("dependencies") {
        for (name, dependency) in dependencies.iter_mut() {
            if let Some(path) = dependency.get_mut("path") {
                *path = Value::String(format!("../{name}"));
            }
        }
    }
    manifest
}

/// Each crate's packed files in a directory of its own, beside the others in an empty one: what a
/// package takes from elsewhere in the repository is not there.
#[test]
fn packed_files_compile_alone() {
    let apart = Path::new(env!("CARGO_TARGET_TMPDIR")).join("packages");
    let _ = fs::remove_dir_all(&apart);
    let all = std::env::var_os("LIBCOPY_TEST_PACKAGES").is_some_and(|which| which == "all");
    let packages = packages();
    let wanted = packages
        .iter()
        .filter(|package| all || !LARGE.contains(&&*package.name));
    let mut members = Vec::new();
    for package in wanted {
        let directory = apart.join(&package.name);
        for file in &package.files {
            let to = directory.join(file);
            fs::create_dir_all(to.parent().expect("a directory")).expect("can create a directory");
            fs::copy(package.directory.join(file), to).expect("can copy a file");
        }
        let manifest = toml::to_string(&flattened(package.manifest.clone())).expect("a table");
        fs::write(directory.join("Cargo.toml"), manifest).expect("can write a file");
        members.push(Value::String(package.name.clone()));
    }
    assert!(members.len() > 7, "{members:?}");
    let mut root = manifest(Path::new(ROOT));
    let workspace = root["workspace"].as_table_mut().expect("a workspace");
    workspace.insert("members".to_owned(), Value::Array(members));
    workspace.remove("exclude");
    let root = toml::to_string(&root).expect("a table");
    fs::write(apart.join("Cargo.toml"), root).expect("can write a file");
    // The versions that are there already.
    fs::copy(Path::new(ROOT).join("Cargo.lock"), apart.join("Cargo.lock"))
        .expect("can copy a file");
    // What was compiled for the workspace is used again.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent();
    let target = target.expect("cargo's layout");
    said_by(
        cargo(&apart)
            .args(["check", "--quiet", "--workspace"])
            .env("CARGO_TARGET_DIR", target),
    );
    fs::remove_dir_all(&apart).expect("can remove a directory");
}

/// A version, a description and whatever else a registry asks for.
#[test]
fn packages_are_described() {
    for package in packages() {
        let table = package.manifest["package"].as_table().expect("a table");
        for key in [
            "description",
            "documentation",
            "keywords",
            "categories",
            "license",
            "readme",
            "rust-version",
        ] {
            assert!(table.contains_key(key), "{}: no {key}", package.name);
        }
        // A dependency without a version cannot be resolved by those who have no repository.
        let dependencies = package
            .manifest
            .get("dependencies")
            .and_then(Value::as_table);
        let dependencies: BTreeMap<_, _> = dependencies.into_iter().flatten().collect();
        for (name, dependency) in dependencies {
            let is_versioned = dependency.is_str() || dependency.get("version").is_some();
            assert!(is_versioned, "{}: {name} without a version", package.name);
        }
    }
}
