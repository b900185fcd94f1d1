// SPDX-License-Identifier: MIT OR Apache-2.0

//! What is wrong with the arrows of a crate: circles, arrows that run up, files that no layer has.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt::{self, Display, Formatter};
use std::path::Path;

use anyhow::{Context, Result};

use crate::resolve::{Arrows, arrows};
use crate::table::{Layers, ROOMS};
use crate::tree::{Crate, FileId};

/// The counts of a crate, and a line of text for each thing that is wrong.
#[derive(Debug, Default)]
pub struct Findings {
    pub name: String,
    pub files: usize,
    /// Strongly connected components of more than one file.
    pub circles: usize,
    pub up: usize,
    /// Files that no entry of the table covers.
    pub unplaced: usize,
    /// Entries of the table without a file.
    pub stale: usize,
    /// Files beside the folders of a crate that has all in folders.
    pub loose: usize,
    pub details: Vec<String>,
}

impl Findings {
    pub fn is_clean(&self) -> bool {
        self.circles + self.up + self.unplaced + self.stale + self.loose == 0
    }
}

impl Display for Findings {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let plural = |count: usize, word: &str| match count {
            1 => format!("1 {word}"),
            _ => format!("{count} {word}s"),
        };
        write!(
            formatter,
            "{}: {}, {}, {} up",
            self.name,
            plural(self.files, "file"),
            plural(self.circles, "circle"),
            plural(self.up, "arrow"),
        )
    }
}

/// Checks the files of one crate.
pub fn check_files(top: &Path, layers: &Layers) -> Result<Findings> {
    let root = top.join(layers.root);
    let directory = Path::new(layers.root).parent().context("a root file")?;
    let tree = Crate::read(&root)?;
    let names: Vec<String> = tree
        .files
        .iter()
        .map(|file| directory.join(file).display().to_string())
        .collect();
    let ranks: Vec<Option<usize>> = tree
        .files
        .iter()
        .enumerate()
        .map(|(id, file)| match id {
            // The root file stands above all.
            0 => Some(usize::MAX),
            _ => layers.rank(&file.with_extension("").display().to_string()),
        })
        .collect();
    let mut findings = judge(layers.name, &names, &ranks, &arrows(&tree));
    for word in layers.words() {
        let has_file = |file: &std::path::PathBuf| {
            layers.entry(&file.with_extension("").display().to_string()) == Some(word)
        };
        if !tree.files.iter().skip(1).any(has_file) {
            findings.stale += 1;
            findings.details.push(format!(
                "the table of layers has `{word}`, {} has no such file",
                layers.name
            ));
        }
    }
    if let Some((_, beside)) = ROOMS.iter().find(|(name, _)| *name == layers.name) {
        let files = tree.files.iter().skip(1);
        let loose = files.filter(|file| file.parent() == Some(Path::new("")));
        for file in loose.filter(|file| {
            !beside
                .iter()
                .any(|name| file.with_extension("") == Path::new(name))
        }) {
            findings.loose += 1;
            findings.details.push(format!(
                "{}: a file beside the folders of {}",
                directory.join(file).display(),
                layers.name
            ));
        }
        for folder in layers.split_folders() {
            findings.up += 1;
            findings.details.push(format!(
                "the table of layers has files of other folders between those of `{folder}`: arrows may run up from one folder to another"
            ));
        }
    }
    Ok(findings)
}

/// Checks the arrows between `names`; those without a rank are reported, unless no file has one.
pub fn judge(name: &str, names: &[String], ranks: &[Option<usize>], arrows: &Arrows) -> Findings {
    let mut findings = Findings {
        name: name.to_owned(),
        files: names.len(),
        ..Findings::default()
    };
    for circle in circles(names.len(), arrows) {
        findings.circles += 1;
        let mut members: Vec<&str> = circle.iter().map(|file| names[*file].as_str()).collect();
        members.sort_unstable();
        findings.details.push(format!(
            "circle of {} files: {}",
            circle.len(),
            members.join(", ")
        ));
        for (from, to) in shortest(&circle, arrows) {
            let place = &arrows[&(from, to)];
            findings.details.push(format!(
                "  {}:{}: uses {} (`{}`)",
                names[from], place.line, names[to], place.path
            ));
        }
    }
    for (file, rank) in ranks.iter().enumerate() {
        if rank.is_none() {
            findings.unplaced += 1;
            findings.details.push(format!(
                "{}: no layer of the table has this file",
                names[file]
            ));
        }
    }
    let mut sorted: Vec<_> = arrows.iter().collect();
    sorted.sort_by_key(|((from, _), place)| (&names[*from], place.line));
    for ((from, to), place) in sorted {
        if let (Some(low), Some(high)) = (ranks[*from], ranks[*to]) {
            if low < high {
                findings.up += 1;
                findings.details.push(format!(
                    "{}:{}: arrow up to {} (`{}`)",
                    names[*from], place.line, names[*to], place.path
                ));
            }
        }
    }
    findings
}

fn neighbours(arrows: &Arrows) -> HashMap<FileId, Vec<FileId>> {
    let mut next: HashMap<FileId, Vec<FileId>> = HashMap::new();
    for (from, to) in arrows.keys() {
        next.entry(*from).or_default().push(*to);
    }
    next
}

/// Strongly connected components of more than one file: `a` and `b` reach each other.
fn circles(files: usize, arrows: &Arrows) -> Vec<Vec<FileId>> {
    let next = neighbours(arrows);
    let reach: Vec<Vec<bool>> = (0..files)
        .map(|start| {
            let mut seen = vec![false; files];
            let mut open = vec![start];
            while let Some(file) = open.pop() {
                for to in next.get(&file).into_iter().flatten() {
                    if !std::mem::replace(&mut seen[*to], true) {
                        open.push(*to);
                    }
                }
            }
            seen
        })
        .collect();
    let mut circles = BTreeMap::new();
    for (file, reached) in reach.iter().enumerate() {
        let circle: Vec<FileId> = (0..files)
            .filter(|other| reached[*other] && reach[*other][file])
            .collect();
        if let Some(first) = circle.first() {
            circles.insert(*first, circle);
        }
    }
    circles.into_values().collect()
}

/// The arrows of the shortest way around inside a circle.
fn shortest(circle: &[FileId], arrows: &Arrows) -> Vec<(FileId, FileId)> {
    let next = neighbours(arrows);
    let around = |start: FileId| {
        let mut came: HashMap<FileId, FileId> = HashMap::new();
        let mut open = VecDeque::from([start]);
        while let Some(file) = open.pop_front() {
            for to in next.get(&file).into_iter().flatten() {
                if circle.contains(to) && !came.contains_key(to) {
                    came.insert(*to, file);
                    open.push_back(*to);
                }
            }
        }
        let mut way = Vec::new();
        let mut at = start;
        while let Some(from) = came.get(&at) {
            way.insert(0, (*from, at));
            at = *from;
            if at == start {
                break;
            }
        }
        way
    };
    circle
        .iter()
        .map(|start| around(*start))
        .filter(|way| !way.is_empty())
        .min_by_key(Vec::len)
        .unwrap_or_default()
}
