// SPDX-License-Identifier: MIT OR Apache-2.0

//! The tables of MPI functions. Whatever has to be said for each of them is made of its row: how
//! the MPI library's function is called ([`crate::library::pmpi`]), the exports for C and Fortran
//! programs ([`crate::exports`]), and the names in the statistics ([`crate::library::stats`]).
//!
//! A row of collectives (MPI 4.1, chapter 6 and section 8.7) has the name of the operation and the
//! arguments that its blocking, nonblocking and persistent functions have in common, each with its
//! kind ([`argument_type`]), the communicator last. Then:
//!
//! - `operation`: what it is in the library ([`libcopy::collective::Op`]).
//! - `arrays`: how long its arrays are ([`crate::library::pmpi::both_forms::Arrays`]).
//! - `device`: the method of `gpu::Collective` that replaces its buffers where they are in device
//!   memory, the buffers ([`crate::library::buffers`]), and the root, if there is one.
//! - `small`: the question that says, for next to nothing, that a call is forwarded; of functions
//!   that are intercepted.
//! - A line for each function: its form, its name in [`crate::library::pmpi`], the names that C
//!   programs call, with `int`s, with `MPI_Count`s, and before MPI 4.0, and the names that Fortran
//!   programs call and that go past C's in Open MPI. Behind `=>` are the variant of
//!   [`crate::library::stats::Function`] and the module that intercepts it; without these it is
//!   forwarded.

/// Calls a macro with the table of collectives.
macro_rules! collectives {
    ($use:ident) => {
        $use! {
            bcast(buffer: output, count: count, datatype: datatype, root: root; comm) {
                operation Bcast;
                arrays [None];
                device bcast [buffer(buffer, count, datatype)] [root];
                small [is_small_or_counted(count, datatype, comm)];
                blocking bcast = [MPI_Bcast MPI_Bcast_c] [mpi_bcast_ ompi_bcast_f] => Bcast regular;
                nonblocking ibcast = [MPI_Ibcast MPI_Ibcast_c] [mpi_ibcast_ ompi_ibcast_f] => Ibcast calls;
                persistent bcast_init = [MPI_Bcast_init MPI_Bcast_init_c MPIX_Bcast_init]
                    [mpi_bcast_init_ ompi_bcast_init_f mpix_bcast_init_ ompix_bcast_init_f] => BcastInit calls;
            }
            gather(
                send: input, send_count: count, send_type: datatype,
                recv: output, recv_count: count, recv_type: datatype, root: root; comm
            ) {
                operation Gather;
                arrays [None];
                device gather [buffer(send, send_count, send_type), buffer(recv, recv_count, recv_type)] [root];
                small [is_small_unless_special(send, send_count, send_type)];
                blocking gather = [MPI_Gather MPI_Gather_c] [mpi_gather_ ompi_gather_f] => Gather regular;
                nonblocking igather = [MPI_Igather MPI_Igather_c] [mpi_igather_ ompi_igather_f] => Igather calls;
                persistent gather_init = [MPI_Gather_init MPI_Gather_init_c MPIX_Gather_init]
                    [mpi_gather_init_ ompi_gather_init_f mpix_gather_init_ ompix_gather_init_f] => GatherInit calls;
            }
            scatter(
                send: input, send_count: count, send_type: datatype,
                recv: output, recv_count: count, recv_type: datatype, root: root; comm
            ) {
                operation Scatter;
                arrays [None];
                device scatter [buffer(send, send_count, send_type), buffer(recv, recv_count, recv_type)] [root];
                small [is_small_unless_special(recv, recv_count, recv_type)];
                blocking scatter = [MPI_Scatter MPI_Scatter_c] [mpi_scatter_ ompi_scatter_f] => Scatter regular;
                nonblocking iscatter = [MPI_Iscatter MPI_Iscatter_c] [mpi_iscatter_ ompi_iscatter_f] => Iscatter calls;
                persistent scatter_init = [MPI_Scatter_init MPI_Scatter_init_c MPIX_Scatter_init]
                    [mpi_scatter_init_ ompi_scatter_init_f mpix_scatter_init_ ompix_scatter_init_f] => ScatterInit calls;
            }
            allgather(
                send: input, send_count: count, send_type: datatype,
                recv: output, recv_count: count, recv_type: datatype; comm
            ) {
                operation Allgather;
                arrays [None];
                device allgather [buffer(send, send_count, send_type), buffer(recv, recv_count, recv_type)] [];
                small [is_small(recv_count, recv_type)];
                blocking allgather = [MPI_Allgather MPI_Allgather_c] [mpi_allgather_ ompi_allgather_f] => Allgather regular;
                nonblocking iallgather = [MPI_Iallgather MPI_Iallgather_c] [mpi_iallgather_ ompi_iallgather_f] => Iallgather calls;
                persistent allgather_init = [MPI_Allgather_init MPI_Allgather_init_c MPIX_Allgather_init]
                    [mpi_allgather_init_ ompi_allgather_init_f mpix_allgather_init_ ompix_allgather_init_f] => AllgatherInit calls;
            }
            alltoall(
                send: input, send_count: count, send_type: datatype,
                recv: output, recv_count: count, recv_type: datatype; comm
            ) {
                operation Alltoall;
                arrays [None];
                device alltoall [buffer(send, send_count, send_type), buffer(recv, recv_count, recv_type)] [];
                small [is_small(recv_count, recv_type)];
                blocking alltoall = [MPI_Alltoall MPI_Alltoall_c] [mpi_alltoall_ ompi_alltoall_f] => Alltoall regular;
                nonblocking ialltoall = [MPI_Ialltoall MPI_Ialltoall_c] [mpi_ialltoall_ ompi_ialltoall_f] => Ialltoall calls;
                persistent alltoall_init = [MPI_Alltoall_init MPI_Alltoall_init_c MPIX_Alltoall_init]
                    [mpi_alltoall_init_ ompi_alltoall_init_f mpix_alltoall_init_ ompix_alltoall_init_f] => AlltoallInit calls;
            }
            gatherv(
                send: input, send_count: count, send_type: datatype,
                recv: output, recv_counts: counts, recv_places: places, recv_type: datatype, root: root; comm
            ) {
                operation Gather;
                arrays [AtRoot(root)];
                device gather [buffer(send, send_count, send_type), buffer_v(recv, recv_counts, recv_places, recv_type)] [root];
                small [were_small(comm)];
                blocking gatherv = [MPI_Gatherv MPI_Gatherv_c] [mpi_gatherv_ ompi_gatherv_f] => Gatherv irregular;
                nonblocking igatherv = [MPI_Igatherv MPI_Igatherv_c] [mpi_igatherv_ ompi_igatherv_f] => Igatherv nonblocking_irregular;
                persistent gatherv_init = [MPI_Gatherv_init MPI_Gatherv_init_c MPIX_Gatherv_init] [];
            }
            scatterv(
                send: input, send_counts: counts, send_places: places, send_type: datatype,
                recv: output, recv_count: count, recv_type: datatype, root: root; comm
            ) {
                operation Scatter;
                arrays [AtRoot(root)];
                device scatter [buffer_v(send, send_counts, send_places, send_type), buffer(recv, recv_count, recv_type)] [root];
                small [were_small(comm)];
                blocking scatterv = [MPI_Scatterv MPI_Scatterv_c] [mpi_scatterv_ ompi_scatterv_f] => Scatterv irregular;
                nonblocking iscatterv = [MPI_Iscatterv MPI_Iscatterv_c] [mpi_iscatterv_ ompi_iscatterv_f] => Iscatterv nonblocking_irregular;
                persistent scatterv_init = [MPI_Scatterv_init MPI_Scatterv_init_c MPIX_Scatterv_init] [];
            }
            allgatherv(
                send: input, send_count: count, send_type: datatype,
                recv: output, recv_counts: counts, recv_places: places, recv_type: datatype; comm
            ) {
                operation Allgather;
                arrays [PerPeer];
                device allgather [buffer(send, send_count, send_type), buffer_v(recv, recv_counts, recv_places, recv_type)] [];
                small [are_small_parts(recv_counts, recv_type, comm)];
                blocking allgatherv = [MPI_Allgatherv MPI_Allgatherv_c] [mpi_allgatherv_ ompi_allgatherv_f] => Allgatherv irregular;
                nonblocking iallgatherv = [MPI_Iallgatherv MPI_Iallgatherv_c] [mpi_iallgatherv_ ompi_iallgatherv_f] => Iallgatherv nonblocking_irregular;
                persistent allgatherv_init = [MPI_Allgatherv_init MPI_Allgatherv_init_c MPIX_Allgatherv_init] [];
            }
            alltoallv(
                send: input, send_counts: sent_counts, send_places: sent_places, send_type: datatype,
                recv: output, recv_counts: counts, recv_places: places, recv_type: datatype; comm
            ) {
                operation Alltoall;
                arrays [Exchange(send)];
                device alltoall [
                    buffer_v(send, send_counts, send_places, send_type),
                    buffer_v(recv, recv_counts, recv_places, recv_type)
                ] [];
                small [were_small(comm)];
                blocking alltoallv = [MPI_Alltoallv MPI_Alltoallv_c] [mpi_alltoallv_ ompi_alltoallv_f] => Alltoallv irregular;
                nonblocking ialltoallv = [MPI_Ialltoallv MPI_Ialltoallv_c] [mpi_ialltoallv_ ompi_ialltoallv_f] => Ialltoallv nonblocking_irregular;
                persistent alltoallv_init = [MPI_Alltoallv_init MPI_Alltoallv_init_c MPIX_Alltoallv_init] [];
            }
            alltoallw(
                send: input, send_counts: sent_counts, send_places: sent_places, send_types: sent_types,
                recv: output, recv_counts: counts, recv_places: places, recv_types: types; comm
            ) {
                operation Alltoall;
                arrays [Exchange(send)];
                device alltoall [
                    buffer_w(send, send_counts, send_places, send_types),
                    buffer_w(recv, recv_counts, recv_places, recv_types)
                ] [];
                small [typed_were_small(comm)];
                blocking alltoallw = [MPI_Alltoallw MPI_Alltoallw_c] [mpi_alltoallw_ ompi_alltoallw_f] => Alltoallw rdma_alltoallw;
                nonblocking ialltoallw = [MPI_Ialltoallw MPI_Ialltoallw_c] [] => Ialltoallw nonblocking_irregular;
                persistent alltoallw_init = [MPI_Alltoallw_init MPI_Alltoallw_init_c MPIX_Alltoallw_init] [];
            }
            reduce(send: input, recv: output, count: count, datatype: datatype, op: op, root: root; comm) {
                operation Reduce;
                arrays [None];
                device reduce [reduction(send, recv, count, datatype, op)] [root];
                small [is_small(count, datatype)];
                blocking reduce = [MPI_Reduce MPI_Reduce_c] [mpi_reduce_ ompi_reduce_f] => Reduce reductions;
                nonblocking ireduce = [MPI_Ireduce MPI_Ireduce_c] [mpi_ireduce_ ompi_ireduce_f] => Ireduce calls;
                persistent reduce_init = [MPI_Reduce_init MPI_Reduce_init_c MPIX_Reduce_init]
                    [mpi_reduce_init_ ompi_reduce_init_f mpix_reduce_init_ ompix_reduce_init_f] => ReduceInit calls;
            }
            allreduce(send: input, recv: output, count: count, datatype: datatype, op: op; comm) {
                operation Allreduce;
                arrays [None];
                device allreduce [reduction(send, recv, count, datatype, op)] [];
                small [is_small(count, datatype)];
                blocking allreduce = [MPI_Allreduce MPI_Allreduce_c] [mpi_allreduce_ ompi_allreduce_f] => Allreduce reductions;
                nonblocking iallreduce = [MPI_Iallreduce MPI_Iallreduce_c] [mpi_iallreduce_ ompi_iallreduce_f] => Iallreduce calls;
                persistent allreduce_init = [MPI_Allreduce_init MPI_Allreduce_init_c MPIX_Allreduce_init]
                    [mpi_allreduce_init_ ompi_allreduce_init_f mpix_allreduce_init_ ompix_allreduce_init_f] => AllreduceInit calls;
            }
            reduce_scatter(send: input, recv: output, counts: counts, datatype: datatype, op: op; comm) {
                operation ReduceScatter;
                arrays [PerRank];
                device reduce_scatter [reduction(send, recv, counts, datatype, op)] [];
                small [are_small_together(counts, datatype, comm)];
                blocking reduce_scatter = [MPI_Reduce_scatter MPI_Reduce_scatter_c] [mpi_reduce_scatter_ ompi_reduce_scatter_f]
                    => ReduceScatter reductions;
                nonblocking ireduce_scatter = [MPI_Ireduce_scatter MPI_Ireduce_scatter_c]
                    [mpi_ireduce_scatter_ ompi_ireduce_scatter_f] => IreduceScatter nonblocking_irregular;
                persistent reduce_scatter_init = [MPI_Reduce_scatter_init MPI_Reduce_scatter_init_c MPIX_Reduce_scatter_init] [];
            }
            reduce_scatter_block(send: input, recv: output, count: count, datatype: datatype, op: op; comm) {
                operation ReduceScatter;
                arrays [None];
                device reduce_scatter_block [reduction(send, recv, count, datatype, op)] [];
                small [is_small(count, datatype)];
                blocking reduce_scatter_block = [MPI_Reduce_scatter_block MPI_Reduce_scatter_block_c]
                    [mpi_reduce_scatter_block_ ompi_reduce_scatter_block_f] => ReduceScatterBlock reductions;
                nonblocking ireduce_scatter_block = [MPI_Ireduce_scatter_block MPI_Ireduce_scatter_block_c]
                    [mpi_ireduce_scatter_block_ ompi_ireduce_scatter_block_f] => IreduceScatterBlock nonblocking_irregular;
                persistent reduce_scatter_block_init =
                    [MPI_Reduce_scatter_block_init MPI_Reduce_scatter_block_init_c MPIX_Reduce_scatter_block_init] [];
            }
            scan(send: input, recv: output, count: count, datatype: datatype, op: op; comm) {
                operation Scan;
                arrays [None];
                device allreduce [reduction(send, recv, count, datatype, op)] [];
                small [is_small(count, datatype)];
                blocking scan = [MPI_Scan MPI_Scan_c] [mpi_scan_ ompi_scan_f] => Scan reductions;
                nonblocking iscan = [MPI_Iscan MPI_Iscan_c] [mpi_iscan_ ompi_iscan_f] => Iscan calls;
                persistent scan_init = [MPI_Scan_init MPI_Scan_init_c MPIX_Scan_init] [];
            }
            exscan(send: input, recv: output, count: count, datatype: datatype, op: op; comm) {
                operation Exscan;
                arrays [None];
                device allreduce [reduction(send, recv, count, datatype, op)] [];
                small [is_small(count, datatype)];
                blocking exscan = [MPI_Exscan MPI_Exscan_c] [mpi_exscan_ ompi_exscan_f] => Exscan reductions;
                nonblocking iexscan = [MPI_Iexscan MPI_Iexscan_c] [mpi_iexscan_ ompi_iexscan_f] => Iexscan calls;
                persistent exscan_init = [MPI_Exscan_init MPI_Exscan_init_c MPIX_Exscan_init] [];
            }
            neighbor_allgather(
                send: input, send_count: count, send_type: datatype,
                recv: output, recv_count: count, recv_type: datatype; comm
            ) {
                operation Alltoall;
                arrays [None];
                device neighbor_allgather [buffer(send, send_count, send_type), buffer(recv, recv_count, recv_type)] [];
                small [were_small(comm)];
                blocking neighbor_allgather = [MPI_Neighbor_allgather MPI_Neighbor_allgather_c]
                    [mpi_neighbor_allgather_ ompi_neighbor_allgather_f] => NeighborAllgather neighbours;
                nonblocking ineighbor_allgather = [MPI_Ineighbor_allgather MPI_Ineighbor_allgather_c]
                    [mpi_ineighbor_allgather_ ompi_ineighbor_allgather_f] => IneighborAllgather nonblocking_irregular;
                persistent neighbor_allgather_init =
                    [MPI_Neighbor_allgather_init MPI_Neighbor_allgather_init_c MPIX_Neighbor_allgather_init] [];
            }
            neighbor_allgatherv(
                send: input, send_count: count, send_type: datatype,
                recv: output, recv_counts: counts, recv_places: places, recv_type: datatype; comm
            ) {
                operation Alltoall;
                arrays [PerNeighbour];
                device neighbor_allgather [buffer(send, send_count, send_type), buffer_v(recv, recv_counts, recv_places, recv_type)] [];
                small [were_small(comm)];
                blocking neighbor_allgatherv = [MPI_Neighbor_allgatherv MPI_Neighbor_allgatherv_c]
                    [mpi_neighbor_allgatherv_ ompi_neighbor_allgatherv_f] => NeighborAllgatherv neighbours;
                nonblocking ineighbor_allgatherv = [MPI_Ineighbor_allgatherv MPI_Ineighbor_allgatherv_c]
                    [mpi_ineighbor_allgatherv_ ompi_ineighbor_allgatherv_f] => IneighborAllgatherv nonblocking_irregular;
                persistent neighbor_allgatherv_init =
                    [MPI_Neighbor_allgatherv_init MPI_Neighbor_allgatherv_init_c MPIX_Neighbor_allgatherv_init] [];
            }
            neighbor_alltoall(
                send: input, send_count: count, send_type: datatype,
                recv: output, recv_count: count, recv_type: datatype; comm
            ) {
                operation Alltoall;
                arrays [None];
                device neighbor_alltoall [buffer(send, send_count, send_type), buffer(recv, recv_count, recv_type)] [];
                small [were_small(comm)];
                blocking neighbor_alltoall = [MPI_Neighbor_alltoall MPI_Neighbor_alltoall_c]
                    [mpi_neighbor_alltoall_ ompi_neighbor_alltoall_f] => NeighborAlltoall neighbours;
                nonblocking ineighbor_alltoall = [MPI_Ineighbor_alltoall MPI_Ineighbor_alltoall_c]
                    [mpi_ineighbor_alltoall_ ompi_ineighbor_alltoall_f] => IneighborAlltoall nonblocking_irregular;
                persistent neighbor_alltoall_init =
                    [MPI_Neighbor_alltoall_init MPI_Neighbor_alltoall_init_c MPIX_Neighbor_alltoall_init] [];
            }
            neighbor_alltoallv(
                send: input, send_counts: sent_counts, send_places: sent_places, send_type: datatype,
                recv: output, recv_counts: counts, recv_places: places, recv_type: datatype; comm
            ) {
                operation Alltoall;
                arrays [PerNeighbour];
                device neighbor_alltoall [
                    buffer_v(send, send_counts, send_places, send_type),
                    buffer_v(recv, recv_counts, recv_places, recv_type)
                ] [];
                small [were_small(comm)];
                blocking neighbor_alltoallv = [MPI_Neighbor_alltoallv MPI_Neighbor_alltoallv_c]
                    [mpi_neighbor_alltoallv_ ompi_neighbor_alltoallv_f] => NeighborAlltoallv neighbours;
                nonblocking ineighbor_alltoallv = [MPI_Ineighbor_alltoallv MPI_Ineighbor_alltoallv_c]
                    [mpi_ineighbor_alltoallv_ ompi_ineighbor_alltoallv_f] => IneighborAlltoallv nonblocking_irregular;
                persistent neighbor_alltoallv_init =
                    [MPI_Neighbor_alltoallv_init MPI_Neighbor_alltoallv_init_c MPIX_Neighbor_alltoallv_init] [];
            }
            neighbor_alltoallw(
                send: input, send_counts: sent_counts, send_places: bytes, send_types: sent_types,
                recv: output, recv_counts: counts, recv_places: bytes, recv_types: types; comm
            ) {
                operation Alltoall;
                arrays [PerNeighbour];
                device neighbor_alltoall [
                    buffer_w(send, send_counts, send_places, send_types),
                    buffer_w(recv, recv_counts, recv_places, recv_types)
                ] [];
                small [typed_were_small(comm)];
                blocking neighbor_alltoallw = [MPI_Neighbor_alltoallw MPI_Neighbor_alltoallw_c]
                    [mpi_neighbor_alltoallw_ ompi_neighbor_alltoallw_f]
                    => NeighborAlltoallw rdma_alltoallw;
                nonblocking ineighbor_alltoallw = [MPI_Ineighbor_alltoallw MPI_Ineighbor_alltoallw_c] []
                    => IneighborAlltoallw nonblocking_irregular;
                persistent neighbor_alltoallw_init =
                    [MPI_Neighbor_alltoallw_init MPI_Neighbor_alltoallw_init_c MPIX_Neighbor_alltoallw_init] [];
            }
        }
    };
}
pub(crate) use collectives;

/// Calls a macro with the table of point-to-point functions that count elements (MPI 4.1, chapter
/// 3): each has its name in [`crate::library::pmpi`], its arguments with their kinds, the
/// communicator, whose error handler hears of a call that nobody can do, the names that C programs
/// call, and those that Fortran programs call and that go past C's in Open MPI.
macro_rules! messages {
    ($use:ident) => {
        $use! {
            send(
                buffer: input, count: count, datatype: datatype, dest: number, tag: number,
                comm: comm
            ) [comm] = [MPI_Send MPI_Send_c] [mpi_send_ ompi_send_f];
            ssend(
                buffer: input, count: count, datatype: datatype, dest: number, tag: number,
                comm: comm
            ) [comm] = [MPI_Ssend MPI_Ssend_c] [mpi_ssend_ ompi_ssend_f];
            bsend(
                buffer: input, count: count, datatype: datatype, dest: number, tag: number,
                comm: comm
            ) [comm] = [MPI_Bsend MPI_Bsend_c] [mpi_bsend_ ompi_bsend_f];
            rsend(
                buffer: input, count: count, datatype: datatype, dest: number, tag: number,
                comm: comm
            ) [comm] = [MPI_Rsend MPI_Rsend_c] [mpi_rsend_ ompi_rsend_f];
            isend(
                buffer: input, count: count, datatype: datatype, dest: number, tag: number,
                comm: comm, request: request
            ) [comm] = [MPI_Isend MPI_Isend_c] [mpi_isend_ ompi_isend_f];
            issend(
                buffer: input, count: count, datatype: datatype, dest: number, tag: number,
                comm: comm, request: request
            ) [comm] = [MPI_Issend MPI_Issend_c] [mpi_issend_ ompi_issend_f];
            ibsend(
                buffer: input, count: count, datatype: datatype, dest: number, tag: number,
                comm: comm, request: request
            ) [comm] = [MPI_Ibsend MPI_Ibsend_c] [mpi_ibsend_ ompi_ibsend_f];
            irsend(
                buffer: input, count: count, datatype: datatype, dest: number, tag: number,
                comm: comm, request: request
            ) [comm] = [MPI_Irsend MPI_Irsend_c] [mpi_irsend_ ompi_irsend_f];
            send_init(
                buffer: input, count: count, datatype: datatype, dest: number, tag: number,
                comm: comm, request: request
            ) [comm] = [MPI_Send_init MPI_Send_init_c] [mpi_send_init_ ompi_send_init_f];
            ssend_init(
                buffer: input, count: count, datatype: datatype, dest: number, tag: number,
                comm: comm, request: request
            ) [comm] = [MPI_Ssend_init MPI_Ssend_init_c] [mpi_ssend_init_ ompi_ssend_init_f];
            bsend_init(
                buffer: input, count: count, datatype: datatype, dest: number, tag: number,
                comm: comm, request: request
            ) [comm] = [MPI_Bsend_init MPI_Bsend_init_c] [mpi_bsend_init_ ompi_bsend_init_f];
            rsend_init(
                buffer: input, count: count, datatype: datatype, dest: number, tag: number,
                comm: comm, request: request
            ) [comm] = [MPI_Rsend_init MPI_Rsend_init_c] [mpi_rsend_init_ ompi_rsend_init_f];
            recv(
                buffer: output, count: count, datatype: datatype, source: number, tag: number,
                comm: comm, status: status
            ) [comm] = [MPI_Recv MPI_Recv_c] [mpi_recv_ ompi_recv_f];
            irecv(
                buffer: output, count: count, datatype: datatype, source: number, tag: number,
                comm: comm, request: request
            ) [comm] = [MPI_Irecv MPI_Irecv_c] [mpi_irecv_ ompi_irecv_f];
            recv_init(
                buffer: output, count: count, datatype: datatype, source: number, tag: number,
                comm: comm, request: request
            ) [comm] = [MPI_Recv_init MPI_Recv_init_c] [mpi_recv_init_ ompi_recv_init_f];
            sendrecv(
                send: input, send_count: count, send_type: datatype, dest: number, send_tag: number,
                recv: output, recv_count: count, recv_type: datatype, source: number, recv_tag: number, comm: comm, status: status
            ) [comm] = [MPI_Sendrecv MPI_Sendrecv_c] [mpi_sendrecv_ ompi_sendrecv_f];
            sendrecv_replace(
                buffer: output, count: count, datatype: datatype, dest: number, send_tag: number,
                source: number, recv_tag: number, comm: comm, status: status
            ) [comm] = [MPI_Sendrecv_replace MPI_Sendrecv_replace_c] [mpi_sendrecv_replace_ ompi_sendrecv_replace_f];
            isendrecv(
                send: input, send_count: count, send_type: datatype, dest: number, send_tag: number,
                recv: output, recv_count: count, recv_type: datatype, source: number, recv_tag: number, comm: comm, request: request
            ) [comm] = [MPI_Isendrecv MPI_Isendrecv_c] [];
            isendrecv_replace(
                buffer: output, count: count, datatype: datatype, dest: number, send_tag: number,
                source: number, recv_tag: number, comm: comm, request: request
            ) [comm] = [MPI_Isendrecv_replace MPI_Isendrecv_replace_c] [];
            mrecv(
                buffer: output, count: count, datatype: datatype, message: message, status: status
            ) [] = [MPI_Mrecv MPI_Mrecv_c] [mpi_mrecv_ ompi_mrecv_f];
            imrecv(
                buffer: output, count: count, datatype: datatype, message: message, request: request
            ) [] = [MPI_Imrecv MPI_Imrecv_c] [mpi_imrecv_ ompi_imrecv_f];
        }
    };
}
pub(crate) use messages;

/// The C type of an argument of some kind, in the form whose counts are `$count`s.
macro_rules! argument_type {
    // A buffer that is read.
    ($count:ty, input) => { *const std::ffi::c_void };
    // One that is written.
    ($count:ty, output) => { *mut std::ffi::c_void };
    ($count:ty, count) => { $count };
    ($count:ty, counts) => { *const $count };
    // Where parts of a buffer are: in elements, or in bytes where each part has a type.
    ($count:ty, places) => { *const <$count as $crate::library::count::Count>::Place };
    // Those of what is sent, where there are others of what is received.
    ($count:ty, sent_counts) => { *const $count };
    ($count:ty, sent_places) => { *const <$count as $crate::library::count::Count>::Place };
    // Places in bytes that are as wide in both forms.
    ($count:ty, bytes) => { *const isize };
    // An array of datatypes, as wide as the library's handles are.
    ($count:ty, types) => { *const std::ffi::c_void };
    ($count:ty, sent_types) => { *const std::ffi::c_void };
    ($count:ty, datatype) => { $crate::library::abi::Word };
    ($count:ty, op) => { $crate::library::abi::Word };
    ($count:ty, comm) => { $crate::library::abi::Word };
    ($count:ty, info) => { $crate::library::abi::Word };
    ($count:ty, root) => { std::ffi::c_int };
    // A rank, a tag.
    ($count:ty, number) => { std::ffi::c_int };
    // A variable that counts what has been packed.
    ($count:ty, position) => { *mut $count };
    // A variable for a request that is made.
    ($count:ty, request) => { *mut std::ffi::c_void };
    ($count:ty, message) => { *mut std::ffi::c_void };
    ($count:ty, status) => { *mut std::ffi::c_void };
}
pub(crate) use argument_type;
