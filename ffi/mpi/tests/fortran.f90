! SPDX-License-Identifier: MIT OR Apache-2.0
!
! Every collective as Fortran calls it, with large messages; prints checksums. Compiled with
! -DBINDING=1 it uses mpif.h, with 2 the module mpi, with 3 the module mpi_f08. Persistent
! collectives are called in the first two; with -DBEFORE_STANDARD they have the names of Open MPI
! 4.1, which has another module for them beside mpi_f08.
#ifdef BEFORE_STANDARD
#define MPI_Bcast_init MPIX_Bcast_init
#define MPI_Gather_init MPIX_Gather_init
#define MPI_Scatter_init MPIX_Scatter_init
#define MPI_Allgather_init MPIX_Allgather_init
#define MPI_Alltoall_init MPIX_Alltoall_init
#define MPI_Reduce_init MPIX_Reduce_init
#define MPI_Allreduce_init MPIX_Allreduce_init
#endif
program callers
#if BINDING == 2
  use mpi
#elif BINDING == 3
  use mpi_f08
#endif
  implicit none
#if BINDING == 1
  include 'mpif.h'
#endif
  integer, parameter :: n = 30000
  integer :: rank, ranks, ierr, i, j, root
  integer, allocatable :: send(:), recv(:), counts(:), places(:)
  integer, allocatable :: other(:)
  integer :: at
  integer(MPI_ADDRESS_KIND) :: length, place
#if BINDING == 3
  type(MPI_Datatype) :: pairs, types(64)
  type(MPI_Request) :: requests(7)
  type(MPI_Comm) :: ring
#else
  integer :: pairs, requests(7), types(64), ring
#endif
  call MPI_Init(ierr)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, ierr)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, ierr)
  allocate(send(2 * n * ranks), recv(2 * n * ranks), counts(ranks), places(ranks))
  counts = n
  do i = 1, ranks
    counts(i) = n - i
    places(i) = 2 * n * (ranks - i)
  end do
  root = ranks - 1
  call MPI_Type_vector(n, 1, 2, MPI_INTEGER, pairs, ierr)
  call MPI_Type_commit(pairs, ierr)

  call fill()
  call MPI_Bcast(recv, n, MPI_INTEGER, root, MPI_COMM_WORLD, ierr)
  call show('bcast')
  call MPI_Bcast(recv, 1, pairs, root, MPI_COMM_WORLD, ierr)
  call show('bcast of a vector')
  at = 0
  call MPI_Pack(send, 1, pairs, recv, 4 * n, at, MPI_COMM_WORLD, ierr)
  at = 0
  call MPI_Unpack(recv, 4 * n, at, recv(n + 1), 1, pairs, MPI_COMM_WORLD, ierr)
  ierr = ierr + at
  call show('pack')
  length = 4 * n
  place = 0
  call MPI_Pack_external('external32', send, 1, pairs, recv, length, place, ierr)
  place = 0
  call MPI_Unpack_external('external32 ', recv, length, place, recv(n + 1), 1, pairs, ierr)
  ierr = ierr + int(place)
  call show('pack external')
  call MPI_Gather(send, n, MPI_INTEGER, recv, n, MPI_INTEGER, root, MPI_COMM_WORLD, ierr)
  call show('gather')
  if (rank == root) then
    call MPI_Gather(MPI_IN_PLACE, n, MPI_INTEGER, recv, n, MPI_INTEGER, root, MPI_COMM_WORLD, ierr)
  else
    call MPI_Gather(send, n, MPI_INTEGER, recv, n, MPI_INTEGER, root, MPI_COMM_WORLD, ierr)
  end if
  call show('gather in place')
  call MPI_Gatherv(send, n - rank - 1, MPI_INTEGER, recv, counts, places, MPI_INTEGER, root, &
                   MPI_COMM_WORLD, ierr)
  call show('gatherv')
  call MPI_Scatter(send, n, MPI_INTEGER, recv, n, MPI_INTEGER, root, MPI_COMM_WORLD, ierr)
  call show('scatter')
  call MPI_Scatterv(send, counts, places, MPI_INTEGER, recv, n - rank - 1, MPI_INTEGER, root, &
                    MPI_COMM_WORLD, ierr)
  call show('scatterv')
  call MPI_Allgather(send, n, MPI_INTEGER, recv, n, MPI_INTEGER, MPI_COMM_WORLD, ierr)
  call show('allgather')
  call MPI_Allgatherv(send, n - rank - 1, MPI_INTEGER, recv, counts, places, MPI_INTEGER, &
                      MPI_COMM_WORLD, ierr)
  call show('allgatherv')
  call MPI_Alltoall(send, n, MPI_INTEGER, recv, n, MPI_INTEGER, MPI_COMM_WORLD, ierr)
  call show('alltoall')
  counts = n - 7
  call MPI_Alltoallv(send, counts, places, MPI_INTEGER, recv, counts, places, MPI_INTEGER, &
                     MPI_COMM_WORLD, ierr)
  call show('alltoallv')
  types = MPI_INTEGER
  places = 4 * places
  call MPI_Alltoallw(send, counts, places, types, recv, counts, places, types, MPI_COMM_WORLD, ierr)
  call show('alltoallw')
  call MPI_Alltoallw(MPI_IN_PLACE, counts, places, types, recv, counts, places, types, &
                     MPI_COMM_WORLD, ierr)
  call show('alltoallw in place')
  ! The next rank and the one before. MPICH 4.0 knows the neighbours of graphs only here.
  call MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, 1, [modulo(rank - 1, ranks)], [1], 1, &
                                      [modulo(rank + 1, ranks)], [1], MPI_INFO_NULL, .false., &
                                      ring, ierr)
  call MPI_Neighbor_alltoallw(send, [n - 3], [far(4 * n)], types, recv, [n - 3], [far(0)], types, &
                              ring, ierr)
  call show('neighbor_alltoallw')
  call MPI_Neighbor_allgather(send, n, MPI_INTEGER, recv, n, MPI_INTEGER, ring, ierr)
  call show('neighbor_allgather')
  call MPI_Comm_free(ring, ierr)
  call MPI_Allreduce(send, recv, n, MPI_INTEGER, MPI_MAX, MPI_COMM_WORLD, ierr)
  call show('allreduce')
  call MPI_Allreduce(MPI_IN_PLACE, recv, n, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, ierr)
  call show('allreduce in place')
  call MPI_Reduce(send, recv, n * ranks, MPI_INTEGER, MPI_BXOR, root, MPI_COMM_WORLD, ierr)
  call show('reduce')
  call MPI_Reduce_scatter(send, recv, counts, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, ierr)
  call show('reduce_scatter')
  call MPI_Reduce_scatter_block(send, recv, n, MPI_INTEGER, MPI_MIN, MPI_COMM_WORLD, ierr)
  call show('reduce_scatter_block')
  call MPI_Scan(send, recv, n, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, ierr)
  call show('scan')
  recv = send
  call MPI_Exscan(MPI_IN_PLACE, recv, n, MPI_INTEGER, MPI_MAX, MPI_COMM_WORLD, ierr)
  if (rank == 0) recv = send
  call show('exscan in place')
  ! The first one is for the ranks to meet in the barrier behind it.
  call MPI_Ibcast(recv, n, MPI_INTEGER, root, MPI_COMM_WORLD, requests(1), ierr)
  call MPI_Wait(requests(1), MPI_STATUS_IGNORE, ierr)
  call MPI_Barrier(MPI_COMM_WORLD, ierr)
  call show('ibcast')
  allocate(other(2 * n * ranks))
  other = send
  call MPI_Ibcast(recv, 1, pairs, root, MPI_COMM_WORLD, requests(1), ierr)
  call MPI_Iallreduce(MPI_IN_PLACE, other, n, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, requests(2), ierr)
  call MPI_Iscatter(send, n, MPI_INTEGER, recv(2 * n + 1), n, MPI_INTEGER, root, MPI_COMM_WORLD, &
                    requests(3), ierr)
  call MPI_Ireduce(send, recv(3 * n + 1), n, MPI_INTEGER, MPI_MIN, 0, MPI_COMM_WORLD, requests(4), ierr)
  call MPI_Waitall(4, requests, MPI_STATUSES_IGNORE, ierr)
  recv(1:n) = recv(1:n) + 3 * other(1:n)
  call show('several at once')
  call MPI_Igather(send, n, MPI_INTEGER, recv, n, MPI_INTEGER, root, MPI_COMM_WORLD, requests(1), ierr)
  call MPI_Iallgather(send, n, MPI_INTEGER, other, n, MPI_INTEGER, MPI_COMM_WORLD, requests(2), ierr)
  call MPI_Wait(requests(2), MPI_STATUS_IGNORE, ierr)
  call MPI_Wait(requests(1), MPI_STATUS_IGNORE, ierr)
  recv(1:n * ranks) = recv(1:n * ranks) + 3 * other(1:n * ranks)
  call show('igather and iallgather')
  call MPI_Ialltoall(send, n, MPI_INTEGER, recv, n, MPI_INTEGER, MPI_COMM_WORLD, requests(1), ierr)
  call MPI_Waitany(1, requests, i, MPI_STATUS_IGNORE, ierr)
  recv(1) = recv(1) + i
  call show('ialltoall')
  ! How long parts are that not all know the ranks tell each other now and then.
  counts = n - 7
  do i = 1, ranks
    places(i) = n * (ranks - i)
  end do
  do j = 1, 8
    call MPI_Igatherv(send, n - 7, MPI_INTEGER, recv, counts, places, MPI_INTEGER, root, &
                      MPI_COMM_WORLD, requests(1), ierr)
    call MPI_Wait(requests(1), MPI_STATUS_IGNORE, ierr)
  end do
  call show('igatherv')
  do j = 1, 8
    call MPI_Iscatterv(send, counts, places, MPI_INTEGER, recv, n - 7, MPI_INTEGER, root, &
                       MPI_COMM_WORLD, requests(1), ierr)
    call MPI_Wait(requests(1), MPI_STATUS_IGNORE, ierr)
  end do
  call show('iscatterv')
  do j = 1, 8
    call MPI_Iallgatherv(send, n - 7, MPI_INTEGER, recv, counts, places, MPI_INTEGER, &
                         MPI_COMM_WORLD, requests(1), ierr)
    call MPI_Wait(requests(1), MPI_STATUS_IGNORE, ierr)
  end do
  call show('iallgatherv')
  do j = 1, 8
    call MPI_Ialltoallv(send, counts, places, MPI_INTEGER, recv, counts, places, MPI_INTEGER, &
                        MPI_COMM_WORLD, requests(1), ierr)
    call MPI_Wait(requests(1), MPI_STATUS_IGNORE, ierr)
  end do
  call show('ialltoallv')
  do j = 1, 8
    call MPI_Ireduce_scatter(send, recv, counts, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, requests(1), ierr)
    call MPI_Wait(requests(1), MPI_STATUS_IGNORE, ierr)
  end do
  call show('ireduce_scatter')
  do j = 1, 8
    call MPI_Ireduce_scatter_block(send, recv, n, MPI_INTEGER, MPI_MIN, &
                                   MPI_COMM_WORLD, requests(1), ierr)
    call MPI_Wait(requests(1), MPI_STATUS_IGNORE, ierr)
  end do
  call show('ireduce_scatter_block')
  do j = 1, 8
    call MPI_Iscan(send, recv, n, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, requests(1), ierr)
    call MPI_Wait(requests(1), MPI_STATUS_IGNORE, ierr)
  end do
  call show('iscan')
  do j = 1, 8
    recv = send
    call MPI_Iexscan(MPI_IN_PLACE, recv, n, MPI_INTEGER, MPI_MAX, MPI_COMM_WORLD, requests(1), ierr)
    call MPI_Wait(requests(1), MPI_STATUS_IGNORE, ierr)
    if (rank == 0) recv = send
  end do
  call show('iexscan in place')
  call MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, 1, [modulo(rank - 1, ranks)], [1], 1, &
                                      [modulo(rank + 1, ranks)], [1], MPI_INFO_NULL, .false., &
                                      ring, ierr)
  do j = 1, 2
    call MPI_Ineighbor_allgather(send, n, MPI_INTEGER, recv, n, MPI_INTEGER, ring, requests(1), ierr)
    call MPI_Wait(requests(1), MPI_STATUS_IGNORE, ierr)
  end do
  call MPI_Barrier(ring, ierr)
  do j = 1, 8
    call MPI_Ineighbor_allgather(send, n, MPI_INTEGER, recv, n, MPI_INTEGER, ring, requests(1), ierr)
    call MPI_Wait(requests(1), MPI_STATUS_IGNORE, ierr)
  end do
  call show('ineighbor_allgather')
  do j = 1, 8
    call MPI_Ineighbor_allgatherv(send, n - 7, MPI_INTEGER, recv, counts, places, MPI_INTEGER, &
                                  ring, requests(1), ierr)
    call MPI_Wait(requests(1), MPI_STATUS_IGNORE, ierr)
  end do
  call show('ineighbor_allgatherv')
  do j = 1, 8
    call MPI_Ineighbor_alltoall(send, n, MPI_INTEGER, recv, n, MPI_INTEGER, ring, requests(1), ierr)
    call MPI_Wait(requests(1), MPI_STATUS_IGNORE, ierr)
  end do
  call show('ineighbor_alltoall')
  do j = 1, 8
    call MPI_Ineighbor_alltoallv(send, counts, places, MPI_INTEGER, recv, counts, places, MPI_INTEGER, &
                                 ring, requests(1), ierr)
    call MPI_Wait(requests(1), MPI_STATUS_IGNORE, ierr)
  end do
  call show('ineighbor_alltoallv')
  call MPI_Comm_free(ring, ierr)
#if BINDING != 3
  call MPI_Bcast_init(recv, n, MPI_INTEGER, root, MPI_COMM_WORLD, MPI_INFO_NULL, requests(1), ierr)
  call start('bcast_init')
  call MPI_Gather_init(send, n, MPI_INTEGER, recv, n, MPI_INTEGER, root, MPI_COMM_WORLD, &
                       MPI_INFO_NULL, requests(1), ierr)
  call start('gather_init')
  call MPI_Scatter_init(send, n, MPI_INTEGER, recv, n, MPI_INTEGER, root, MPI_COMM_WORLD, &
                        MPI_INFO_NULL, requests(1), ierr)
  call start('scatter_init')
  call MPI_Allgather_init(send, n, MPI_INTEGER, recv, n, MPI_INTEGER, MPI_COMM_WORLD, &
                          MPI_INFO_NULL, requests(1), ierr)
  call start('allgather_init')
  call MPI_Alltoall_init(send, n, MPI_INTEGER, recv, n, MPI_INTEGER, MPI_COMM_WORLD, &
                         MPI_INFO_NULL, requests(1), ierr)
  call start('alltoall_init')
  call MPI_Reduce_init(send, recv, n, MPI_INTEGER, MPI_MAX, root, MPI_COMM_WORLD, MPI_INFO_NULL, &
                       requests(1), ierr)
  call start('reduce_init')
  call MPI_Allreduce_init(MPI_IN_PLACE, recv, n, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, &
                          MPI_INFO_NULL, requests(1), ierr)
  call start('allreduce_init')
#endif
  call MPI_Type_free(pairs, ierr)
  call MPI_Finalize(ierr)

contains

  ! A place in bytes.
  function far(bytes)
    integer, intent(in) :: bytes
    integer(MPI_ADDRESS_KIND) :: far
    far = bytes
  end function far

#if BINDING != 3
  ! Starts a persistent request twice.
  subroutine start(what)
    character(*), intent(in) :: what
    integer :: i
    do i = 1, 2
      call MPI_Start(requests(1), ierr)
      call MPI_Wait(requests(1), MPI_STATUS_IGNORE, ierr)
    end do
    call MPI_Request_free(requests(1), ierr)
    call show(what)
  end subroutine start

#endif
  subroutine fill()
    integer :: i
    do i = 1, 2 * n * ranks
      send(i) = mod(i * 17 + rank * 1009, 99991)
      recv(i) = -mod(i * 13 + rank, 99991)
    end do
  end subroutine fill

  ! All ranks' sums, weighted by place.
  subroutine show(what)
    character(*), intent(in) :: what
    integer(8) :: mine
    integer(8) :: all(64)
    integer :: i
    mine = ierr
    do i = 1, 2 * n * ranks
      mine = mod(mine * 31 + recv(i), 1000000007_8)
    end do
    call MPI_Gather(mine, 1, MPI_INTEGER8, all, 1, MPI_INTEGER8, 0, MPI_COMM_WORLD, ierr)
    if (rank == 0) write (*, '(a, 64(1x, i0))') what, all(1:ranks)
    call fill()
  end subroutine show
end program callers
