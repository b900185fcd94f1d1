! SPDX-License-Identifier: MIT OR Apache-2.0
!
! Random messages and collectives as Fortran calls them. Each rank prints a line for each: the step, the call, its status,
! and a checksum of the whole buffer. Two runs with the same arguments print the same, with libcopy_mpi.so and without it.
! Compiled with -DBINDING=1 it uses mpif.h, with 2 the module mpi.
!
!   random_calls STEPS SEED
!
! What all ranks do is drawn from one sequence of numbers, the types and functions of one rank from another one.
program random_calls
#if BINDING == 2
  use mpi
#endif
  implicit none
#if BINDING == 1
  include 'mpif.h'
#endif
  integer, parameter :: most = 6, room = 140000, longest = 100000
  integer(8), asynchronous, save :: a(room, most), b(room, most)
  integer(8) :: alike, own
  integer :: rank, ranks, ierr, step, steps, calls, i
  character(32) :: word

  call MPI_Init(ierr)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, ierr)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, ierr)
  call get_command_argument(1, word)
  read (word, *) steps
  call get_command_argument(2, word)
  read (word, *) alike
  calls = 0
  alike = alike * 7919 + 88172645463325252_8
  own = alike + 104729 * (rank + 1)
  do i = 1, 20
    step = below(alike, 2) + below(own, 2)
  end do
  do step = 1, steps
    call fill()
    select case (below(alike, 8))
    case (0:3)
      call messages()
    case (4)
      call shift()
    case (5)
      call packing()
    case default
      call collective()
    end select
  end do
  if (rank == 0) print '(i0, a)', calls, ' calls'
  call MPI_Finalize(ierr)

contains

  ! Below `n`, from a sequence (xorshift).
  integer function below(state, n)
    integer(8), intent(inout) :: state
    integer, intent(in) :: n
    state = ieor(state, ishft(state, 13))
    state = ieor(state, ishft(state, -7))
    state = ieor(state, ishft(state, 17))
    below = int(modulo(ishft(state, -11), int(n, 8)))
  end function

  ! Elements of a call: each order of magnitude as often as the others.
  integer function length()
    length = min(2 ** below(alike, 18), longest / 2)
    length = length + below(alike, length)
  end function

  subroutine fill()
    integer :: k, column
    do column = 1, most
      do k = 1, room
        a(k, column) = int(k, 8) * 2654435761_8 + column * 7 + rank * 1000003 + step
        b(k, column) = -k
      end do
    end do
  end subroutine

  integer(8) function checksum(column)
    integer, intent(in) :: column
    integer :: k
    checksum = 0
    do k = 1, room
      checksum = ieor(checksum, b(k, column)) * 1099511628211_8
      checksum = ieor(checksum, ishft(checksum, -29))
    end do
  end function

  integer function basic(atom)
    integer, intent(in) :: atom
    basic = merge(MPI_INTEGER, MPI_DOUBLE_PRECISION, atom == 0)
  end function

  ! A type of `n` integers (0) or double precision numbers (1), as this rank has them, and how many of it.
  subroutine make(atom, n, type, count)
    integer, intent(in) :: atom, n
    integer, intent(out) :: type, count
    integer :: kind, half, inner
    integer(MPI_ADDRESS_KIND) :: bytes
    bytes = 4 + 4 * atom
    count = 1
    kind = below(own, 6)
    half = n / 2
    select case (kind)
    case (0)
      call MPI_Type_contiguous(n, basic(atom), type, ierr)
    case (1)
      ! All of it, and some more, lie in a column.
      call MPI_Type_vector(n, 1, merge(2, 1, atom == 0), basic(atom), type, ierr)
    case (2)
      call MPI_Type_indexed(2, (/ half, n - half /), (/ n - half + 3, 0 /), basic(atom), type, ierr)
    case (3)
      call MPI_Type_create_resized(basic(atom), 0_MPI_ADDRESS_KIND, bytes, type, ierr)
      count = n
    case (4)
      call MPI_Type_contiguous(n - half, basic(atom), inner, ierr)
      call MPI_Type_create_struct(2, (/ 1, half /), (/ bytes * (half + 2), 0_MPI_ADDRESS_KIND /), &
          (/ inner, basic(atom) /), type, ierr)
      call MPI_Type_free(inner, ierr)
    case default
      call MPI_Type_dup(basic(atom), type, ierr)
      count = n
    end select
    call MPI_Type_commit(type, ierr)
  end subroutine

  subroutine say(what, detail, status, type, column)
    character(*), intent(in) :: what
    integer, intent(in) :: detail, status(MPI_STATUS_SIZE), type, column
    integer :: elements, bytes
    call MPI_Get_elements(status, type, elements, ierr)
    call MPI_Get_count(status, MPI_BYTE, bytes, ierr)
    print '(i0, 1x, i0, 1x, a, 5(1x, i0), 1x, z16.16)', rank, step, what, detail, status(MPI_SOURCE), status(MPI_TAG), &
        elements, bytes, checksum(column)
  end subroutine

  ! Completes requests in a way of this rank's.
  subroutine complete(n, requests, statuses)
    integer, intent(in) :: n
    integer, intent(inout) :: requests(n), statuses(MPI_STATUS_SIZE, n)
    integer :: way, k, index, status(MPI_STATUS_SIZE)
    logical :: flag
    way = below(own, 5)
    select case (way)
    case (0)
      call MPI_Waitall(n, requests, statuses, ierr)
    case (1)
      flag = .false.
      do while (.not. flag)
        call MPI_Testall(n, requests, flag, statuses, ierr)
      end do
    case (2)
      do k = 1, n
        call MPI_Waitany(n, requests, index, status, ierr)
        statuses(:, index) = status
      end do
    case (3)
      do k = n, 1, -1
        call MPI_Wait(requests(k), statuses(:, k), ierr)
      end do
    case default
      do k = 1, n
        flag = .false.
        do while (.not. flag)
          call MPI_Test(requests(k), flag, statuses(:, k), ierr)
        end do
      end do
    end select
  end subroutine

  subroutine messages()
    integer :: n, k, from(most), to(most), atoms(most), lengths(most), sends(most), receives(most), any(most)
    integer :: used, requests(2 * most), statuses(MPI_STATUS_SIZE, 2 * most), types(2 * most), of(2 * most)
    integer :: status(MPI_STATUS_SIZE), count, source, tag, message
    logical :: flag
    n = 1 + below(alike, most)
    calls = calls + n
    do k = 1, n
      from(k) = below(alike, ranks)
      to(k) = below(alike, ranks)
      atoms(k) = below(alike, 2)
      lengths(k) = length()
      sends(k) = below(alike, 3)
      receives(k) = below(alike, 6)
      any(k) = below(alike, 3)
    end do
    used = 0
    ! What is posted before, in a column for each message; `of` is 0 for what is sent.
    do k = 1, n
      if (to(k) /= rank .or. receives(k) > 1) cycle
      used = used + 1
      of(used) = k
      source = merge(MPI_ANY_SOURCE, from(k), any(k) == 0)
      call make(atoms(k), lengths(k), types(used), count)
      if (receives(k) == 0) then
        call MPI_Irecv(b(1, k), count, types(used), source, tag_of(k), MPI_COMM_WORLD, requests(used), ierr)
      else
        call MPI_Recv_init(b(1, k), count, types(used), source, tag_of(k), MPI_COMM_WORLD, requests(used), ierr)
        call MPI_Start(requests(used), ierr)
      end if
    end do
    do k = 1, n
      if (from(k) /= rank) cycle
      used = used + 1
      of(used) = 0
      call make(atoms(k), lengths(k), types(used), count)
      select case (sends(k))
      case (0)
        call MPI_Isend(a(1, k), count, types(used), to(k), tag_of(k), MPI_COMM_WORLD, requests(used), ierr)
      case (1)
        call MPI_Issend(a(1, k), count, types(used), to(k), tag_of(k), MPI_COMM_WORLD, requests(used), ierr)
      case default
        call MPI_Send_init(a(1, k), count, types(used), to(k), tag_of(k), MPI_COMM_WORLD, requests(used), ierr)
        call MPI_Start(requests(used), ierr)
      end select
    end do
    do k = 1, n
      if (to(k) /= rank .or. receives(k) <= 1) cycle
      source = merge(MPI_ANY_SOURCE, from(k), any(k) == 0)
      tag = tag_of(k)
      call make(atoms(k), lengths(k), types(2 * most), count)
      select case (receives(k))
      case (2)
        call MPI_Recv(b(1, k), count, types(2 * most), source, tag, MPI_COMM_WORLD, status, ierr)
      case (3)
        call MPI_Probe(source, tag, MPI_COMM_WORLD, status, ierr)
        call say('probe', k, status, types(2 * most), k)
        call MPI_Recv(b(1, k), count, types(2 * most), status(MPI_SOURCE), tag, MPI_COMM_WORLD, status, ierr)
      case (4)
        flag = .false.
        do while (.not. flag)
          call MPI_Iprobe(source, tag, MPI_COMM_WORLD, flag, status, ierr)
        end do
        call MPI_Recv(b(1, k), count, types(2 * most), source, tag, MPI_COMM_WORLD, status, ierr)
      case default
        ! MPICH 4.0.2 crashes in MPI_Mrecv of a message to oneself.
        if (from(k) == rank) then
          call MPI_Recv(b(1, k), count, types(2 * most), source, tag, MPI_COMM_WORLD, status, ierr)
        else
          call MPI_Mprobe(source, tag, MPI_COMM_WORLD, message, status, ierr)
          call say('mprobe', k, status, types(2 * most), k)
          call MPI_Mrecv(b(1, k), count, types(2 * most), message, status, ierr)
        end if
      end select
      call say('recv', k, status, types(2 * most), k)
      call MPI_Type_free(types(2 * most), ierr)
    end do
    call complete(used, requests, statuses)
    do k = 1, used
      if (of(k) > 0) call say('irecv', of(k), statuses(:, k), types(k), of(k))
      call MPI_Type_free(types(k), ierr)
      if (requests(k) /= MPI_REQUEST_NULL) call MPI_Request_free(requests(k), ierr)
    end do
  end subroutine

  integer function tag_of(k)
    integer, intent(in) :: k
    tag_of = modulo(step, 1000) * 10 + k
  end function

  ! Around a ring, or along a line.
  subroutine shift()
    integer :: n, atom, to, from, out, in, count, other, status(MPI_STATUS_SIZE), replaces
    n = length()
    atom = below(alike, 2)
    to = modulo(rank + 1, ranks)
    from = modulo(rank + ranks - 1, ranks)
    if (below(alike, 2) == 0) then
      if (to == 0) to = MPI_PROC_NULL
      if (rank == 0) from = MPI_PROC_NULL
    end if
    replaces = below(alike, 2)
    calls = calls + ranks
    call make(atom, n, out, count)
    call make(atom, n, in, other)
    if (replaces == 1) then
      b(:, 1) = a(:, 1)
      call MPI_Sendrecv_replace(b(1, 1), count, out, to, 5, from, 5, MPI_COMM_WORLD, status, ierr)
    else
      call MPI_Sendrecv(a(1, 1), count, out, to, 5, b(1, 1), other, in, from, MPI_ANY_TAG, MPI_COMM_WORLD, status, ierr)
    end if
    call say('sendrecv', replaces, status, merge(out, in, replaces == 1), 1)
    call MPI_Type_free(out, ierr)
    call MPI_Type_free(in, ierr)
  end subroutine

  subroutine packing()
    integer :: n, atom, out, in, count, other, size, place, status(MPI_STATUS_SIZE)
    n = length()
    atom = below(alike, 2)
    calls = calls + 2
    call make(atom, n, out, count)
    call make(atom, n, in, other)
    size = room * 8
    place = 0
    call MPI_Pack(a(1, 1), count, out, b(1, 1), size, place, MPI_COMM_WORLD, ierr)
    size = place
    place = 0
    call MPI_Unpack(b(1, 1), size, place, b(1, 2), other, in, MPI_COMM_WORLD, ierr)
    status = 0
    print '(i0, 1x, i0, a, 2(1x, i0), 2(1x, z16.16))', rank, step, ' pack', size, place, checksum(1), checksum(2)
    call MPI_Type_free(out, ierr)
    call MPI_Type_free(in, ierr)
  end subroutine

  subroutine collective()
    integer :: n, atom, root, which, out, in, count, other, request, part, k, op, later
    integer :: sends(ranks), receives(ranks), send_at(ranks), receive_at(ranks)
    which = below(alike, 8)
    n = length()
    atom = below(alike, 2)
    root = below(alike, ranks)
    later = below(alike, 3)
    calls = calls + 1
    part = n / ranks + 1
    request = MPI_REQUEST_NULL
    op = merge(MPI_SUM, MPI_MAX, below(alike, 2) == 0)
    call make(atom, n, out, count)
    call make(atom, n, in, other)
    select case (which)
    case (0)
      if (rank == root) b(:, 1) = a(:, 1)
      if (later == 0) then
        call MPI_Ibcast(b(1, 1), count, out, root, MPI_COMM_WORLD, request, ierr)
      else
        call MPI_Bcast(b(1, 1), count, out, root, MPI_COMM_WORLD, ierr)
      end if
    case (1)
      call MPI_Gather(a(1, 1), part, basic(atom), b(1, 1), part, basic(atom), root, MPI_COMM_WORLD, ierr)
    case (2)
      call MPI_Scatter(a(1, 1), part, basic(atom), b(1, 1), part, basic(atom), root, MPI_COMM_WORLD, ierr)
    case (3)
      if (later == 0) then
        call MPI_Iallgather(a(1, 1), part, basic(atom), b(1, 1), part, basic(atom), MPI_COMM_WORLD, request, ierr)
      else if (later == 1) then
        ! In place, each part where it belongs.
        b(1:room, 1) = a(1:room, 1)
        call MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, b(1, 1), part, basic(atom), MPI_COMM_WORLD, ierr)
      else
        call MPI_Allgather(a(1, 1), part, basic(atom), b(1, 1), part, basic(atom), MPI_COMM_WORLD, ierr)
      end if
    case (4)
      call MPI_Alltoall(a(1, 1), part, basic(atom), b(1, 1), part, basic(atom), MPI_COMM_WORLD, ierr)
    case (5)
      do k = 1, ranks
        sends(k) = modulo(part * rank + k * 13, part + 1)
        receives(k) = modulo(part * (k - 1) + (rank + 1) * 13, part + 1)
        send_at(k) = (k - 1) * (part + 1)
        receive_at(k) = (ranks - k) * (part + 1)
      end do
      call MPI_Alltoallv(a(1, 1), sends, send_at, basic(atom), b(1, 1), receives, receive_at, basic(atom), MPI_COMM_WORLD, &
          ierr)
    case (6)
      if (later == 0) then
        call MPI_Iallreduce(a(1, 1), b(1, 1), n, MPI_INTEGER, op, MPI_COMM_WORLD, request, ierr)
      else if (later == 1) then
        b(:, 1) = a(:, 1)
        call MPI_Allreduce(MPI_IN_PLACE, b(1, 1), n, MPI_INTEGER, op, MPI_COMM_WORLD, ierr)
      else
        call MPI_Allreduce(a(1, 1), b(1, 1), n, MPI_INTEGER, op, MPI_COMM_WORLD, ierr)
      end if
    case default
      call MPI_Reduce(a(1, 1), b(1, 1), n, MPI_INTEGER, op, root, MPI_COMM_WORLD, ierr)
    end select
    if (request /= MPI_REQUEST_NULL) call MPI_Wait(request, MPI_STATUS_IGNORE, ierr)
    print '(i0, 1x, i0, a, 3(1x, i0), 1x, z16.16)', rank, step, ' collective', which, root, n, checksum(1)
    call MPI_Type_free(out, ierr)
    call MPI_Type_free(in, ierr)
  end subroutine

end program
