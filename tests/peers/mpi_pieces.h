/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * What programs that send many short pieces have in common: memory, and where the pieces are.
 */
#ifndef MPI_PIECES_H
#define MPI_PIECES_H

#define _GNU_SOURCE
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Bytes of a piece, and from its end to where the next one may begin. */
enum { PIECE = 64, GAP = 40 };

static unsigned char *map(size_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED)
		MPI_Abort(MPI_COMM_WORLD, 3);
	return at;
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* Pieces at offsets that follow no rule; returns the bytes that they reach over. */
static MPI_Aint place(int pieces, MPI_Aint *places, int *lengths)
{
	unsigned seed = 12345;
	MPI_Aint end = 0;
	for (int i = 0; i < pieces; i++) {
		seed = seed * 1664525 + 1013904223;
		/* The lowest bits repeat after eight pieces. */
		places[i] = end + (seed >> 16) % 8 * 8;
		lengths[i] = PIECE;
		end = places[i] + PIECE + GAP;
	}
	return end;
}

#endif
