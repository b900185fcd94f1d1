// SPDX-License-Identifier: MIT OR Apache-2.0

//! Type expressions, written.

use std::fmt::Write as _;

use super::super::datatype::{Contents, Datatype, Distribution, Order};

impl Datatype {
    /// The type as an expression, which `str::parse` turns into an equal type.
    ///
    /// ```
    /// use libcopy_datatype::Datatype;
    ///
    /// let column: Datatype = "resized(0, 8, vector(512, 1, 512, double))".parse()?;
    /// assert_eq!(column.size(), 4096);
    /// assert_eq!(column.expression(), "resized(0,8,vector(512,1,512,double))");
    /// let some: Datatype = "indexed_block(1, [0..40:4, 100*2], int)".parse()?;
    /// assert_eq!(some.size(), 48);
    /// # Ok::<(), libcopy_datatype::Error>(())
    /// ```
    pub fn expression(&self) -> String {
        // Types may be nested too deeply for recursion.
        enum Part {
            Type(Datatype),
            Text(&'static str),
        }
        let mut text = String::new();
        let mut todo = vec![Part::Type(self.clone())];
        while let Some(part) = todo.pop() {
            let datatype = match part {
                Part::Text(piece) => {
                    text.push_str(piece);
                    continue;
                }
                Part::Type(datatype) => datatype,
            };
            if let Contents::Named(named) = datatype.contents() {
                text.push_str(&named.mpi_name()[4..].to_ascii_lowercase());
                continue;
            }
            head(&mut text, datatype.contents());
            if let Contents::Struct { children, .. } = datatype.contents() {
                todo.push(Part::Text("])"));
                let before = todo.len();
                for (i, child) in children.iter().enumerate() {
                    if i > 0 {
                        todo.push(Part::Text(","));
                    }
                    todo.push(Part::Type(child.clone()));
                }
                // What is last is written first.
                todo[before..].reverse();
            } else {
                todo.push(Part::Text(")"));
                let children = datatype.contents().children().cloned();
                todo.extend(children.map(Part::Type));
            }
        }
        text
    }
}

/// Writes everything of a constructor up to its children.
fn head(text: &mut String, contents: &Contents) {
    let order = |order: &Order| match order {
        Order::C => "c",
        Order::Fortran => "fortran",
    };
    let _ = match contents {
        Contents::Named(_) => Ok(()),
        Contents::Dup { .. } => write!(text, "dup("),
        Contents::Contiguous { count, .. } => write!(text, "contiguous({count},"),
        Contents::Vector {
            count,
            blocklength,
            stride,
            ..
        } => write!(text, "vector({count},{blocklength},{stride},"),
        Contents::Hvector {
            count,
            blocklength,
            stride,
            ..
        } => write!(text, "hvector({count},{blocklength},{stride},"),
        Contents::Indexed {
            blocklengths,
            displacements,
            ..
        } => write!(
            text,
            "indexed({},{},",
            counts(blocklengths),
            numbers(displacements)
        ),
        Contents::Hindexed {
            blocklengths,
            displacements,
            ..
        } => write!(
            text,
            "hindexed({},{},",
            counts(blocklengths),
            numbers(displacements)
        ),
        Contents::IndexedBlock {
            blocklength,
            displacements,
            ..
        } => write!(
            text,
            "indexed_block({blocklength},{},",
            numbers(displacements)
        ),
        Contents::HindexedBlock {
            blocklength,
            displacements,
            ..
        } => write!(
            text,
            "hindexed_block({blocklength},{},",
            numbers(displacements)
        ),
        Contents::Struct {
            blocklengths,
            displacements,
            ..
        } => write!(
            text,
            "struct({},{},[",
            counts(blocklengths),
            numbers(displacements)
        ),
        Contents::Subarray {
            sizes,
            subsizes,
            starts,
            order: o,
            ..
        } => write!(
            text,
            "subarray({},{},{},{},",
            counts(sizes),
            counts(subsizes),
            counts(starts),
            order(o)
        ),
        Contents::Darray {
            size,
            rank,
            sizes,
            distributions,
            processes,
            order: o,
            ..
        } => {
            let dealt: Vec<String> = distributions.iter().map(distribution).collect();
            write!(
                text,
                "darray({size},{rank},{},[{}],{},{},",
                counts(sizes),
                dealt.join(","),
                counts(processes),
                order(o)
            )
        }
        Contents::Resized {
            lower_bound,
            extent,
            ..
        } => write!(text, "resized({lower_bound},{extent},"),
    };
}

fn distribution(distribution: &Distribution) -> String {
    match distribution {
        Distribution::Block(None) => "block".to_owned(),
        Distribution::Block(Some(n)) => format!("block({n})"),
        Distribution::Cyclic(None) => "cyclic".to_owned(),
        Distribution::Cyclic(Some(n)) => format!("cyclic({n})"),
        Distribution::None => "none".to_owned(),
    }
}

fn counts(list: &[u64]) -> String {
    // A count beyond 63 bits belongs to a type without any data; it is written as it is.
    write_list(list.len(), |i| i128::from(list[i]))
}

fn numbers(list: &[i64]) -> String {
    write_list(list.len(), |i| i128::from(list[i]))
}

/// A list, with the short forms where four or more entries are regular.
fn write_list(len: usize, at: impl Fn(usize) -> i128) -> String {
    let mut text = String::from("[");
    let mut i = 0;
    while i < len {
        if i > 0 {
            text.push(',');
        }
        let first = at(i);
        let step = if i + 1 < len { at(i + 1) - first } else { 0 };
        let mut end = i + 1;
        while end < len && at(end) - at(end - 1) == step {
            end += 1;
        }
        let behind = at(end - 1) + step;
        let fits = i64::try_from(behind).is_ok();
        let _ = match (end - i, step) {
            (n, 0) if n >= 4 => write!(text, "{first}*{n}"),
            (n, 1) if n >= 4 && fits => write!(text, "{first}..{behind}"),
            (n, _) if n >= 4 && fits => write!(text, "{first}..{behind}:{step}"),
            _ => {
                end = i + 1;
                write!(text, "{first}")
            }
        };
        i = end;
    }
    text.push(']');
    text
}
