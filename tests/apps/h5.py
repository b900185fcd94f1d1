# SPDX-License-Identifier: MIT OR Apache-2.0
"""Parallel HDF5 by h5py, one of the applications of scripts/apps: all ranks write blocks of columns of one
file collectively and read them back as rows. Prints a hash of what was read.

The data are N x N numbers.

usage: h5.py FILE N ROUNDS"""

import hashlib
import sys

from mpi4py import MPI
import h5py
import numpy

world = MPI.COMM_WORLD
rank, size = world.rank, world.size
if not h5py.get_config().mpi:
    sys.exit("this h5py has no MPI")
n, digest = int(sys.argv[2]), hashlib.sha256()
for round in range(int(sys.argv[3])):
    with h5py.File(sys.argv[1], "w", driver="mpio", comm=world) as file:
        data = file.create_dataset("data", (n, n), dtype="f8")
        first, last = rank * n // size, (rank + 1) * n // size
        columns = numpy.fromfunction(lambda i, j: i * 3 + (j + first) * 7 + round, (n, last - first))
        with data.collective:
            data[:, first:last] = columns
    with h5py.File(sys.argv[1], "r", driver="mpio", comm=world) as file:
        with file["data"].collective:
            rows = file["data"][first:last, :]
        expected = numpy.fromfunction(lambda i, j: (i + first) * 3 + j * 7 + round, (last - first, n))
        if not numpy.array_equal(rows, expected):
            sys.exit(f"rank {rank}: wrong numbers")
    parts = world.gather(rows, root=0)
    if rank == 0:
        digest.update(numpy.concatenate(parts).tobytes())
if rank == 0:
    print("sha256", digest.hexdigest())
