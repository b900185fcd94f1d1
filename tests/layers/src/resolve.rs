// SPDX-License-Identifier: MIT OR Apache-2.0

//! From the paths of a crate to arrows between its files: a path leads to the file in which its
//! item is defined, through as many `use` and `pub use` as there are.
//!
//! Methods are not seen: which file `value.method()` belongs to depends on types.

use std::collections::{BTreeMap, HashSet};

use crate::tree::{Crate, FileId, ModuleId};

/// The first place where one file uses another.
#[derive(Clone, Debug)]
pub struct Use {
    pub line: usize,
    pub path: String,
}

/// All arrows of a crate. A file points to itself never.
pub type Arrows = BTreeMap<(FileId, FileId), Use>;

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
enum Found {
    Module(ModuleId),
    Item(FileId),
}

/// Looks paths up; `seen` ends circles of imports.
struct Resolver<'a> {
    tree: &'a Crate,
    seen: HashSet<(ModuleId, String)>,
}

impl Resolver<'_> {
    fn name(&mut self, module: ModuleId, name: &str) -> Vec<Found> {
        let this = &self.tree.modules[module];
        let mut found = Vec::new();
        found.extend(this.children.get(name).map(|child| Found::Module(*child)));
        if this.items.contains_key(name) {
            found.push(Found::Item(this.file));
        }
        if !self.seen.insert((module, name.to_owned())) {
            return found;
        }
        for path in this.imports.get(name).into_iter().flatten() {
            found.extend(self.path(module, path));
        }
        if found.is_empty() {
            for glob in &this.globs {
                for target in self.path(module, glob) {
                    if let Found::Module(target) = target {
                        found.extend(self.name(target, name));
                    }
                }
            }
        }
        self.seen.remove(&(module, name.to_owned()));
        found
    }

    fn path(&mut self, module: ModuleId, segments: &[String]) -> Vec<Found> {
        let Some((first, rest)) = segments.split_first() else {
            return Vec::new();
        };
        let parent = |module: ModuleId| self.tree.modules[module].parent.unwrap_or(0);
        let mut at = match first.as_str() {
            "crate" => vec![Found::Module(0)],
            "self" => vec![Found::Module(module)],
            "super" => vec![Found::Module(parent(module))],
            name => self.name(module, name),
        };
        for segment in rest {
            let mut next = Vec::new();
            for found in at {
                match found {
                    // A variant, an associated function: the type decides.
                    Found::Item(_) => next.push(found),
                    Found::Module(inner) if segment == "super" => {
                        next.push(Found::Module(self.tree.modules[inner].parent.unwrap_or(0)));
                    }
                    Found::Module(inner) => next.extend(self.name(inner, segment)),
                }
            }
            at = next;
        }
        at
    }
}

pub fn arrows(tree: &Crate) -> Arrows {
    let mut arrows = Arrows::new();
    let mut add = |from: FileId, to: FileId, line: usize, path: &[String]| {
        if from != to {
            let found = Use {
                line,
                path: path.join("::"),
            };
            arrows
                .entry((from, to))
                .and_modify(|first| {
                    if found.line < first.line {
                        *first = found.clone();
                    }
                })
                .or_insert(found);
        }
    };
    let mut resolver = Resolver {
        tree,
        seen: HashSet::new(),
    };
    for (id, module) in tree.modules.iter().enumerate() {
        for (child, line) in &module.declares {
            add(module.file, *child, *line, &["mod".to_owned()]);
        }
        for mention in &module.mentions {
            let mut found = resolver.path(id, &mention.segments);
            if let ([name], true, true) =
                (&mention.segments[..], mention.is_macro, found.is_empty())
            {
                let defined = tree.macros.get(name);
                found.extend(defined.map(|module| Found::Item(tree.modules[*module].file)));
            }
            for found in found {
                if let Found::Item(file) = found {
                    add(module.file, file, mention.line, &mention.segments);
                }
            }
        }
    }
    arrows
}
