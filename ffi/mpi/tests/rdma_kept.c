/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/* Messages from and to the same addresses, whose memory is unmapped, replaced, moved or given back
 * between some of them: what is kept for the next message must not be that of memory which is gone.
 * The first and the last rank exchange a message in each round. Prints a line per rank.
 *
 * usage: rdma_kept ROUNDS
 */
#define _GNU_SOURCE
#include "rdma.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	BLOCK = 1024,
	STRIDE = 2 * BLOCK,
	BLOCKS = SIZE / BLOCK,
	PART = BLOCKS / 2 * STRIDE, /* mapped twice, with nothing mapped between */
	DISTANCE = 4 << 20,
	SPAN = DISTANCE + PART,
};

enum { REPLACE, DISCARD, MOVE, PROTECT, FORK, CHANGES };

static void *map(void *at, size_t len, int protection, int flags)
{
	void *got = mmap(at, len, protection, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
	if (got == MAP_FAILED) {
		perror("rdma_kept: mmap");
		exit(1);
	}
	return got;
}

/* Addresses for a message, of which two parts are mapped. */
static unsigned char *make(void)
{
	unsigned char *buffer = map(NULL, SPAN, PROT_NONE, MAP_NORESERVE);
	map(buffer, PART, PROT_READ | PROT_WRITE, MAP_FIXED);
	map(buffer + DISTANCE, PART, PROT_READ | PROT_WRITE, MAP_FIXED);
	return buffer;
}

/* Where the block `i' of a message is. */
static unsigned char *block(unsigned char *buffer, int i)
{
	return buffer + (i < BLOCKS / 2 ? 0 : DISTANCE) + i % (BLOCKS / 2) * STRIDE;
}

static void change(unsigned char *part, int what)
{
	if (what == REPLACE) {
		munmap(part, PART);
		map(part, PART, PROT_READ | PROT_WRITE, MAP_FIXED);
	} else if (what == DISCARD) {
		madvise(part, PART, MADV_DONTNEED);
	} else if (what == MOVE) {
		void *other = map(NULL, PART, PROT_READ | PROT_WRITE, 0);
		memset(other, 255, PART);
		/* Not mremap(): that of UCX, below MPICH, loses the new address. */
		if (syscall(SYS_mremap, other, PART, PART, MREMAP_MAYMOVE | MREMAP_FIXED, part) != (long)part)
			wrong++;
	} else if (what == PROTECT) {
		mprotect(part, PART, PROT_READ);
		mprotect(part, PART, PROT_READ | PROT_WRITE);
	}
}

static void fill(unsigned char *buffer, uint64_t message)
{
	for (int i = 0; i < BLOCKS; i++) {
		memset(block(buffer, i), 0, STRIDE);
		for (int j = 0; message && j < BLOCK; j++)
			block(buffer, i)[j] = stream(message, (size_t)i * BLOCK + j);
	}
}

static void check(unsigned char *buffer, uint64_t message)
{
	for (int i = 0; i < BLOCKS; i++)
		for (int j = 0; j < STRIDE; j++)
			wrong += block(buffer, i)[j] != (j < BLOCK ? stream(message, (size_t)i * BLOCK + j) : 0);
}

int main(int argc, char **argv)
{
	int rank, ranks, rounds = argc > 1 ? atoi(argv[1]) : 40;
	uint64_t random = 1;
	MPI_Aint places[BLOCKS];
	MPI_Datatype inner, type;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	unsigned char *from = make(), *to = make();
	for (int i = 0; i < BLOCKS; i++)
		places[i] = block(from, i) - from;
	MPI_Type_create_hindexed_block(BLOCKS, BLOCK, places, MPI_BYTE, &inner);
	commit(inner, SPAN, &type, MPI_COMM_WORLD);
	for (int round = 0; round < rounds && (rank == 0 || rank == ranks - 1); round++) {
		/* The same on both. */
		int what = next(&random) % CHANGES, which = next(&random) % 4, parts = 1 + next(&random) % 3;
		int peer = ranks - 1 - rank;
		pid_t child = -1;
		/* The first ones, and two in three later on, find what the one before has left. */
		if (round > 5 && which == 0) {
			unsigned char *both[] = {from, to};
			for (int i = 0; i < 2; i++) {
				if (parts & 1)
					change(both[i], what);
				if (parts & 2)
					change(both[i] + DISTANCE, what);
			}
			if (what == FORK)
				child = fork();
		}
		fill(from, child == 0 ? 77 : 1000 * round + rank + 1);
		fill(to, 0);
		if (child == 0)
			_exit(0);
		if (rank == 0) {
			MPI_Send(from, 1, type, peer, round, MPI_COMM_WORLD);
			MPI_Recv(to, 1, type, peer, round, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		} else {
			MPI_Recv(to, 1, type, peer, round, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			MPI_Send(from, 1, type, peer, round, MPI_COMM_WORLD);
		}
		check(to, 1000 * round + peer + 1);
		if (child > 0)
			waitpid(child, NULL, 0);
	}
	MPI_Barrier(MPI_COMM_WORLD);
	print_result(rank, rounds);
	fflush(stdout);
	MPI_Type_free(&type);
	MPI_Finalize();
	return 0;
}
