// SPDX-License-Identifier: MIT OR Apache-2.0

/* Blocking collectives on large buffers, each followed by a use of one of the buffers that no load
 * or store of this program makes: messages, persistent requests, windows, files, system calls,
 * fork, free. Which comes when is random, and the same on all ranks. Every rank prints a hash of
 * all its buffers at the end of each round, so two runs with the same arguments print the same.
 *
 * usage: early BYTES ROUNDS SEED
 *
 * With -DPAST_US there is a call of a function in it that libcopy_mpi.so does not stand in front
 * of.
 */
#define _GNU_SOURCE
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "random.h"

#ifdef PAST_US
__attribute__((weak)) int MPI_Buffer_attach_c(void *, MPI_Count);
#endif

enum { BUFFERS = 6, USES = 20 };

static int rank, size;
static size_t part, whole;
static unsigned char *buffers[BUFFERS];
static void fill(unsigned char *at, size_t length, uint64_t seed)
{
	for (size_t i = 0; i < length; i++)
		at[i] = (unsigned char)((seed + i) * 2654435761u >> 11);
}

static void check(int good, const char *what)
{
	if (!good) {
		fprintf(stderr, "rank %d: %s failed\n", rank, what);
		MPI_Abort(MPI_COMM_WORLD, 3);
	}
}

/* A collective from `from` to `to`. */
static void collective(unsigned which, unsigned char *from, unsigned char *to, int root)
{
	MPI_Datatype holes;
	switch (which) {
	case 0:
		MPI_Bcast(to, part, MPI_BYTE, root, MPI_COMM_WORLD);
		break;
	case 1:
		MPI_Gather(from, part, MPI_BYTE, to, part, MPI_BYTE, root, MPI_COMM_WORLD);
		break;
	case 2:
		MPI_Scatter(from, part, MPI_BYTE, to, part, MPI_BYTE, root, MPI_COMM_WORLD);
		break;
	case 3:
		MPI_Allgather(from, part, MPI_BYTE, to, part, MPI_BYTE, MPI_COMM_WORLD);
		break;
	case 4:
		MPI_Alltoall(from, part, MPI_BYTE, to, part, MPI_BYTE, MPI_COMM_WORLD);
		break;
	case 5:
		MPI_Allgather(MPI_IN_PLACE, 0, MPI_BYTE, to, part, MPI_BYTE, MPI_COMM_WORLD);
		break;
	case 6:
		MPI_Alltoall(MPI_IN_PLACE, 0, MPI_BYTE, to, part, MPI_BYTE, MPI_COMM_WORLD);
		break;
	case 7:
		MPI_Type_vector(part / 8192, 4096, 8192, MPI_BYTE, &holes);
		MPI_Type_commit(&holes);
		MPI_Bcast(to, 1, holes, root, MPI_COMM_WORLD);
		MPI_Type_free(&holes);
		break;
	default:
		MPI_Allreduce(from, to, part / 8, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
	}
}

/* Uses `mine`, with `other` to receive in. */
static void use(unsigned which, unsigned *slot, unsigned char *other, unsigned amount)
{
	unsigned char *mine = buffers[*slot];
	int after = (rank + 1) % size, before = (rank + size - 1) % size;
	MPI_Request requests[2];
	MPI_Status statuses[2];
	MPI_Win window;
	MPI_File file;
	FILE *stream;
	char name[] = "/tmp/early.XXXXXX";
	int pipes[2], status, position = 0;
	pid_t child;
	uint64_t sum[2] = {amount, 0};

	switch (which) {
	case 0:
		sum[0] = hash(mine, whole);
		memcpy(other, sum, 8);
		break;
	case 1:
		mine[amount] ^= 0x5a;
		break;
	case 2:
		MPI_Sendrecv(mine, part, MPI_BYTE, after, 1, other, part, MPI_BYTE, before, 1,
			     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		break;
	case 3:
		MPI_Irecv(other, part, MPI_BYTE, before, 2, MPI_COMM_WORLD, &requests[0]);
		MPI_Isend(mine, part, MPI_BYTE, after, 2, MPI_COMM_WORLD, &requests[1]);
		MPI_Waitall(2, requests, statuses);
		break;
	case 4:
		MPI_Send_init(mine, part, MPI_BYTE, after, 3, MPI_COMM_WORLD, &requests[0]);
		MPI_Recv_init(other, part, MPI_BYTE, before, 3, MPI_COMM_WORLD, &requests[1]);
		collective(0, mine, mine, 0);
		MPI_Startall(2, requests);
		MPI_Waitall(2, requests, statuses);
		MPI_Request_free(&requests[0]);
		MPI_Request_free(&requests[1]);
		break;
	case 5:
		status = mkstemp(name);
		unlink(name);
		check(write(status, mine, part) == (ssize_t)part, "write");
		check(pread(status, other, part, 0) == (ssize_t)part, "pread");
		close(status);
		break;
	case 6:
		stream = tmpfile();
		check(stream && fwrite(mine, 1, part, stream) == part, "fwrite");
		rewind(stream);
		check(fread(other, 1, part, stream) == part, "fread");
		fclose(stream);
		break;
	case 7:
		MPI_Win_create(mine, whole, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
		MPI_Win_fence(0, window);
		MPI_Get(other, part, MPI_BYTE, after, 0, part, MPI_BYTE, window);
		MPI_Win_fence(0, window);
		/* What comes into a window is there for others as soon as they are let in. */
		collective(0, mine, mine, 1);
		MPI_Win_fence(0, window);
		MPI_Get(other, part, MPI_BYTE, before, 0, part, MPI_BYTE, window);
		MPI_Win_fence(0, window);
		MPI_Win_free(&window);
		break;
	case 8:
		close(mkstemp(name));
		check(MPI_File_open(MPI_COMM_SELF, name, MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE,
				    MPI_INFO_NULL, &file) == 0, "MPI_File_open");
		MPI_File_write_at(file, 0, mine, part, MPI_BYTE, MPI_STATUS_IGNORE);
		MPI_File_read_at(file, 0, other, part, MPI_BYTE, MPI_STATUS_IGNORE);
		MPI_File_close(&file);
		break;
	case 9:
		MPI_Scan(mine, other, part / 8, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
		break;
	case 10:
		MPI_Ialltoall(mine, part, MPI_BYTE, other, part, MPI_BYTE, MPI_COMM_WORLD, &requests[0]);
		MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
		break;
	case 11:
		check(pipe(pipes) == 0, "pipe");
		fflush(stdout);
		child = fork();
		if (child == 0) {
			sum[0] = hash(mine, part);
			_exit(write(pipes[1], sum, 8) != 8);
		}
		check(child > 0 && read(pipes[0], sum, 8) == 8, "fork");
		waitpid(child, &status, 0);
		close(pipes[0]);
		close(pipes[1]);
		memcpy(other, sum, 8);
		break;
	case 12:
		free(mine);
		buffers[*slot] = malloc(whole);
		fill(buffers[*slot], whole, amount);
		break;
	case 13:
		mine = buffers[*slot] = realloc(mine, 2 * whole);
		buffers[*slot] = realloc(mine, whole);
		break;
	case 14:
		MPI_Pack(mine, part, MPI_BYTE, other, whole, &position, MPI_COMM_WORLD);
		break;
	case 15:
		MPI_Allreduce(sum, sum + 1, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
		memcpy(other, sum + 1, 8);
		break;
	case 16:
		MPI_Barrier(MPI_COMM_WORLD);
		break;
	case 17:
		MPI_Ssend(mine, 0, MPI_BYTE, MPI_PROC_NULL, 0, MPI_COMM_WORLD);
		MPI_Bcast(mine + part / 2, 64, MPI_BYTE, 0, MPI_COMM_WORLD);
		break;
	case 18:
		MPI_Iallgather(mine, part, MPI_BYTE, other, part, MPI_BYTE, MPI_COMM_WORLD, &requests[0]);
		collective(0, buffers[0], buffers[*slot == 0 || other == buffers[0] ? 5 : 0], 0);
		MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
		break;
	default:
		usleep(amount % 3000);
	}
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	part = argc > 1 ? strtoul(argv[1], NULL, 10) & ~(size_t)7 : 1 << 20;
	int rounds = argc > 2 ? atoi(argv[2]) : 10;
	state = argc > 3 ? strtoul(argv[3], NULL, 10) : 1;
	whole = part * size;
	for (int i = 0; i < BUFFERS; i++) {
		buffers[i] = malloc(whole);
		fill(buffers[i], whole, rank * 1000 + i);
	}
	for (int round = 0; round < rounds; round++) {
		for (int step = 0; step < 4; step++) {
			unsigned a = next(BUFFERS), b = next(BUFFERS - 1), c = next(BUFFERS);
			unsigned d = next(BUFFERS - 1);
			b += b >= a;
			d += d >= c;
			/* The buffers of 18 and its collective must not be the same. */
			unsigned what = next(USES);
			if (what == 18 && (c == 5 || d == 5))
				what = 15;
			collective(next(9), buffers[a], buffers[b], next(size));
			use(what, &c, buffers[d], next(part));
		}
		uint64_t all = 0, *sums = calloc(size, 8);
		for (int i = 0; i < BUFFERS; i++)
			all = all * 31 + hash(buffers[i], whole);
		MPI_Gather(&all, 8, MPI_BYTE, sums, 8, MPI_BYTE, 0, MPI_COMM_WORLD);
		for (int i = 0; rank == 0 && i < size; i++)
			printf("round %d rank %d: %016llx\n", round, i, (unsigned long long)sums[i]);
		free(sums);
	}
#ifdef PAST_US
	if (MPI_Buffer_attach_c && rounds < 0)
		MPI_Buffer_attach_c(NULL, 0);
#endif
	MPI_Finalize();
	return 0;
}
