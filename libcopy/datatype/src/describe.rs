// SPDX-License-Identifier: MIT OR Apache-2.0

//! What packing and unpacking a form comes down to, in words.

use super::form::{Form, Node, NodeId};
use super::kernel;

impl Form {
    /// How the bytes will be moved: the loops and kernels that [`super::Layout::pack`] and
    /// [`super::Layout::unpack`] run on this machine.
    ///
    /// ```
    /// use libcopy_datatype::{Datatype, Layout};
    /// let column: Datatype = "vector(512, 1, 512, double)".parse()?;
    /// let plan = Layout::new(&column, 1)?.form().plan();
    /// assert!(plan.starts_with("512 blocks of 8 bytes"), "{plan}");
    /// # Ok::<(), libcopy_datatype::Error>(())
    /// ```
    pub fn plan(&self) -> String {
        match self.root() {
            Some(root) => self.plan_of(root, &mut Vec::new()),
            None => "nothing to move".to_owned(),
        }
    }

    fn plan_of(&self, id: NodeId, around: &mut Vec<(i64, i64, i64)>) -> String {
        match self.node(id) {
            Node::Dense { len } => nest(*len, around),
            Node::Stream {
                count,
                stride,
                child,
            } => {
                around.insert(0, (*count, *stride, self.extent(*child).size));
                // Deep forms are nested streams at most a few dozen levels; lists start anew.
                self.plan_of(*child, around)
            }
            Node::Blocks { offsets, child } => {
                let n = offsets.len();
                let times = times(around);
                match self.node(*child) {
                    Node::Dense { len } => {
                        format!("{times}a list of {n} offsets, {len} bytes each")
                    }
                    _ => {
                        let each = self.plan_of(*child, &mut Vec::new());
                        format!("{times}a list of {n} offsets, at each: {each}")
                    }
                }
            }
            Node::Pieces { offsets, .. } => {
                let bytes = self.extent(id).size;
                let n = offsets.len();
                format!(
                    "{}a list of {n} pieces with {:.1} bytes on average, {}",
                    times(around),
                    bytes as f64 / n as f64,
                    kernel::name_of_pieces(self.order(id), n)
                )
            }
            Node::Sequence { parts } => {
                let times = times(around);
                let shown = 4;
                let mut each: Vec<String> = parts
                    .iter()
                    .take(shown)
                    .map(|part| self.plan_of(part.child, &mut Vec::new()))
                    .collect();
                if parts.len() > shown {
                    each.push(format!("{} more parts", parts.len() - shown));
                }
                format!("{times}{}", each.join("; then "))
            }
        }
    }
}

fn times(around: &[(i64, i64, i64)]) -> String {
    let n: i64 = around.iter().map(|dim| dim.0).product();
    if n > 1 {
        format!("{n} times ")
    } else {
        String::new()
    }
}

/// Streams around a dense block, the innermost first.
fn nest(len: i64, around: &[(i64, i64, i64)]) -> String {
    if around.is_empty() {
        return format!("one piece of {len} bytes");
    }
    let counts: Vec<String> = around.iter().rev().map(|dim| dim.0.to_string()).collect();
    let dims: Vec<kernel::Dim> = around
        .iter()
        .map(|&(count, stride, size)| kernel::Dim {
            count: count as usize,
            to: size as isize,
            from: stride as isize,
        })
        .collect();
    format!(
        "{} blocks of {len} bytes, {}",
        counts.join(" x "),
        kernel::name(len as usize, &dims)
    )
}
