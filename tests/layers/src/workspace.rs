// SPDX-License-Identifier: MIT OR Apache-2.0

//! The arrows between crates, from the `Cargo.toml` of each member of the workspace. Dependencies
//! for tests do not count.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use toml::Table;

use crate::check::{Findings, judge};
use crate::resolve::{Arrows, Use};
use crate::table::rank;

fn manifest(path: &Path) -> Result<(Table, String)> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let table = text.parse().with_context(|| path.display().to_string())?;
    Ok((table, text))
}

/// Names of the crates in a table of dependencies, under the names that they have themselves.
fn dependencies(table: &Table) -> Vec<String> {
    let own = table.get("dependencies").into_iter();
    let of_targets = table
        .get("target")
        .and_then(|targets| targets.as_table())
        .into_iter()
        .flat_map(Table::values)
        .filter_map(|target| target.get("dependencies"));
    own.chain(of_targets)
        .filter_map(|dependencies| dependencies.as_table())
        .flatten()
        .map(|(name, value)| {
            let renamed = value.get("package").and_then(|package| package.as_str());
            renamed.unwrap_or(name).to_owned()
        })
        .collect()
}

/// Checks the crates of the workspace at `top` against `order`.
pub fn check_crates(top: &Path, order: &str) -> Result<Findings> {
    let (workspace, _) = manifest(&top.join("Cargo.toml"))?;
    let members = workspace
        .get("workspace")
        .and_then(|workspace| workspace.get("members"))
        .and_then(|members| members.as_array())
        .context("Cargo.toml has no workspace.members")?;
    let mut names = Vec::new();
    let mut files = Vec::new();
    let mut needs = Vec::new();
    for member in members.iter().filter_map(|member| member.as_str()) {
        let file = format!("{member}/Cargo.toml");
        let (table, text) = manifest(&top.join(&file))?;
        let name = table
            .get("package")
            .and_then(|package| package.get("name"))
            .and_then(|name| name.as_str())
            .with_context(|| format!("{file} has no package.name"))?;
        names.push(name.to_owned());
        files.push(file);
        needs.push((dependencies(&table), text));
    }
    let ids: HashMap<&String, usize> = names.iter().zip(0..).collect();
    let mut arrows = Arrows::new();
    for (from, (needed, text)) in needs.iter().enumerate() {
        for name in needed {
            if let Some(to) = ids.get(name) {
                let starts = |line: &str| line.trim_start().starts_with(name.as_str());
                let place = Use {
                    line: text.lines().position(starts).map_or(1, |line| line + 1),
                    path: name.clone(),
                };
                arrows.insert((from, *to), place);
            }
        }
    }
    let ranks: Vec<_> = names.iter().map(|name| rank(order, name)).collect();
    let mut findings = judge("crates", &files, &ranks, &arrows);
    // Beside each other means that neither needs the other.
    for ((from, to), place) in &arrows {
        if ranks[*from].is_some() && ranks[*from] == ranks[*to] {
            findings.up += 1;
            findings.details.push(format!(
                "{}:{}: arrow to {} in the same layer",
                files[*from], place.line, files[*to]
            ));
        }
    }
    Ok(findings)
}
