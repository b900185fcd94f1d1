# SPDX-License-Identifier: MIT OR Apache-2.0
"""Fourier transforms by mpi4py-fft, one of the applications of scripts/apps: N x N x N real numbers there and back,
ROUNDS times. The arrays are redistributed by MPI_Alltoallw of subarray types. Prints sums that depend on every
number, without the last digits: FFTW's plans depend on where the arrays are.

usage: fft.py N ROUNDS"""

import sys

from mpi4py import MPI
from mpi4py_fft import PFFT, newDistArray
from mpi4py_fft.fftw import FFTW_ESTIMATE
import numpy

n, rounds = int(sys.argv[1]), int(sys.argv[2])
world = MPI.COMM_WORLD
# Planning by measurement takes a time of its own in each run.
fft = PFFT(world, [n] * 3, axes=(0, 1, 2), dtype=float, flags=(FFTW_ESTIMATE,))
numbers, spectrum = newDistArray(fft, False), newDistArray(fft, True)
first = fft.local_slice(False)[0].start
for i, plane in enumerate(numbers):
    plane.flat = [(first + i + j * 7919) % 104729 for j in range(plane.size)]
for round in range(rounds):
    fft.forward(numbers, spectrum)
    # Numbers that stay about as large, however many rounds there are.
    spectrum *= 1 + 1e-3 * (-1) ** round
    fft.backward(spectrum, numbers)
weights = numpy.arange(numbers.size).reshape(numbers.shape) % 1009
sums = world.gather((numbers.sum(), (numbers * weights).sum()))
if world.rank == 0:
    print("sums", *(f"{sum(parts):.9e}" for parts in zip(*sums)))
