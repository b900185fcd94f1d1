// SPDX-License-Identifier: MIT OR Apache-2.0

//! The modules of one crate: what each file defines, imports and mentions. Items under
//! `#[cfg(test)]` are left out.

use std::collections::HashMap;
use std::fs;
use std::mem;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use proc_macro2::{TokenStream, TokenTree};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemMod, ItemUse, Meta, Token, UseTree};

/// Index of a module in [`Crate::modules`].
pub type ModuleId = usize;
/// Index of a file in [`Crate::files`].
pub type FileId = usize;

/// A path as written, with the line on which it stands.
#[derive(Clone, Debug)]
pub struct Mention {
    pub segments: Vec<String>,
    pub line: usize,
    /// `name!`.
    pub is_macro: bool,
}

#[derive(Debug, Default)]
pub struct Module {
    pub parent: Option<ModuleId>,
    pub file: FileId,
    pub children: HashMap<String, ModuleId>,
    /// Functions, types, constants and macros that the module defines.
    pub items: HashMap<String, usize>,
    /// Names that a `use` brings in.
    pub imports: HashMap<String, Vec<Vec<String>>>,
    pub globs: Vec<Vec<String>>,
    /// Paths in `use`, expressions, types, patterns and arguments of macros.
    pub mentions: Vec<Mention>,
    /// `mod name;`: the file of the child and the line of the declaration.
    pub declares: Vec<(FileId, usize)>,
}

/// All modules and files of a crate; module 0 is its root.
#[derive(Debug, Default)]
pub struct Crate {
    pub modules: Vec<Module>,
    /// Relative to the directory of the root file.
    pub files: Vec<PathBuf>,
    /// Macros by example, found by name alone: their scope is the text that follows.
    pub macros: HashMap<String, ModuleId>,
}

impl Crate {
    pub fn read(root: &Path) -> Result<Self> {
        let directory = root.parent().context("the root file has no directory")?;
        let mut tree = Self::default();
        tree.file(directory, root, directory, None)?;
        Ok(tree)
    }

    fn module(&mut self, parent: Option<ModuleId>, file: FileId) -> ModuleId {
        self.modules.push(Module {
            parent,
            file,
            ..Module::default()
        });
        self.modules.len() - 1
    }

    /// Reads a file as a module whose own children lie in `children`.
    fn file(
        &mut self,
        base: &Path,
        path: &Path,
        children: &Path,
        parent: Option<ModuleId>,
    ) -> Result<ModuleId> {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let parsed = syn::parse_file(&text).map_err(|error| {
            anyhow::anyhow!("{}:{}: {error}", path.display(), error.span().start().line)
        })?;
        self.files.push(path.strip_prefix(base)?.to_owned());
        let file = self.files.len() - 1;
        let module = self.module(parent, file);
        self.items(base, children, module, &parsed.items)?;
        Ok(module)
    }

    fn items(&mut self, base: &Path, directory: &Path, id: ModuleId, items: &[Item]) -> Result<()> {
        for item in items.iter().filter(|item| !is_test(attributes(item))) {
            if let Item::Mod(declared) = item {
                self.child(base, directory, id, declared)?;
                continue;
            }
            if let Some(name) = defined(item) {
                let line = item.span().start().line;
                self.modules[id].items.insert(name.clone(), line);
                if let Item::Macro(_) = item {
                    self.macros.insert(name, id);
                }
            }
            let mut reader = Reader {
                module: &mut self.modules[id],
            };
            reader.visit_item(item);
        }
        Ok(())
    }

    fn child(
        &mut self,
        base: &Path,
        directory: &Path,
        id: ModuleId,
        declared: &ItemMod,
    ) -> Result<()> {
        let name = declared.ident.to_string();
        let below = directory.join(&name);
        let file = self.modules[id].file;
        let child = if let Some((_, items)) = &declared.content {
            let child = self.module(Some(id), file);
            self.items(base, &below, child, items)?;
            child
        } else {
            let candidates = match path_attribute(&declared.attrs) {
                Some(path) => vec![directory.join(path)],
                None => vec![directory.join(format!("{name}.rs")), below.join("mod.rs")],
            };
            let Some(path) = candidates.iter().find(|path| path.is_file()) else {
                bail!("{}: `mod {name};` has no file", self.files[file].display());
            };
            let child = self.file(base, path, &below, Some(id))?;
            let line = declared.span().start().line;
            let target = self.modules[child].file;
            self.modules[id].declares.push((target, line));
            child
        };
        self.modules[id].children.insert(name, child);
        Ok(())
    }
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::TraitAlias(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// The name that an item defines in its module.
fn defined(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::TraitAlias(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(ident.to_string())
}

/// `#[test]`, or a `#[cfg]` that holds in tests only: `test`, or `all(.., test, ..)`.
fn is_test(attributes: &[Attribute]) -> bool {
    fn holds_in_tests_only(meta: &Meta) -> bool {
        match meta {
            Meta::Path(path) => path.is_ident("test"),
            Meta::List(list) if list.path.is_ident("all") => list
                .parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated)
                .is_ok_and(|parts| parts.iter().any(holds_in_tests_only)),
            _ => false,
        }
    }
    attributes.iter().any(|attribute| {
        let path = attribute.path();
        path.is_ident("test")
            || (path.is_ident("cfg")
                && attribute
                    .parse_args::<Meta>()
                    .is_ok_and(|meta| holds_in_tests_only(&meta)))
    })
}

fn path_attribute(attributes: &[Attribute]) -> Option<String> {
    attributes
        .iter()
        .find_map(|attribute| match &attribute.meta {
            Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
                syn::Expr::Lit(syn::ExprLit {
                    lit: syn::Lit::Str(text),
                    ..
                }) => Some(text.value()),
                _ => None,
            },
            _ => None,
        })
}

fn names(path: &syn::Path) -> Vec<String> {
    let name = |part: &syn::PathSegment| part.ident.to_string();
    path.segments.iter().map(name).collect()
}

/// Collects what one item imports and mentions.
struct Reader<'a> {
    module: &'a mut Module,
}

impl Reader<'_> {
    fn mention(&mut self, segments: Vec<String>, line: usize, is_macro: bool) {
        self.module.mentions.push(Mention {
            segments,
            line,
            is_macro,
        });
    }

    fn import(&mut self, prefix: &[String], tree: &UseTree) {
        let with = |name: String| prefix.iter().cloned().chain([name]).collect::<Vec<_>>();
        let line = tree.span().start().line;
        let mut named = |path: Vec<String>, name: String| {
            // `use a::{self}` imports `a`.
            let is_self = path.len() > 1 && path.last().is_some_and(|last| last == "self");
            let path = path[..path.len() - usize::from(is_self)].to_vec();
            let name = if name == "self" {
                path.last().cloned().unwrap_or_default()
            } else {
                name
            };
            self.mention(path.clone(), line, false);
            self.module.imports.entry(name).or_default().push(path);
        };
        match tree {
            UseTree::Path(path) => self.import(&with(path.ident.to_string()), &path.tree),
            UseTree::Name(name) => named(with(name.ident.to_string()), name.ident.to_string()),
            UseTree::Rename(rename) => {
                named(with(rename.ident.to_string()), rename.rename.to_string());
            }
            UseTree::Glob(_) => self.module.globs.push(prefix.to_vec()),
            UseTree::Group(group) => group
                .items
                .iter()
                .for_each(|tree| self.import(prefix, tree)),
        }
    }

    /// Paths in the tokens of a macro, which `syn` leaves alone: names joined by `::` that follow
    /// no dot.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut segments: Vec<String> = Vec::new();
        let mut line = 0;
        let mut colons = 0;
        let mut after_dot = false;
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    if colons != 2 && !segments.is_empty() {
                        self.mention(mem::take(&mut segments), line, false);
                    }
                    if segments.is_empty() {
                        line = ident.span().start().line;
                    }
                    if !after_dot {
                        segments.push(ident.to_string());
                    }
                    (colons, after_dot) = (0, false);
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                other => {
                    let is =
                        |char| matches!(&other, TokenTree::Punct(punct) if punct.as_char() == char);
                    if !segments.is_empty() {
                        self.mention(mem::take(&mut segments), line, is('!'));
                    }
                    colons = 0;
                    after_dot = is('.');
                    if let TokenTree::Group(group) = other {
                        self.tokens(group.stream());
                    }
                }
            }
        }
        if !segments.is_empty() {
            self.mention(segments, line, false);
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_test(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !is_test(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        if !is_test(&field.attrs) {
            visit::visit_field(self, field);
        }
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        if !is_test(&local.attrs) {
            visit::visit_local(self, local);
        }
    }

    fn visit_expr_block(&mut self, block: &'ast syn::ExprBlock) {
        if !is_test(&block.attrs) {
            visit::visit_expr_block(self, block);
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        // `use ::name` is another crate.
        if item.leading_colon.is_none() {
            self.import(&[], &item.tree);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            self.mention(names(path), path.span().start().line, false);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        let path = &call.path;
        if path.leading_colon.is_none() {
            self.mention(names(path), path.span().start().line, true);
        }
        self.tokens(call.tokens.clone());
    }

    // `pub(in crate::team)` is no use of the module; attributes name macros and words of their own.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    fn visit_attribute(&mut self, _: &'ast Attribute) {}
}
