! SPDX-License-Identifier: MIT OR Apache-2.0
!
! Messages between two ranks as Fortran sends and receives them; prints checksums. Compiled with
! -DBINDING=1 it uses mpif.h, with 2 the module mpi, with 3 the module mpi_f08.
program messages
#if BINDING == 2
  use mpi
#elif BINDING == 3
  use mpi_f08
#endif
  implicit none
#if BINDING == 1
  include 'mpif.h'
#endif
  integer, parameter :: n = 120000
  integer :: rank, ranks, peer, ierr, i, count, index, done, provided
  integer :: indices(4)
  integer, asynchronous :: a(2 * n), b(2 * n)
  logical :: flag
#if BINDING == 3
  type(MPI_Datatype) :: pairs
  type(MPI_Request) :: requests(2)
  type(MPI_Status) :: status, statuses(2)
  type(MPI_Message) :: message
#define TAG(s) s%MPI_TAG
#define FIRST(s) s(1)
#else
  integer :: pairs, requests(2), status(MPI_STATUS_SIZE), statuses(MPI_STATUS_SIZE, 2), message
#define TAG(s) s(MPI_TAG)
#define FIRST(s) s(:, 1)
#endif
  if (BINDING == 2) then
    call MPI_Init_thread(MPI_THREAD_SINGLE, provided, ierr)
  else
    call MPI_Init(ierr)
  end if
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, ierr)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, ierr)
  peer = 1 - rank
  call MPI_Type_vector(n, 1, 2, MPI_INTEGER, pairs, ierr)
  call MPI_Type_commit(pairs, ierr)

  call fill()
  if (rank == 0) then
    call MPI_Send(a, 1, pairs, peer, 1, MPI_COMM_WORLD, ierr)
    call MPI_Ssend(a, n, MPI_INTEGER, peer, 2, MPI_COMM_WORLD, ierr)
  else
    call MPI_Recv(b, 1, pairs, peer, MPI_ANY_TAG, MPI_COMM_WORLD, status, ierr)
    call MPI_Get_count(status, MPI_INTEGER, count, ierr)
    call show('recv', count + TAG(status))
    call MPI_Recv(b, n, MPI_INTEGER, peer, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE, ierr)
    call show('recv of integers', 0)
  end if
  call fill()
  call MPI_Irecv(b, 1, pairs, peer, 3, MPI_COMM_WORLD, requests(1), ierr)
  call MPI_Isend(a, 1, pairs, peer, 3, MPI_COMM_WORLD, requests(2), ierr)
  call MPI_Waitall(2, requests, statuses, ierr)
  call MPI_Get_count(FIRST(statuses), MPI_INTEGER, count, ierr)
  call show('waitall', count)
  call MPI_Irecv(b, n, MPI_INTEGER, peer, 4, MPI_COMM_WORLD, requests(1), ierr)
  call MPI_Issend(a, 1, pairs, peer, 4, MPI_COMM_WORLD, requests(2), ierr)
  flag = .false.
  do while (.not. flag)
    call MPI_Testall(2, requests, flag, MPI_STATUSES_IGNORE, ierr)
  end do
  call show('testall', 0)
  call MPI_Irecv(b, n, MPI_INTEGER, peer, 5, MPI_COMM_WORLD, requests(1), ierr)
  call MPI_Isend(a, 1, pairs, peer, 5, MPI_COMM_WORLD, requests(2), ierr)
  done = 0
  do i = 1, 2
    call MPI_Waitany(2, requests, index, status, ierr)
    done = done + index
  end do
  call show('waitany', done)
  call MPI_Irecv(b, 1, pairs, peer, 6, MPI_COMM_WORLD, requests(1), ierr)
  call MPI_Isend(a, n, MPI_INTEGER, peer, 6, MPI_COMM_WORLD, requests(2), ierr)
  done = 0
  do while (done < 3)
    flag = .false.
    call MPI_Testany(2, requests, index, flag, status, ierr)
    if (flag .and. index /= MPI_UNDEFINED) done = done + index
  end do
  call show('testany', done)
  call MPI_Irecv(b, 1, pairs, peer, 7, MPI_COMM_WORLD, requests(1), ierr)
  call MPI_Isend(a, n, MPI_INTEGER, peer, 7, MPI_COMM_WORLD, requests(2), ierr)
  done = 0
  do while (done < 3)
    if (done == 0) then
      call MPI_Waitsome(2, requests, count, indices, statuses, ierr)
    else
      call MPI_Testsome(2, requests, count, indices, statuses, ierr)
    end if
    do i = 1, count
      done = done + indices(i)
    end do
  end do
  call show('waitsome and testsome', done)
  call MPI_Irecv(b, 1, pairs, peer, 8, MPI_COMM_WORLD, requests(1), ierr)
  call MPI_Isend(a, 1, pairs, peer, 8, MPI_COMM_WORLD, requests(2), ierr)
  flag = .false.
  do while (.not. flag)
    call MPI_Request_get_status(requests(1), flag, status, ierr)
  end do
  call MPI_Get_count(status, MPI_INTEGER, count, ierr)
  flag = .false.
  do while (.not. flag)
    call MPI_Test(requests(1), flag, status, ierr)
  end do
  call MPI_Wait(requests(2), MPI_STATUS_IGNORE, ierr)
  call show('get_status, test and wait', count)
  call MPI_Sendrecv(a, 1, pairs, peer, 9, b, n, MPI_INTEGER, peer, 9, MPI_COMM_WORLD, status, ierr)
  call show('sendrecv', TAG(status))
  call MPI_Sendrecv_replace(b, 1, pairs, peer, 10, peer, 10, MPI_COMM_WORLD, status, ierr)
  call show('sendrecv_replace', TAG(status))
  call MPI_Recv_init(b, 1, pairs, peer, 11, MPI_COMM_WORLD, requests(1), ierr)
  call MPI_Send_init(a, 1, pairs, peer, 11, MPI_COMM_WORLD, requests(2), ierr)
  do i = 1, 3
    if (i == 2) then
      call MPI_Start(requests(1), ierr)
      call MPI_Start(requests(2), ierr)
    else
      call MPI_Startall(2, requests, ierr)
    end if
    call MPI_Waitall(2, requests, MPI_STATUSES_IGNORE, ierr)
    a(1) = a(1) + 1
    call show('persistent', i)
  end do
  call MPI_Request_free(requests(1), ierr)
  call MPI_Request_free(requests(2), ierr)
  do i = 12, 15
    if (rank == 0) then
      call MPI_Send(a, 1, pairs, peer, i, MPI_COMM_WORLD, ierr)
      cycle
    end if
    flag = .false.
    select case (i)
    case (12)
      call MPI_Probe(peer, i, MPI_COMM_WORLD, status, ierr)
    case (13)
      do while (.not. flag)
        call MPI_Iprobe(peer, i, MPI_COMM_WORLD, flag, status, ierr)
      end do
    case (14)
      call MPI_Mprobe(peer, i, MPI_COMM_WORLD, message, status, ierr)
    case (15)
      do while (.not. flag)
        call MPI_Improbe(peer, i, MPI_COMM_WORLD, flag, message, status, ierr)
      end do
    end select
    call MPI_Get_count(status, MPI_INTEGER, count, ierr)
    if (i < 14) then
      call MPI_Recv(b, count, MPI_INTEGER, peer, i, MPI_COMM_WORLD, MPI_STATUS_IGNORE, ierr)
    else if (i == 14) then
      call MPI_Mrecv(b, count, MPI_INTEGER, message, MPI_STATUS_IGNORE, ierr)
    else
      call MPI_Imrecv(b, count, MPI_INTEGER, message, requests(1), ierr)
      call MPI_Wait(requests(1), MPI_STATUS_IGNORE, ierr)
    end if
    call show('probes', count)
  end do
  call MPI_Irecv(b, n, MPI_INTEGER, peer, 77, MPI_COMM_WORLD, requests(1), ierr)
  call MPI_Cancel(requests(1), ierr)
  call MPI_Wait(requests(1), status, ierr)
  call MPI_Test_cancelled(status, flag, ierr)
  call show('cancelled', merge(1, 0, flag))
  call MPI_Type_free(pairs, ierr)
  call MPI_Finalize(ierr)

contains

  subroutine fill()
    integer :: i
    do i = 1, 2 * n
      a(i) = mod(i * 17 + rank * 1009, 99991)
      b(i) = -mod(i * 13 + rank, 99991)
    end do
  end subroutine fill

  ! What rank 1 has, weighted by place.
  subroutine show(what, number)
    character(*), intent(in) :: what
    integer, intent(in) :: number
    integer(8) :: sum
    integer :: i
    sum = ierr
    do i = 1, 2 * n
      sum = mod(sum * 31 + b(i), 1000000007_8)
    end do
    if (rank == 1) write (*, '(a, 2(1x, i0))') what, number, sum
    call fill()
  end subroutine show
end program messages
