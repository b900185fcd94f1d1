// SPDX-License-Identifier: MIT OR Apache-2.0

/* What an error handler of the program's throws reaches the program, and a thread that leaves in
 * one leaves: whatever function the error is found in. Two ranks; afterwards all still works. */
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>
#include <pthread.h>
#include <cstdio>
#include <cstring>
#include <initializer_list>

enum { LARGE = 1 << 18, PIECES = 4000, NOBODY = 99 };

static int rank, mine, length;
static unsigned char out[LARGE], in[LARGE];
static MPI_Datatype pieces;
static bool leaves;
static long wrong;

static void handler(MPI_Comm *, int *code, ...)
{
	if (leaves)
		pthread_exit(&leaves);
	throw *code;
}

/* Messages and collectives of all kinds, that are right. */
static void right(int bytes)
{
	int other = 1 - rank;
	MPI_Request requests[2];
	MPI_Status statuses[2];
	memset(in, 0, sizeof(in));
	MPI_Irecv(in, bytes, MPI_BYTE, other, 1, MPI_COMM_WORLD, &requests[0]);
	MPI_Isend(out, bytes, MPI_BYTE, other, 1, MPI_COMM_WORLD, &requests[1]);
	MPI_Waitall(2, requests, statuses);
	wrong += memcmp(in, out, bytes) != 0;
	memset(in, 0, sizeof(in));
	MPI_Sendrecv(out, PIECES, pieces, other, 2, in, PIECES, pieces, other, 2, MPI_COMM_WORLD,
		     MPI_STATUS_IGNORE);
	for (int i = 0; i < PIECES; i++)
		wrong += memcmp(in + 32 * i, out + 32 * i, 16) != 0;
	memset(in, 0, sizeof(in));
	MPI_Bcast(rank ? in : out, bytes, MPI_BYTE, 0, MPI_COMM_WORLD);
	wrong += rank && memcmp(in, out, bytes) != 0;
	MPI_Allreduce(out, in, bytes, MPI_UNSIGNED_CHAR, MPI_MAX, MPI_COMM_WORLD);
	wrong += memcmp(in, out, bytes) != 0;
}

template <class Call> static void tried(const char *name, Call call)
{
	int caught = MPI_SUCCESS;
	try {
		call();
	} catch (int code) {
		MPI_Error_class(code, &caught);
	}
	if (rank == mine)
		printf("rank %d, %d bytes, %s: class %d\n", rank, length, name, caught);
	right(64);
	right(LARGE / 2);
}

/* What arrives is one element more than is received. */
static void cut(const char *name, int count, MPI_Datatype type)
{
	tried(name, [&] {
		MPI_Request request;
		MPI_Isend(out, count, type, 1 - rank, 3, MPI_COMM_WORLD, &request);
		try {
			MPI_Recv(in, count - 1, type, 1 - rank, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		} catch (int) {
			MPI_Wait(&request, MPI_STATUS_IGNORE);
			throw;
		}
		MPI_Wait(&request, MPI_STATUS_IGNORE);
	});
}

static void *leave(void *)
{
	MPI_Send(out, LARGE, MPI_BYTE, NOBODY, 0, MPI_COMM_WORLD);
	return nullptr;
}

int main(int argc, char **argv)
{
	int provided;
	MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Errhandler throws;
	MPI_Comm_create_errhandler(handler, &throws);
	MPI_Comm_set_errhandler(MPI_COMM_WORLD, throws);
	MPI_Datatype some;
	MPI_Type_contiguous(16, MPI_BYTE, &some);
	MPI_Type_create_resized(some, 0, 32, &pieces);
	MPI_Type_commit(&pieces);
	for (int i = 0; i < LARGE; i++)
		out[i] = i * 7 + i / 251;
	for (int i = 0; i < 20; i++) {
		right(64);
		right(LARGE / 2);
	}
	for (mine = 0; mine < 2; mine++) {
		for (int bytes : { 4, 4096, (int)LARGE }) {
			length = bytes;
			tried("send", [&] { MPI_Send(out, bytes, MPI_BYTE, NOBODY, 0, MPI_COMM_WORLD); });
			tried("receive", [&] {
				MPI_Recv(in, bytes, MPI_BYTE, NOBODY, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			});
			tried("exchange", [&] {
				MPI_Sendrecv(out, bytes, MPI_BYTE, NOBODY, 0, in, bytes, MPI_BYTE, NOBODY, 0,
					     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			});
			tried("start", [&] {
				MPI_Request request;
				MPI_Isend(out, bytes, MPI_BYTE, NOBODY, 0, MPI_COMM_WORLD, &request);
			});
			tried("probe", [&] { MPI_Probe(NOBODY, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE); });
			tried("broadcast", [&] { MPI_Bcast(out, bytes, MPI_BYTE, NOBODY, MPI_COMM_WORLD); });
			tried("gather", [&] {
				MPI_Gather(out, bytes, MPI_BYTE, nullptr, 0, MPI_BYTE, NOBODY, MPI_COMM_WORLD);
			});
			tried("sum", [&] {
				MPI_Allreduce(out, in, bytes, MPI_BYTE, MPI_OP_NULL, MPI_COMM_WORLD);
			});
			cut("cut off", bytes, MPI_BYTE);
		}
		tried("typed send", [&] { MPI_Send(out, PIECES, pieces, NOBODY, 0, MPI_COMM_WORLD); });
		cut("typed, cut off", PIECES, pieces);
	}
	if (rank == 0) {
		pthread_t thread;
		void *left = nullptr;
		leaves = true;
		pthread_create(&thread, nullptr, leave, nullptr);
		pthread_join(thread, &left);
		leaves = false;
		printf("a thread that leaves: %s\n", left == &leaves ? "has left" : "has not");
	}
	right(64);
	right(LARGE / 2);
	printf("rank %d: %ld wrong\n", rank, wrong);
	MPI_Errhandler_free(&throws);
	MPI_Type_free(&pieces);
	MPI_Type_free(&some);
	MPI_Finalize();
	return 0;
}
