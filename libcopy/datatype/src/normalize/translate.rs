// SPDX-License-Identifier: MIT OR Apache-2.0

//! From datatypes to forms.

use std::iter::Zip;
use std::slice;
use std::sync::Arc;

use hashbrown::HashMap;

use super::super::datatype::{Contents, Datatype, MemberTypes, fastest_first};
use super::super::form::{Form, NodeId};
use super::arena::{Arena, Placed};
use super::long::{Blocks, Lengths};
use super::members;
use super::peel::peel;
use crate::Result;
use crate::room;

impl Datatype {
    /// Translates the type into its canonical form, once; everything that moves data does it when
    /// needed. Time and memory are proportional to the description, not to the data.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`](crate::Error::NoRoom) where memory has no room for the lists.
    pub fn commit(&self) -> Result<&Form> {
        Ok(self.form()?)
    }

    pub(in super::super) fn form(&self) -> room::Result<&Arc<Form>> {
        let made = match self.0.form.get() {
            Some(form) => return Ok(form),
            None => Arc::new(Form::of(self)?),
        };
        // Another thread may have been faster: its form is the same.
        Ok(self.0.form.get_or_init(|| made))
    }
}

impl Form {
    fn of(datatype: &Datatype) -> room::Result<Form> {
        let mut arena = Arena::default();
        let root = match translate(&mut arena, datatype)? {
            Some(root) => arena.settle(root)?,
            None => None,
        };
        arena.finish(root)
    }

    /// `count` of the type whose form this is, `extent` bytes apart.
    pub(in super::super) fn repeated(&self, count: u64, extent: i64) -> room::Result<Form> {
        if self.nodes.is_empty() || count == 0 {
            return Arena::default().finish(None);
        }
        if count == 1 {
            return self.copied();
        }
        let mut arena = Arena::default();
        for (node, extent) in self.nodes.iter().zip(&self.extents) {
            arena.push(node.clone(), *extent, None)?;
        }
        let root = (self.nodes.len() - 1) as NodeId;
        let root = arena.stream(count as i64, extent, root)?;
        let root = arena.settle((self.offset(), root))?;
        arena.finish(root)
    }
}

/// A step of the translation. A stack of them replaces recursion, so that depth costs heap.
enum Task<'a> {
    /// Adds a type's data to the innermost list.
    Emit(&'a Datatype, i64),
    /// Leaves a type's form on the stack of values.
    Value(&'a Datatype),
    /// Turns the innermost list into a value, and remembers it for this type.
    Close(&'a Datatype),
    /// Moves the last value by what was peeled off its type.
    Shift(i64),
    /// Places a value `count` times per dimension, the first dimension innermost.
    Dimensions(i64, Vec<(i64, i64)>),
    /// Places a value at the blocks of an indexed type, or of a struct of one type.
    Indexed(&'a Datatype, i64),
    /// Emits the members of a struct that are left.
    Members(i64, Left<'a>),
}

/// Members of a struct: lengths, displacements, types.
type Left<'a> = Zip<Zip<slice::Iter<'a, u64>, slice::Iter<'a, i64>>, MemberTypes<'a>>;

/// How often each type is used within `root`; those used once may be written in place.
fn uses(root: &Datatype) -> room::Result<HashMap<u64, usize>> {
    let mut uses = HashMap::new();
    let mut stack = vec![root];
    while let Some(datatype) = stack.pop() {
        for (n, child) in datatype.contents().runs() {
            let (child, _) = peel(child);
            if matches!(child.contents(), Contents::Named(_)) {
                continue;
            }
            room::reserve_map(&mut uses, 1)?;
            let count: &mut usize = uses.entry(child.id()).or_default();
            if *count == 0 {
                room::push(&mut stack, child)?;
            }
            *count = count.saturating_add(n);
        }
    }
    Ok(uses)
}

fn translate(arena: &mut Arena, root: &Datatype) -> room::Result<Option<Placed>> {
    let (root, at) = peel(root);
    if root.size() == 0 {
        return Ok(None);
    }
    // Only asked for members that are written in place or not.
    let mut known_uses = None;
    let mut memo: HashMap<u64, Placed> = HashMap::new();
    let mut lists: Vec<Vec<Placed>> = vec![Vec::new()];
    let mut values: Vec<Placed> = Vec::new();
    let mut last = None;
    let mut tasks = vec![Task::Emit(root, at)];
    while let Some(task) = tasks.pop() {
        match task {
            Task::Value(datatype) => {
                let (inner, offset) = peel(datatype);
                if let Contents::Named(_) = inner.contents() {
                    if inner.size() == inner.true_extent() as u64 {
                        let dense = arena.dense(inner.size() as i64)?;
                        room::push(&mut values, (offset, dense))?;
                        continue;
                    }
                }
                if let Some(&(at, id)) = memo.get(&inner.id()) {
                    room::push(&mut values, (offset.wrapping_add(at), id))?;
                    continue;
                }
                room::push(&mut lists, Vec::new())?;
                let next = [
                    Task::Shift(offset),
                    Task::Close(inner),
                    Task::Emit(inner, 0),
                ];
                room::extend(&mut tasks, next)?;
            }
            Task::Close(datatype) => {
                let list = lists.pop().unwrap_or_default();
                if let Some(value) = arena.list(list)? {
                    room::reserve_map(&mut memo, 1)?;
                    memo.insert(datatype.id(), value);
                    room::push(&mut values, value)?;
                }
            }
            Task::Shift(offset) => {
                if let Some(value) = values.last_mut() {
                    value.0 = value.0.wrapping_add(offset);
                }
            }
            Task::Dimensions(offset, dimensions) => {
                if let (Some((at, id)), Some(list)) = (values.pop(), lists.last_mut()) {
                    let mut dimensions = dimensions.iter();
                    let id = dimensions
                        .try_fold(id, |id, &(count, stride)| arena.stream(count, stride, id))?;
                    arena.place(list, (offset.wrapping_add(at), id))?;
                }
            }
            Task::Indexed(datatype, offset) => {
                if let (Some(value), Some(list)) = (values.pop(), lists.last_mut()) {
                    let placed = if is_alone(list, &tasks) {
                        large(arena, datatype, offset, value)?
                    } else {
                        None
                    };
                    match placed {
                        Some(placed) => room::push(list, placed)?,
                        None => blocks(arena, list, datatype, offset, value)?,
                    }
                }
            }
            Task::Emit(datatype, offset) => {
                let (datatype, at) = peel(datatype);
                let offset = offset.wrapping_add(at);
                if datatype.size() == 0 {
                    continue;
                }
                emit(arena, &mut tasks, &mut lists, datatype, offset)?;
            }
            Task::Members(offset, mut members) => {
                while let Some(((&length, &displacement), child)) = members.next() {
                    let at = offset.wrapping_add(displacement);
                    if length == 0 || child.size() == 0 {
                        continue;
                    }
                    let member = (length, at, child);
                    if let Some(placed) = members::placed(arena, &mut last, member)? {
                        if let Some(list) = lists.last_mut() {
                            room::push(list, placed)?;
                        }
                        continue;
                    }
                    let (inner, inner_at) = peel(child);
                    room::push(&mut tasks, Task::Members(offset, members))?;
                    let uses = match &known_uses {
                        Some(uses) => uses,
                        None => known_uses.insert(uses(root)?),
                    };
                    if length == 1 && uses.get(&inner.id()).copied().unwrap_or(0) <= 1 {
                        room::push(&mut tasks, Task::Emit(inner, at.wrapping_add(inner_at)))?;
                    } else {
                        let times = vec![(length as i64, child.extent())];
                        let next = [Task::Dimensions(at, times), Task::Value(child)];
                        room::extend(&mut tasks, next)?;
                    }
                    break;
                }
            }
        }
    }
    arena.list(lists.pop().unwrap_or_default())
}

/// Whether what is added to a list next is all of it.
fn is_alone(list: &[Placed], tasks: &[Task]) -> bool {
    list.is_empty() && matches!(tasks.last(), None | Some(Task::Close(_)))
}

fn emit<'a>(
    arena: &mut Arena,
    tasks: &mut Vec<Task<'a>>,
    lists: &mut [Vec<Placed>],
    datatype: &'a Datatype,
    offset: i64,
) -> room::Result<()> {
    match datatype.contents() {
        Contents::Named(named) => {
            if let Some(list) = lists.last_mut() {
                for element in named.elements() {
                    let id = arena.dense(i64::from(element.size))?;
                    room::push(list, (offset.wrapping_add(i64::from(element.offset)), id))?;
                }
            }
            Ok(())
        }
        Contents::Contiguous { count, child } => {
            let times = vec![(*count as i64, child.extent())];
            room::extend(tasks, [Task::Dimensions(offset, times), Task::Value(child)])
        }
        Contents::Vector {
            count,
            blocklength,
            stride,
            child,
        } => {
            // A stride that matters was checked when the type was made.
            let stride = stride.wrapping_mul(child.extent());
            let times = vec![
                (*blocklength as i64, child.extent()),
                (*count as i64, stride),
            ];
            room::extend(tasks, [Task::Dimensions(offset, times), Task::Value(child)])
        }
        Contents::Hvector {
            count,
            blocklength,
            stride,
            child,
        } => {
            let times = vec![
                (*blocklength as i64, child.extent()),
                (*count as i64, *stride),
            ];
            room::extend(tasks, [Task::Dimensions(offset, times), Task::Value(child)])
        }
        Contents::Subarray {
            sizes,
            subsizes,
            starts,
            order,
            child,
        } => {
            let mut at = offset;
            let mut stride = child.extent();
            let mut dimensions = room::list(sizes.len())?;
            for d in fastest_first(sizes.len(), *order) {
                at = at.wrapping_add((starts[d] as i64).wrapping_mul(stride));
                dimensions.push((subsizes[d] as i64, stride));
                stride = stride.wrapping_mul(sizes[d] as i64);
            }
            let next = [Task::Dimensions(at, dimensions), Task::Value(child)];
            room::extend(tasks, next)
        }
        Contents::Indexed { child, .. }
        | Contents::Hindexed { child, .. }
        | Contents::IndexedBlock { child, .. }
        | Contents::HindexedBlock { child, .. } => {
            let next = [Task::Indexed(datatype, offset), Task::Value(child)];
            room::extend(tasks, next)
        }
        // Members of one type are what `hindexed` makes.
        Contents::Struct {
            blocklengths,
            displacements,
            children,
        } => {
            let mut runs = children.runs();
            if let (Some((_, child)), None) = (runs.next(), runs.next()) {
                let next = [Task::Indexed(datatype, offset), Task::Value(child)];
                return room::extend(tasks, next);
            }
            let list = lists.last_mut().filter(|list| is_alone(list, tasks));
            if let Some(list) = list {
                if let Some(placed) = members::written_out(arena, datatype, offset)? {
                    return room::push(list, placed);
                }
            }
            let blocks = blocklengths.iter().zip(displacements.iter());
            room::push(tasks, Task::Members(offset, blocks.zip(children.iter())))
        }
        // `peel` took these away.
        Contents::Dup { child } | Contents::Resized { child, .. } => {
            room::push(tasks, Task::Emit(child, offset))
        }
        Contents::Darray { .. } => room::push(tasks, Task::Emit(datatype.essence(), offset)),
    }
}

/// The blocks of a large indexed type, or of a struct of one type, as arrays, if they are not much
/// more than the type itself.
fn large(
    arena: &mut Arena,
    datatype: &Datatype,
    offset: i64,
    (at, id): Placed,
) -> room::Result<Option<Placed>> {
    const ENOUGH: usize = 256;
    /// Most pieces of a child.
    const PIECES: i64 = 8;
    let (lengths, displacements, child, in_bytes) = match datatype.contents() {
        Contents::Indexed {
            blocklengths,
            displacements,
            child,
        } => (Lengths::Each(blocklengths), displacements, child, false),
        Contents::Hindexed {
            blocklengths,
            displacements,
            child,
        } => (Lengths::Each(blocklengths), displacements, child, true),
        Contents::IndexedBlock {
            blocklength,
            displacements,
            child,
        } => (Lengths::All(*blocklength), displacements, child, false),
        Contents::HindexedBlock {
            blocklength,
            displacements,
            child,
        } => (Lengths::All(*blocklength), displacements, child, true),
        Contents::Struct {
            blocklengths,
            displacements,
            children,
        } => (
            Lengths::Each(blocklengths),
            displacements,
            match children.get(0) {
                Some(child) => child,
                None => return Ok(None),
            },
            true,
        ),
        _ => return Ok(None),
    };
    if displacements.len() < ENOUGH || arena.bounds(id).segments > PIECES {
        return Ok(None);
    }
    // Equal lengths in a list are the common case, and half the work.
    let lengths = match lengths {
        Lengths::Each(all) => match all.first() {
            Some(&first) if first > 0 && all.iter().all(|&length| length == first) => {
                Lengths::All(first)
            }
            _ => lengths,
        },
        Lengths::All(_) => lengths,
    };
    let pieces = arena.segments(id)?;
    let blocks = Blocks {
        lengths,
        displacements,
        unit: if in_bytes { 1 } else { child.extent() },
        base: offset.wrapping_add(at),
        extent: child.extent(),
        child: &pieces,
    };
    let narrow = |value: i64| i32::try_from(value).is_ok();
    if !narrow(datatype.size() as i64) {
        blocks.node::<i64, i64>(arena)
    } else if !narrow(datatype.true_extent()) {
        blocks.node::<i64, i32>(arena)
    } else {
        blocks.node::<i32, i32>(arena)
    }
}

/// Places the blocks of an indexed type, or of a struct of one type.
fn blocks(
    arena: &mut Arena,
    list: &mut Vec<Placed>,
    datatype: &Datatype,
    offset: i64,
    (at, id): Placed,
) -> room::Result<()> {
    let mut known = (u64::MAX, id);
    let mut block = |list: &mut Vec<Placed>, length: u64, displacement: i64, child: &Datatype| {
        if length == 0 {
            return Ok(());
        }
        if known.0 != length {
            known = (length, arena.stream(length as i64, child.extent(), id)?);
        }
        let place = offset.wrapping_add(displacement).wrapping_add(at);
        arena.place(list, (place, known.1))
    };
    match datatype.contents() {
        Contents::Indexed {
            blocklengths,
            displacements,
            child,
        } => {
            room::reserve(list, displacements.len())?;
            for (&length, &displacement) in blocklengths.iter().zip(displacements.iter()) {
                let bytes = displacement.wrapping_mul(child.extent());
                block(list, length, bytes, child)?;
            }
        }
        Contents::Hindexed {
            blocklengths,
            displacements,
            child,
        } => {
            room::reserve(list, displacements.len())?;
            for (&length, &displacement) in blocklengths.iter().zip(displacements.iter()) {
                block(list, length, displacement, child)?;
            }
        }
        Contents::Struct {
            blocklengths,
            displacements,
            children,
        } => {
            room::reserve(list, displacements.len())?;
            let blocks = blocklengths.iter().zip(displacements.iter());
            for ((&length, &displacement), child) in blocks.zip(children.iter()) {
                block(list, length, displacement, child)?;
            }
        }
        Contents::IndexedBlock {
            blocklength,
            displacements,
            child,
        } => {
            room::reserve(list, displacements.len())?;
            for &displacement in displacements.iter() {
                let bytes = displacement.wrapping_mul(child.extent());
                block(list, *blocklength, bytes, child)?;
            }
        }
        Contents::HindexedBlock {
            blocklength,
            displacements,
            child,
        } => {
            room::reserve(list, displacements.len())?;
            for &displacement in displacements.iter() {
                block(list, *blocklength, displacement, child)?;
            }
        }
        _ => {}
    }
    Ok(())
}
