# SPDX-License-Identifier: MIT OR Apache-2.0
"""What each rank does in tests/tests/wheel.rs: collectives and messages of a derived datatype, whose bytes it checks.

usage: ranks.py PID
All processes between a rank and PID, which has started the launcher, must not map libcopy_mpi.so. Rank 0 prints the
ranks, and the smallest number of such processes.
"""

import sys
from array import array

from mpi4py import MPI

LENGTH = 4 << 20
ROWS, COLUMNS = 1 << 16, 4


def maps_library(pid):
    with open("/proc/{}/maps".format(pid)) as maps:
        return "libcopy_mpi.so" in maps.read()


def parent(pid):
    with open("/proc/{}/status".format(pid)) as status:
        return next(line.split()[1] for line in status if line.startswith("PPid:"))


def ancestors(last):
    pid = parent("self")
    while pid not in (last, "0"):
        yield pid
        pid = parent(pid)
    assert pid == last, "process {} is not above this one".format(last)


def main():
    comm = MPI.COMM_WORLD
    rank, size = comm.rank, comm.size
    assert maps_library("self"), "rank {} does not have the library".format(rank)
    above = list(ancestors(sys.argv[1]))
    for pid in above:
        assert not maps_library(pid), "process {} of the launcher has the library".format(pid)

    for turn in range(10):
        root = turn % size
        sent = bytes([turn + 1]) * LENGTH
        got = bytearray(sent if rank == root else LENGTH)
        comm.Bcast(got, root)
        assert got == sent, "broadcast {}".format(turn)
        parts = bytearray(LENGTH * size) if rank == root else None
        comm.Gather(bytes([rank + 1]) * LENGTH, parts, root)
        assert parts is None or parts == b"".join(bytes([part + 1]) * LENGTH for part in range(size)), "gather {}".format(turn)

    column = MPI.DOUBLE.Create_vector(ROWS, 1, COLUMNS).Commit()
    right, left = (rank + 1) % size, (rank - 1) % size
    for turn in range(10):
        sent = array("d", range(rank, rank + ROWS * COLUMNS))
        got = array("d", [-1.0]) * (ROWS * COLUMNS)
        comm.Sendrecv([sent, 1, column], right, turn, [got, 1, column], left, turn)
        wanted = array("d", [-1.0]) * (ROWS * COLUMNS)
        wanted[::COLUMNS] = array("d", range(left, left + ROWS * COLUMNS, COLUMNS))
        assert got == wanted, "message {}".format(turn)
    column.Free()

    fewest = comm.reduce(len(above), op=MPI.MIN)
    if rank == 0:
        print("{} ranks, {} processes above each".format(size, fewest))


main()
