// SPDX-License-Identifier: MIT OR Apache-2.0

//! The plan of a small layout, made at commit: loop nests with their kernels already chosen; and
//! how listed pieces are moved.
//!
//! Walking a form and choosing kernels takes tens of nanoseconds, as long as moving a few hundred
//! bytes. Layouts that are a few loop nests, which most are, keep what that would lead to.

use std::sync::Arc;

use super::form::{Extent, Form, Node, NodeId};
use super::kernel::{Dim, Nest, PieceOrder};
use super::overlap::blocks_apart;
use super::steps::{Step, Steps};
use crate::room;

/// Most loop nests of a plan; more are found on the way.
const MOST: usize = 32;

/// Most levels of lists within lists.
const DEPTH: usize = 4;

/// Most dimensions of a loop nest in a plan.
const DIMS: usize = 3;

/// A form of nodes that are known to make one, with its plan.
pub(super) fn assembled(nodes: Vec<Node>, extents: Vec<Extent>, offset: i64) -> room::Result<Form> {
    let mut form = Form::bare(nodes, extents, offset);
    form.steps = steps_of(&form);
    form.orders = Arc::new(orders(&form.nodes)?);
    Ok(form)
}

/// How the pieces of each node are moved; empty if there are none.
fn orders(nodes: &[Node]) -> room::Result<Vec<Option<PieceOrder>>> {
    let of = |node: &Node| match node {
        Node::Pieces { offsets, starts } => PieceOrder::new(offsets, starts),
        _ => Ok(None),
    };
    let is_list = |node: &Node| matches!(node, Node::Pieces { .. });
    match nodes.iter().rposition(is_list) {
        Some(last) => room::collect(nodes[..=last].iter().map(of), last + 1),
        None => Ok(Vec::new()),
    }
}

/// The plan of a whole form; an empty one if it is not a few loop nests.
fn steps_of(form: &Form) -> Steps {
    let mut steps = Vec::new();
    let planned = form.root().and_then(|root| {
        add(form, root, (form.offset(), 0), DEPTH, &mut steps)?;
        Some(form.extent(root))
    });
    match planned {
        Some(extent) => Steps {
            list: steps.into(),
            size: extent.size as u64,
            low: form.offset() + extent.low,
            high: form.offset() + extent.high,
        },
        None => Steps::default(),
    }
}

/// Adds the steps of a node that has its origin at `offset` and its bytes at `start` of the packed
/// stream; `None` if it does not come down to few of them.
fn add(
    form: &Form,
    id: NodeId,
    (offset, start): (i64, i64),
    depth: usize,
    steps: &mut Vec<Step>,
) -> Option<()> {
    if let Node::Sequence { parts } = form.node(id) {
        if parts.len() > MOST || depth == 0 {
            return None;
        }
        for part in parts.iter() {
            let place = (offset + part.offset, start + part.start);
            add(form, part.child, place, depth - 1, steps)?;
        }
        return Some(());
    }
    if steps.len() == MOST {
        return None;
    }
    let (mut streams, mut n, mut at) = ([(0, 0, 0); DIMS], 0, id);
    let len = loop {
        match form.node(at) {
            Node::Dense { len } => break *len,
            Node::Stream {
                count,
                stride,
                child,
            } => {
                *streams.get_mut(n)? = (*count, *stride, form.extent(*child).size);
                n += 1;
                at = *child;
            }
            _ => return None,
        }
    };
    let mut strides = [(0, 0); DIMS];
    for (to, stream) in strides.iter_mut().zip(&streams[..n]) {
        *to = (stream.1, stream.0);
    }
    // Kernels choose their order, which matters if blocks overlap.
    if !blocks_apart(len, &strides[..n]) {
        return None;
    }
    // The innermost first.
    let (mut pack, mut unpack) = ([Dim::default(); DIMS], [Dim::default(); DIMS]);
    for (i, &(count, stride, size)) in streams[..n].iter().rev().enumerate() {
        let (count, stride, size) = (count as usize, stride as isize, size as isize);
        pack[i] = Dim {
            count,
            to: size,
            from: stride,
        };
        unpack[i] = Dim {
            count,
            to: stride,
            from: size,
        };
    }
    steps.push(Step {
        offset: offset as isize,
        start: start as isize,
        pack: Nest::new(len as usize, &pack[..n])?,
        unpack: Nest::new(len as usize, &unpack[..n])?,
    });
    Some(())
}
