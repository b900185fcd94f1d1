// SPDX-License-Identifier: MIT OR Apache-2.0

//! The collectives as methods of [`Team`]: arguments are checked, what is pending on the buffers is
//! waited for.

use bytemuck::{
    Pod, cast_slice, cast_slice_mut, pod_collect_to_vec, try_cast_slice, try_cast_slice_mut,
};

use super::alltoall::Side;
use super::chunked::{self, Kind, Way};
use super::division::{Division, Parts, Scaled, in_bytes, own_part};
use super::{allgather, alltoall, bcast, direct, exchange, gather, planned, reduce, scatter};
use crate::error::{Boxed, Error, Result, Value};
use crate::offload;
use crate::op::{Call, Op, UNSAID};
use crate::p2p::buffer::{Elements, RecvBuffer, SendBuffer};
use crate::team::Team;

impl Team {
    /// Returns when all ranks have called it.
    ///
    /// # Errors
    ///
    /// As for [`Team::bcast`].
    pub fn barrier(&mut self) -> Result<()> {
        if self.size() == 1 {
            return self.check_home();
        }
        self.collective((Op::Barrier, 0, 0), |team| {
            if direct::takes(team, 0) {
                return direct::barrier(team);
            }
            match exchange::steps(team, 0) {
                Some(steps) => exchange::barrier(team, &steps),
                None => Ok(team.mailbox.barrier()?),
            }
        })
    }

    /// Bytes of a part, of a gather or scatter in place: the root has those of all ranks.
    fn part_in_place(&self, bytes: usize, root: usize) -> usize {
        if self.rank() == root {
            bytes / self.size()
        } else {
            bytes
        }
    }

    /// Waits for what earlier operations still do with these buffers.
    #[inline]
    fn ready(&mut self, buffers: [&[u8]; 2]) -> Result<()> {
        if !offload::any_pending() {
            return Ok(());
        }
        let settled = buffers.into_iter().try_for_each(offload::settle_bytes);
        Ok(self.settle(settled.map_err(Box::new))?)
    }

    /// Runs an operation between checks of the root before it and of the team after it. The length
    /// is said where it is the same on all ranks, who compare it while they wait. The root
    /// comes first, so that a rank that has called with a wrong one hears of that, whether others
    /// with it have broken the team already or not.
    fn collective(
        &mut self,
        (op, root, len): (Op, usize, usize),
        run: impl FnOnce(&mut Self) -> Boxed<()>,
    ) -> Result<()> {
        let size = self.size();
        let done = if root < size {
            self.operation(Call::new(op, root, len), run)
        } else {
            self.settle(Err(Error::argument("root", root, ..size).into()))
        };
        Ok(done?)
    }

    /// Copies the root's `data` into everybody's.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if there is no such root, [`Error::Mismatch`] if the ranks call
    /// different operations or lengths, [`Error::PeerDied`] or [`Error::PeerLeft`] if a rank is
    /// gone, [`Error::Broken`] after an earlier error, [`Error::System`] or [`Error::Ioctl`] if a
    /// transport fails on the way. An error of one rank breaks the team for all, from the call on
    /// in which it happens.
    pub fn bcast<T: Pod>(&mut self, data: &mut [T], root: usize) -> Result<()> {
        let bytes: &mut [u8] = cast_slice_mut(data);
        self.ready([bytes, &[]])?;
        self.collective((Op::Bcast, root, bytes.len()), |team| {
            if team.rank() == root {
                bcast::root(team, bytes)
            } else {
                bcast::leaf(team, bytes, root)
            }
        })
    }

    /// Collects everybody's `send`, all of one length, in the root's `recv`, ordered by rank.
    /// Only the root gives a `recv`.
    ///
    /// # Errors
    ///
    /// As for [`Team::bcast`], and [`Error::Argument`] if `recv` is missing at the root, given
    /// elsewhere, or cannot be divided by the number of ranks, or if `send` is not as long as a
    /// part.
    pub fn gather<T: Pod>(
        &mut self,
        send: &[T],
        recv: Option<&mut [T]>,
        root: usize,
    ) -> Result<()> {
        let (send, recv): (&[u8], Option<&mut [u8]>) = (cast_slice(send), recv.map(cast_slice_mut));
        self.ready([send, recv.as_deref().unwrap_or_default()])?;
        self.collective((Op::Gather, root, send.len()), |team| {
            let is_root = at_root(team, root, recv.is_some(), "receive buffer")?;
            let recv = recv.unwrap_or_default();
            let division = Division::equal(recv.len(), team.size(), "receive buffer of a gather")?;
            if is_root {
                own_part(send.len(), division.part(root).1)?;
            }
            let mine = (send.as_ptr(), send.len());
            let otherwise = |team: &mut Team, recv: &mut [u8]| {
                if is_root {
                    gather::root(team, Some(send), recv, division)
                } else {
                    gather::leaf(team, send, root)
                }
            };
            // SAFETY: both are borrowed; the root's parts are as long as its own.
            unsafe { gather_equal(team, root, mine, recv, otherwise) }
        })
    }

    /// [`Team::gather`] where the root's own part is in its place already: at the root, `data`
    /// is the whole receive buffer; elsewhere it is what is sent.
    ///
    /// # Errors
    ///
    /// As for [`Team::bcast`], and [`Error::Argument`] if the root's `data` cannot be divided by
    /// the number of ranks.
    pub fn gather_in_place<T: Pod>(&mut self, data: &mut [T], root: usize) -> Result<()> {
        let bytes: &mut [u8] = cast_slice_mut(data);
        self.ready([bytes, &[]])?;
        let part = self.part_in_place(bytes.len(), root);
        self.collective((Op::Gather, root, part), |team| {
            let is_root = team.rank() == root;
            let all = if is_root { bytes.len() } else { 0 };
            let division = Division::equal(all, team.size(), "receive buffer of a gather")?;
            let (base, own) = (bytes.as_mut_ptr(), division.part(team.rank()).0);
            let (recv, leaf): (&mut [u8], &[u8]) = if is_root {
                (bytes, &[])
            } else {
                (&mut [], bytes)
            };
            let otherwise = |team: &mut Team, recv: &mut [u8]| {
                if is_root {
                    gather::root(team, None, recv, division)
                } else {
                    gather::leaf(team, leaf, root)
                }
            };
            // SAFETY: our part is inside the slice, which is borrowed.
            unsafe { gather_equal(team, root, (base.add(own), part), recv, otherwise) }
        })
    }

    /// [`Team::gather`] with parts of different lengths. Only the root knows the parts.
    ///
    /// # Errors
    ///
    /// As for [`Team::gather`], and [`Error::Argument`] if a part lies outside `recv` or overlaps
    /// another one.
    pub fn gatherv<T: Pod>(
        &mut self,
        send: &[T],
        recv: Option<(&mut [T], Parts<'_>)>,
        root: usize,
    ) -> Result<()> {
        let send: &[u8] = cast_slice(send);
        let scaled = recv.as_ref().map(|(_, parts)| parts.scaled::<T>());
        let scaled = scaled.transpose()?;
        let recv: Option<(&mut [u8], Parts<'_>)> = recv
            .zip(scaled.as_ref())
            .map(|((recv, _), scaled)| (cast_slice_mut(recv), scaled.parts()));
        let into = recv.as_ref().map_or(&[][..], |(recv, _)| recv);
        self.ready([send, into])?;
        self.collective((Op::Gather, root, UNSAID), |team| {
            at_root(team, root, recv.is_some(), "receive buffer")?;
            let Some((recv, parts)) = recv else {
                return gather::leaf(team, send, root);
            };
            let division = Division::parts(parts, recv.len(), team.size(), true)?;
            gather::root(team, Some(send), recv, division)
        })
    }

    /// [`Team::gatherv`] where the root's own part is in its place already. Only the root gives
    /// parts.
    ///
    /// # Errors
    ///
    /// As for [`Team::gatherv`].
    pub fn gatherv_in_place<T: Pod>(
        &mut self,
        data: &mut [T],
        parts: Option<Parts<'_>>,
        root: usize,
    ) -> Result<()> {
        let bytes: &mut [u8] = cast_slice_mut(data);
        let scaled = parts.map(|parts| parts.scaled::<T>()).transpose()?;
        let parts = scaled.as_ref().map(Scaled::parts);
        self.ready([bytes, &[]])?;
        self.collective((Op::Gather, root, UNSAID), |team| {
            at_root(team, root, parts.is_some(), "list of parts")?;
            let Some(parts) = parts else {
                return gather::leaf(team, bytes, root);
            };
            let division = Division::parts(parts, bytes.len(), team.size(), true)?;
            gather::root(team, None, bytes, division)
        })
    }

    /// Hands the root's `send` out in equal parts, ordered by rank. Only the root gives a `send`.
    ///
    /// # Errors
    ///
    /// As for [`Team::bcast`], and [`Error::Argument`] if `send` is missing at the root, given
    /// elsewhere, or cannot be divided by the number of ranks, or if `recv` is not as long as a
    /// part.
    pub fn scatter<T: Pod>(
        &mut self,
        send: Option<&[T]>,
        recv: &mut [T],
        root: usize,
    ) -> Result<()> {
        let (send, recv): (Option<&[u8]>, &mut [u8]) = (send.map(cast_slice), cast_slice_mut(recv));
        self.ready([send.unwrap_or_default(), recv])?;
        self.collective((Op::Scatter, root, recv.len()), |team| {
            let is_root = at_root(team, root, send.is_some(), "send buffer")?;
            let send = send.unwrap_or_default();
            let division = Division::equal(send.len(), team.size(), "send buffer of a scatter")?;
            if is_root {
                own_part(recv.len(), division.part(root).1)?;
            }
            let part = recv.len();
            scatter_equal(team, root, send, Some(recv), part)
        })
    }

    /// [`Team::scatter`] where the root keeps its part in place: at the root, `data` is the whole
    /// send buffer; elsewhere it is where the part goes.
    ///
    /// # Errors
    ///
    /// As for [`Team::bcast`], and [`Error::Argument`] if the root's `data` cannot be divided by
    /// the number of ranks.
    pub fn scatter_in_place<T: Pod>(&mut self, data: &mut [T], root: usize) -> Result<()> {
        let bytes: &mut [u8] = cast_slice_mut(data);
        self.ready([bytes, &[]])?;
        let part = self.part_in_place(bytes.len(), root);
        self.collective((Op::Scatter, root, part), |team| {
            if team.rank() != root {
                return scatter_equal(team, root, &[], Some(bytes), part);
            }
            Division::equal(bytes.len(), team.size(), "send buffer of a scatter")?;
            scatter_equal(team, root, bytes, None, part)
        })
    }

    /// [`Team::scatter`] with parts of different lengths. Only the root knows the parts.
    ///
    /// # Errors
    ///
    /// As for [`Team::scatter`], and [`Error::Argument`] if a part lies outside `send`.
    pub fn scatterv<T: Pod>(
        &mut self,
        send: Option<(&[T], Parts<'_>)>,
        recv: &mut [T],
        root: usize,
    ) -> Result<()> {
        let scaled = send.map(|(_, parts)| parts.scaled::<T>()).transpose()?;
        let send: Option<(&[u8], Parts<'_>)> = send
            .zip(scaled.as_ref())
            .map(|((send, _), scaled)| (cast_slice(send), scaled.parts()));
        let recv: &mut [u8] = cast_slice_mut(recv);
        self.ready([send.map_or(&[][..], |(send, _)| send), recv])?;
        self.collective((Op::Scatter, root, UNSAID), |team| {
            at_root(team, root, send.is_some(), "send buffer")?;
            let Some((send, parts)) = send else {
                return scatter::leaf(team, recv, root);
            };
            let division = Division::parts(parts, send.len(), team.size(), false)?;
            scatter::root(team, send, Some(recv), division)
        })
    }

    /// [`Team::scatterv`] where the root keeps its part in place. Only the root gives parts.
    ///
    /// # Errors
    ///
    /// As for [`Team::scatterv`].
    pub fn scatterv_in_place<T: Pod>(
        &mut self,
        data: &mut [T],
        parts: Option<Parts<'_>>,
        root: usize,
    ) -> Result<()> {
        let bytes: &mut [u8] = cast_slice_mut(data);
        let scaled = parts.map(|parts| parts.scaled::<T>()).transpose()?;
        let parts = scaled.as_ref().map(Scaled::parts);
        self.ready([bytes, &[]])?;
        self.collective((Op::Scatter, root, UNSAID), |team| {
            at_root(team, root, parts.is_some(), "list of parts")?;
            let Some(parts) = parts else {
                return scatter::leaf(team, bytes, root);
            };
            let division = Division::parts(parts, bytes.len(), team.size(), false)?;
            scatter::root(team, bytes, None, division)
        })
    }

    /// Collects everybody's `send`, all of one length, in everybody's `recv`.
    ///
    /// # Errors
    ///
    /// As for [`Team::bcast`], and [`Error::Argument`] if `recv` cannot be divided by the number of
    /// ranks, or if `send` is not as long as a part.
    pub fn allgather<T: Pod>(&mut self, send: &[T], recv: &mut [T]) -> Result<()> {
        let (send, recv): (&[u8], &mut [u8]) = (cast_slice(send), cast_slice_mut(recv));
        self.ready([send, recv])?;
        self.collective((Op::Allgather, 0, recv.len()), |team| {
            let division = Division::equal(recv.len(), team.size(), "buffer of an allgather")?;
            allgather::run(team, Some(send), recv, division)
        })
    }

    /// [`Team::allgather`] where everybody's own part is in its place in `recv` already.
    ///
    /// # Errors
    ///
    /// As for [`Team::allgather`].
    pub fn allgather_in_place<T: Pod>(&mut self, recv: &mut [T]) -> Result<()> {
        let recv: &mut [u8] = cast_slice_mut(recv);
        self.ready([recv, &[]])?;
        self.collective((Op::Allgather, 0, recv.len()), |team| {
            let division = Division::equal(recv.len(), team.size(), "buffer of an allgather")?;
            allgather::run(team, None, recv, division)
        })
    }

    /// [`Team::allgather`] with parts of different lengths, which all ranks know.
    ///
    /// # Errors
    ///
    /// As for [`Team::allgather`], and [`Error::Argument`] if a part lies outside `recv` or
    /// overlaps another one.
    pub fn allgatherv<T: Pod>(
        &mut self,
        send: &[T],
        recv: &mut [T],
        parts: Parts<'_>,
    ) -> Result<()> {
        let (send, recv): (&[u8], &mut [u8]) = (cast_slice(send), cast_slice_mut(recv));
        let scaled = parts.scaled::<T>()?;
        let parts = scaled.parts();
        self.ready([send, recv])?;
        self.collective((Op::Allgather, 0, total(parts.counts)), |team| {
            let division = Division::parts(parts, recv.len(), team.size(), true)?;
            allgather::run(team, Some(send), recv, division)
        })
    }

    /// [`Team::allgatherv`] where everybody's own part is in its place already.
    ///
    /// # Errors
    ///
    /// As for [`Team::allgatherv`].
    pub fn allgatherv_in_place<T: Pod>(&mut self, recv: &mut [T], parts: Parts<'_>) -> Result<()> {
        let recv: &mut [u8] = cast_slice_mut(recv);
        let scaled = parts.scaled::<T>()?;
        let parts = scaled.parts();
        self.ready([recv, &[]])?;
        self.collective((Op::Allgather, 0, total(parts.counts)), |team| {
            let division = Division::parts(parts, recv.len(), team.size(), true)?;
            allgather::run(team, None, recv, division)
        })
    }

    /// Hands everybody's `send` out in equal parts, ordered by rank: part `i` of rank `j` becomes
    /// part `j` of rank `i`'s `recv`, which is as long.
    ///
    /// # Errors
    ///
    /// As for [`Team::bcast`], and [`Error::Argument`] if a buffer cannot be divided by the number
    /// of ranks, or if our own part has two lengths.
    pub fn alltoall<T: Pod>(&mut self, send: &[T], recv: &mut [T]) -> Result<()> {
        let (send, recv): (&[u8], &mut [u8]) = (cast_slice(send), cast_slice_mut(recv));
        self.ready([send, recv])?;
        self.collective((Op::Alltoall, 0, send.len()), |team| {
            let outgoing = Division::equal(send.len(), team.size(), "buffer of an alltoall")?;
            let incoming = Division::equal(recv.len(), team.size(), "buffer of an alltoall")?;
            let part = send.len() / team.size();
            own_part(part, recv.len() / team.size())?;
            if direct::takes_parts(team, send.len()) {
                return direct::alltoall(team, send, recv, part);
            }
            let decision = team.decide(Op::Alltoall, part);
            let way = Way::of(team, (Kind::Alltoall, 0), decision, (part, 1));
            let done = if way.is_chunked {
                chunked::alltoall(team, &way, send, recv, part)
            } else if let Some(kind) = planned::takes(team, decision) {
                planned::alltoall(team, send, recv, part, kind)
            } else {
                // SAFETY: both are borrowed, and the divisions are of these lengths.
                unsafe { alltoall::run(team, &sent(send, outgoing), &received(recv, incoming)) }
            };
            way.end(team);
            done
        })
    }

    /// [`Team::alltoall`] with parts of different lengths: what rank `i` has for rank `j` is as
    /// long as what `j` expects from `i`.
    ///
    /// # Errors
    ///
    /// As for [`Team::alltoall`], and [`Error::Argument`] if a part lies outside its buffer, or if
    /// parts of `recv` overlap.
    pub fn alltoallv<T: Pod>(
        &mut self,
        (send, outgoing): (&[T], Parts<'_>),
        (recv, incoming): (&mut [T], Parts<'_>),
    ) -> Result<()> {
        let (send, recv): (&[u8], &mut [u8]) = (cast_slice(send), cast_slice_mut(recv));
        let (outgoing, incoming) = (outgoing.scaled::<T>()?, incoming.scaled::<T>()?);
        let (outgoing, incoming) = (outgoing.parts(), incoming.parts());
        self.ready([send, recv])?;
        self.collective((Op::Alltoall, 0, UNSAID), |team| {
            let outgoing = Division::parts(outgoing, send.len(), team.size(), false)?;
            let incoming = Division::parts(incoming, recv.len(), team.size(), true)?;
            // SAFETY: both are borrowed, and the divisions are of these lengths.
            unsafe { alltoall::run(team, &sent(send, outgoing), &received(recv, incoming)) }
        })
    }

    /// [`Team::alltoallv`] with elements of their own for each rank, dense or of a layout: what
    /// rank `i` has for rank `j` has as many bytes as what `j` expects from `i`. Elements of a
    /// layout are packed into the memory that the two share piece by piece, while the other rank
    /// unpacks the pieces before (MPI 4.1, 6.8, `MPI_Alltoallw`).
    ///
    /// # Errors
    ///
    /// As for [`Team::bcast`], and [`Error::Argument`] if there are not as many elements as ranks,
    /// or if our own part has two lengths.
    pub fn alltoallw(
        &mut self,
        send: &[SendBuffer<'_>],
        recv: &mut [RecvBuffer<'_>],
    ) -> Result<()> {
        let outgoing: Vec<&Elements> = send.iter().map(|buffer| &buffer.elements).collect();
        let incoming: Vec<&Elements> = recv.iter().map(|buffer| &buffer.elements).collect();
        let settled = outgoing.iter().chain(&incoming).try_for_each(|elements| {
            let (start, len) = elements.range();
            offload::settle(start, len)
        });
        self.settle(settled.map_err(Box::new))?;
        self.collective((Op::Alltoall, 0, UNSAID), |team| {
            for (what, given) in [
                ("number of elements that are sent", outgoing.len()),
                ("number of elements that are received", incoming.len()),
            ] {
                if given != team.size() {
                    return Err(Error::argument(what, given, team.size()).into());
                }
            }
            // SAFETY: the buffers are borrowed, or their owner has promised as much.
            unsafe { alltoall::run_elements(team, outgoing, incoming) }
        })
    }

    /// Combines everybody's elements in the root's `recv`. `combine(a, b)` combines the elements of
    /// `a` into those of `b`, of which there are as many; it must be commutative and associative.
    /// Only the root gives a `recv`; without a `send`, the root's own elements are there already.
    ///
    /// # Errors
    ///
    /// As for [`Team::bcast`], and [`Error::Argument`] if a buffer is missing, or if the two have
    /// different lengths.
    pub fn reduce<T: Pod>(
        &mut self,
        send: Option<&[T]>,
        recv: Option<&mut [T]>,
        root: usize,
        combine: impl FnMut(&[T], &mut [T]),
    ) -> Result<()> {
        let (send, recv) = (send.map(cast_slice), recv.map(cast_slice_mut));
        self.reduce_bytes(send, recv, root, size_of::<T>(), of_bytes(combine))
    }

    /// [`Team::reduce`] to everybody: all get the same result. Without a `send`, our own elements
    /// are in `recv` already.
    ///
    /// # Errors
    ///
    /// As for [`Team::reduce`].
    pub fn allreduce<T: Pod>(
        &mut self,
        send: Option<&[T]>,
        recv: &mut [T],
        combine: impl FnMut(&[T], &mut [T]),
    ) -> Result<()> {
        let (send, recv) = (send.map(cast_slice), cast_slice_mut(recv));
        self.allreduce_bytes(send, recv, size_of::<T>(), of_bytes(combine))
    }

    /// [`Team::reduce`] where rank `i` gets, in its `recv`, the `counts[i]` elements of the result
    /// that follow those of the ranks before it.
    ///
    /// # Errors
    ///
    /// As for [`Team::bcast`], and [`Error::Argument`] if the counts do not fit into `send`, or if
    /// `recv` is not as long as our count.
    pub fn reduce_scatter<T: Pod>(
        &mut self,
        send: &[T],
        recv: &mut [T],
        counts: &[usize],
        combine: impl FnMut(&[T], &mut [T]),
    ) -> Result<()> {
        let counts = in_bytes::<T>(counts)?;
        let (send, recv) = (cast_slice(send), cast_slice_mut(recv));
        self.reduce_scatter_bytes(send, recv, &counts, size_of::<T>(), of_bytes(combine))
    }

    /// Combines our elements and those of the ranks before us in our `recv` (MPI 4.1, section
    /// 6.11.1). `combine` is that of [`Team::reduce`]; without a `send`, our own elements are in
    /// `recv` already.
    ///
    /// # Errors
    ///
    /// As for [`Team::allreduce`].
    pub fn scan<T: Pod>(
        &mut self,
        send: Option<&[T]>,
        recv: &mut [T],
        combine: impl FnMut(&[T], &mut [T]),
    ) -> Result<()> {
        let (send, recv) = (send.map(cast_slice), cast_slice_mut(recv));
        self.scan_bytes(send, recv, size_of::<T>(), of_bytes(combine))
    }

    /// [`Team::scan`] without our own elements (MPI 4.1, section 6.11.2). The first rank's `recv`
    /// stays as it is.
    ///
    /// # Errors
    ///
    /// As for [`Team::allreduce`].
    pub fn exscan<T: Pod>(
        &mut self,
        send: Option<&[T]>,
        recv: &mut [T],
        combine: impl FnMut(&[T], &mut [T]),
    ) -> Result<()> {
        let (send, recv) = (send.map(cast_slice), cast_slice_mut(recv));
        self.exscan_bytes(send, recv, size_of::<T>(), of_bytes(combine))
    }

    /// [`Team::reduce`] of elements of `element` bytes each, where their type is known at run time
    /// only.
    ///
    /// # Errors
    ///
    /// As for [`Team::bcast`], and [`Error::Argument`] if a buffer is missing, is no multiple of
    /// `element`, or if the two have different lengths.
    pub fn reduce_bytes(
        &mut self,
        send: Option<&[u8]>,
        recv: Option<&mut [u8]>,
        root: usize,
        element: usize,
        mut combine: impl FnMut(&[u8], &mut [u8]),
    ) -> Result<()> {
        self.ready([
            send.unwrap_or_default(),
            recv.as_deref().unwrap_or_default(),
        ])?;
        let len = recv.as_deref().or(send).map_or(0, <[u8]>::len);
        self.collective((Op::Reduce, root, len), |team| {
            at_root(team, root, recv.is_some(), "receive buffer")?;
            let (from, to, len) = match recv {
                Some(recv) => (same_length(send, recv)?, recv.as_mut_ptr(), recv.len()),
                None => {
                    let send = send.ok_or_else(|| missing("send buffer"))?;
                    (send.as_ptr(), std::ptr::null_mut(), send.len())
                }
            };
            // SAFETY: both are borrowed, and have these bytes.
            unsafe { reduce::to_root(team, root, (from, to, len), element, &mut combine) }
        })
    }

    /// [`Team::allreduce`] of elements of `element` bytes each.
    ///
    /// # Errors
    ///
    /// As for [`Team::bcast`], and [`Error::Argument`] if a buffer is no multiple of `element`, or
    /// if the two have different lengths.
    pub fn allreduce_bytes(
        &mut self,
        send: Option<&[u8]>,
        recv: &mut [u8],
        element: usize,
        mut combine: impl FnMut(&[u8], &mut [u8]),
    ) -> Result<()> {
        self.ready([send.unwrap_or_default(), recv])?;
        self.collective((Op::Allreduce, 0, recv.len()), |team| {
            let from = same_length(send, recv)?;
            // SAFETY: both are borrowed, and have as many bytes.
            unsafe { reduce::to_all(team, from, recv, element, &mut combine) }
        })
    }

    /// [`Team::scan`] of elements of `element` bytes each.
    ///
    /// # Errors
    ///
    /// As for [`Team::allreduce_bytes`].
    pub fn scan_bytes(
        &mut self,
        send: Option<&[u8]>,
        recv: &mut [u8],
        element: usize,
        combine: impl FnMut(&[u8], &mut [u8]),
    ) -> Result<()> {
        Ok(self.prefix(Op::Scan, send, recv, element, combine)?)
    }

    /// [`Team::exscan`] of elements of `element` bytes each.
    ///
    /// # Errors
    ///
    /// As for [`Team::allreduce_bytes`].
    pub fn exscan_bytes(
        &mut self,
        send: Option<&[u8]>,
        recv: &mut [u8],
        element: usize,
        combine: impl FnMut(&[u8], &mut [u8]),
    ) -> Result<()> {
        Ok(self.prefix(Op::Exscan, send, recv, element, combine)?)
    }

    fn prefix(
        &mut self,
        op: Op,
        send: Option<&[u8]>,
        recv: &mut [u8],
        element: usize,
        mut combine: impl FnMut(&[u8], &mut [u8]),
    ) -> Boxed<()> {
        self.ready([send.unwrap_or_default(), recv])?;
        Ok(self.collective((op, 0, recv.len()), |team| {
            let from = same_length(send, recv)?;
            let (to, len) = (recv.as_mut_ptr(), recv.len());
            // SAFETY: both are borrowed, and have as many bytes.
            unsafe { reduce::scan(team, op, (from, to, len), element, &mut combine) }
        })?)
    }

    /// [`Team::reduce_scatter`] of elements of `element` bytes each; the counts are bytes.
    ///
    /// # Errors
    ///
    /// As for [`Team::bcast`], and [`Error::Argument`] if a length is no multiple of `element`, if
    /// the counts do not fit into `send`, or if `recv` is not as long as our count.
    pub fn reduce_scatter_bytes(
        &mut self,
        send: &[u8],
        recv: &mut [u8],
        counts: &[usize],
        element: usize,
        mut combine: impl FnMut(&[u8], &mut [u8]),
    ) -> Result<()> {
        self.ready([send, recv])?;
        // A rank may give more than is divided.
        let len = total(counts);
        self.collective((Op::ReduceScatter, 0, len), |team| {
            reduce::whole_elements(send.len(), element)?;
            for &count in counts {
                reduce::whole_elements(count, element)?;
            }
            let mut end = 0usize;
            let offsets: Vec<usize> = counts
                .iter()
                .map(|count| {
                    let start = end;
                    end = end.saturating_add(*count);
                    start
                })
                .collect();
            let parts = Parts {
                counts,
                offsets: &offsets,
            };
            Division::parts(parts, send.len(), team.size(), false)?;
            own_part(recv.len(), counts[team.rank()])?;
            let (from, to) = (send.as_ptr(), recv.as_mut_ptr());
            // SAFETY: both are borrowed; the counts were checked against their lengths.
            unsafe { reduce::scattered(team, (from, to), counts, element, &mut combine) }
        })
    }
}

/// Collects parts of `part` bytes, ours at `mine`, in the root's `recv`, which is empty elsewhere;
/// `otherwise`: neither in one step, nor in chunks, nor by plans.
///
/// # Safety
///
/// `mine` has these bytes, in its place of `recv` or apart, and `recv` has as many for each rank.
unsafe fn gather_equal(
    team: &mut Team,
    root: usize,
    (mine, part): (*const u8, usize),
    recv: &mut [u8],
    otherwise: impl FnOnce(&mut Team, &mut [u8]) -> Boxed<()>,
) -> Boxed<()> {
    let all = part.saturating_mul(team.size() - 1);
    if direct::takes_parts(team, part) || direct::takes_pieces(team, all) {
        // SAFETY: the caller's promise.
        return unsafe { direct::gather(team, root, (mine, part), recv) };
    }
    let decision = team.decide(Op::Gather, part);
    let way = Way::of(team, (Kind::Gather, root), decision, (part, 1));
    // SAFETY: likewise.
    let done = unsafe {
        if way.is_chunked {
            chunked::gather(team, &way, root, (mine, part), recv)
        } else if let Some(kind) = planned::takes_turns(team, Op::Gather, part) {
            planned::gather(team, root, (mine, part), recv, kind)
        } else {
            otherwise(team, recv)
        }
    };
    way.end(team);
    done
}

/// Hands out the root's `send`, which is empty elsewhere, in parts of `part` bytes, ours to `own`,
/// unless the root's stays in place.
fn scatter_equal(
    team: &mut Team,
    root: usize,
    send: &[u8],
    own: Option<&mut [u8]>,
    part: usize,
) -> Boxed<()> {
    let others = team.size() - 1;
    if direct::takes_pieces(team, part.saturating_mul(others)) {
        return direct::scatter(team, root, send, own, part);
    }
    let decision = team.decide(Op::Scatter, part);
    let way = Way::of(team, (Kind::Scatter, root), decision, (part, 64));
    let done = if way.is_chunked {
        chunked::scatter(team, &way, root, send, own, part)
    } else if let Some(kind) = planned::takes_turns(team, Op::Scatter, part) {
        let kept = || send[root * part..].as_ptr().cast_mut();
        let mine = own.map_or_else(kept, <[u8]>::as_mut_ptr);
        // SAFETY: our part is borrowed, or inside the slice, and stays as it is then.
        unsafe { planned::scatter(team, root, send, (mine, part), kind) }
    } else if team.rank() == root {
        let division = Division::equal(send.len(), team.size(), "send buffer of a scatter")?;
        scatter::root(team, send, own, division)
    } else {
        scatter::leaf(team, own.unwrap_or_default(), root)
    };
    way.end(team);
    done
}

/// `combine` for bytes, which are elements.
fn of_bytes<T: Pod>(mut combine: impl FnMut(&[T], &mut [T])) -> impl FnMut(&[u8], &mut [u8]) {
    move |from, into| match (try_cast_slice(from), try_cast_slice_mut(&mut *into)) {
        (Ok(from), Ok(into)) => combine(from, into),
        // Where a transport puts them, they may lie at any address.
        _ => {
            let from: Vec<T> = pod_collect_to_vec(from);
            let mut combined: Vec<T> = pod_collect_to_vec(into);
            combine(&from, &mut combined);
            into.copy_from_slice(cast_slice(&combined));
        }
    }
}

/// Bytes of all parts, before anything is checked.
fn total(counts: &[usize]) -> usize {
    counts
        .iter()
        .fold(0, |sum, count| sum.saturating_add(*count))
}

/// The parts of a buffer that is sent.
fn sent<'a>(bytes: &[u8], division: Division<'a>) -> Side<'a> {
    Side::Bytes(bytes.as_ptr().cast_mut(), bytes.len(), division)
}

/// The parts of a buffer that is filled.
fn received<'a>(bytes: &mut [u8], division: Division<'a>) -> Side<'a> {
    Side::Bytes(bytes.as_mut_ptr(), bytes.len(), division)
}

fn missing(what: &'static str) -> Error {
    Error::argument(what, Value::Missing, "given")
}

/// Where our own elements of a reduction are: in `send`, or else in `recv`.
fn same_length(send: Option<&[u8]>, recv: &[u8]) -> Boxed<*const u8> {
    match send {
        Some(send) if send.len() != recv.len() => Err(Error::argument(
            "length of a reduction's send buffer",
            send.len(),
            recv.len(),
        )
        .into()),
        Some(send) => Ok(send.as_ptr()),
        None => Ok(recv.as_ptr()),
    }
}

/// Whether we are the root; only the root gives what `given` is about.
fn at_root(team: &Team, root: usize, given: bool, what: &'static str) -> Boxed<bool> {
    match (team.rank() == root, given) {
        (true, false) => Err(Error::argument(what, Value::Missing, "given at the root").into()),
        (false, true) => {
            Err(Error::argument(what, "given", "left out at a rank that is not the root").into())
        }
        (root, _) => Ok(root),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_at_any_address_are_combined() {
        let add = |from: &[u32], into: &mut [u32]| {
            for (a, b) in from.iter().zip(into) {
                *b = b.wrapping_add(*a);
            }
        };
        let mut add = of_bytes(add);
        let (from, mut into) = ([1u8; 17], [2u8; 17]);
        for start in [0, 1] {
            add(&from[start..16 + start], &mut into[start..16 + start]);
        }
        let expected: Vec<u8> = [[3].as_slice(), &[4; 15], &[3]].concat();
        assert_eq!(into[..], expected);
    }
}
