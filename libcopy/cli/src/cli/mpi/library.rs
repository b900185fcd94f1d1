// SPDX-License-Identifier: MIT OR Apache-2.0

//! Where `libcopy_mpi.so` is, and what the ranks' environment must say to have it loaded.

use super::launcher::Variable;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};

/// The file's name.
pub const NAME: &str = "libcopy_mpi.so";

/// Directories with the library, seen from the tool's own: beside it, where an installation has it,
/// and where `scripts/build-mpi` puts it.
const PLACES: [&str; 5] = [
    ".",
    "../lib",
    "../lib64",
    "../lib/x86_64-linux-gnu",
    "../portable",
];

/// The library: the one that was asked for, or the first that is found.
///
/// # Errors
///
/// There is none; the text names the places.
pub fn find(asked: Option<&Path>) -> Result<PathBuf> {
    if let Some(path) = asked {
        if !path.is_file() {
            bail!("--library: {} is no file", path.display());
        }
        return absolute(path);
    }
    let tool = std::env::current_exe().context("finding this program")?;
    let directory = tool.parent().unwrap_or(Path::new("/"));
    let candidates = PLACES.map(|place| directory.join(place).join(NAME));
    match candidates.iter().find(|path| path.is_file()) {
        Some(path) => absolute(path),
        None => {
            let looked: Vec<String> = candidates
                .iter()
                .map(|path| format!("\n    {}", path.display()))
                .collect();
            bail!(
                "{NAME} is not found; name it with --library, or build it with scripts/build-mpi. \
                 Looked for it as{}",
                looked.concat()
            )
        }
    }
}

fn absolute(path: &Path) -> Result<PathBuf> {
    path.canonicalize()
        .with_context(|| format!("finding {}", path.display()))
}

/// The variables of ranks, behind what this process's environment has.
///
/// # Errors
///
/// As for [`variables`].
pub fn variables_here(library: &Path) -> Result<Vec<Variable>> {
    variables(library, |name| std::env::var(name).ok())
}

/// The variables that have the dynamic linker preload the library, behind what it preloads already.
/// `LD_PRELOAD` is split at spaces and colons, and `LD_LIBRARY_PATH` at colons and semicolons
/// (ld.so(8)), so that a path with spaces goes into the latter.
///
/// # Errors
///
/// The path cannot be written in either.
fn variables(library: &Path, inherited: impl Fn(&str) -> Option<String>) -> Result<Vec<Variable>> {
    let Some(path) = library.to_str() else {
        bail!(
            "{} is no UTF-8 text; put the library elsewhere",
            library.display()
        );
    };
    let behind = |name: &str, value: &str| {
        let value = match inherited(name).filter(|own| !own.is_empty()) {
            Some(own) => format!("{own}:{value}"),
            None => value.to_owned(),
        };
        (name.to_owned(), value)
    };
    if !path.contains([' ', ':']) {
        return Ok(vec![behind("LD_PRELOAD", path)]);
    }
    let directory = library.parent().and_then(Path::to_str).unwrap_or("");
    let name = library
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or("");
    if directory.contains([':', ';']) || name.contains([':', ' ']) {
        bail!(
            "{path:?} has characters at which the dynamic linker splits; put the library elsewhere"
        );
    }
    Ok(vec![
        behind("LD_PRELOAD", name),
        behind("LD_LIBRARY_PATH", directory),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn preload(path: &str, inherited: Option<&str>) -> Result<Vec<Variable>> {
        variables(Path::new(path), |_| inherited.map(str::to_owned))
    }

    #[test]
    fn the_library_comes_behind_what_is_preloaded() {
        let alone = preload("/a,b/l.so", None).unwrap();
        assert_eq!(alone, [("LD_PRELOAD".to_owned(), "/a,b/l.so".to_owned())]);
        assert_eq!(preload("/a,b/l.so", Some("")).unwrap(), alone);
        let both = preload("/l.so", Some("/tool.so")).unwrap();
        assert_eq!(both[0].1, "/tool.so:/l.so");
    }

    #[test]
    fn spaces_go_into_the_search_path_and_colons_nowhere() {
        let spaces = preload("/a b/l.so", None).unwrap();
        let expected = [("LD_PRELOAD", "l.so"), ("LD_LIBRARY_PATH", "/a b")];
        assert_eq!(
            spaces,
            expected.map(|(name, value)| (name.to_owned(), value.to_owned()))
        );
        assert!(preload("/a:b/l.so", None).is_err());
        assert!(preload("/a ;/l.so", None).is_err());
        assert!(preload("/a/l x.so", None).is_err());
        assert!(preload("/a;/l.so", None).is_ok());
    }

    #[test]
    fn a_library_that_is_not_there_is_named() {
        let error = find(Some(Path::new("/no/such.so")))
            .unwrap_err()
            .to_string();
        assert!(error.contains("/no/such.so"), "{error}");
    }
}
