// SPDX-License-Identifier: MIT OR Apache-2.0

/* The error classes of calls with wrong arguments, and that a correct call works after each of
 * them.
 *
 * usage: erroneous FILE BYTES WRONG SKIPPED...
 *
 * The wrong argument with the number WRONG, but not in the functions SKIPPED.
 *
 * Rank 0, which is the root, writes into FILE what its calls return. Every call has a communicator
 * of its own, since ranks that see nothing wrong may send what nobody receives.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 8, MOST = 1 << 18 };

/* What is wrong. */
enum { SEND_COUNT, RECV_COUNT, SEND_TYPE, RECV_TYPE, NULL_TYPE, ROOT, SAME, OPERATION, ALL };

static const char *const names[ALL] = {
	"negative count of what is sent",
	"negative count of what is received",
	"uncommitted type of what is sent",
	"uncommitted type of what is received",
	"null type",
	"root",
	"buffer",
	"null operation",
};

static char *one, *other;
static int rank, size, bytes;
static MPI_Datatype uncommitted;

/* What a function is called with. */
struct arguments {
	const void *send;
	void *recv;
	int send_count, recv_count, root;
	MPI_Datatype send_type, recv_type;
	MPI_Op op;
	int send_counts[RANKS], recv_counts[RANKS], places[RANKS];
	MPI_Datatype send_types[RANKS], recv_types[RANKS];
	MPI_Comm comm;
};

enum { BCAST, GATHER, GATHERV, SCATTER, SCATTERV, ALLGATHER, ALLGATHERV, ALLTOALL, ALLTOALLV, ALLTOALLW,
       REDUCE, ALLREDUCE, REDUCE_SCATTER, REDUCE_SCATTER_BLOCK, IBCAST, IGATHER, ISCATTER, IALLGATHER, IALLTOALL,
       IREDUCE, IALLREDUCE, SENDRECV, SEND, ISEND, RECV, IRECV, PACK, UNPACK, FUNCTIONS };

static const char *const functions[FUNCTIONS] = {
	"Bcast", "Gather", "Gatherv", "Scatter", "Scatterv", "Allgather", "Allgatherv", "Alltoall", "Alltoallv",
	"Alltoallw", "Reduce", "Allreduce", "Reduce_scatter", "Reduce_scatter_block", "Ibcast", "Igather",
	"Iscatter", "Iallgather", "Ialltoall", "Ireduce", "Iallreduce", "Sendrecv", "Send", "Isend", "Recv",
	"Irecv", "Pack", "Unpack",
};

static int call(int function, struct arguments *a)
{
	MPI_Request request = MPI_REQUEST_NULL;
	int code, position = 0;
	switch (function) {
	case BCAST:
		return MPI_Bcast(a->recv, a->recv_count, a->recv_type, a->root, a->comm);
	case GATHER:
		return MPI_Gather(a->send, a->send_count, a->send_type, a->recv, a->recv_count, a->recv_type,
				  a->root, a->comm);
	case GATHERV:
		return MPI_Gatherv(a->send, a->send_count, a->send_type, a->recv, a->recv_counts, a->places,
				   a->recv_type, a->root, a->comm);
	case SCATTER:
		return MPI_Scatter(a->send, a->send_count, a->send_type, a->recv, a->recv_count, a->recv_type,
				   a->root, a->comm);
	case SCATTERV:
		return MPI_Scatterv(a->send, a->send_counts, a->places, a->send_type, a->recv, a->recv_count,
				    a->recv_type, a->root, a->comm);
	case ALLGATHER:
		return MPI_Allgather(a->send, a->send_count, a->send_type, a->recv, a->recv_count, a->recv_type,
				     a->comm);
	case ALLGATHERV:
		return MPI_Allgatherv(a->send, a->send_count, a->send_type, a->recv, a->recv_counts, a->places,
				      a->recv_type, a->comm);
	case ALLTOALL:
		return MPI_Alltoall(a->send, a->send_count, a->send_type, a->recv, a->recv_count, a->recv_type,
				    a->comm);
	case ALLTOALLV:
		return MPI_Alltoallv(a->send, a->send_counts, a->places, a->send_type, a->recv, a->recv_counts,
				     a->places, a->recv_type, a->comm);
	case ALLTOALLW:
		return MPI_Alltoallw(a->send, a->send_counts, a->places, a->send_types, a->recv, a->recv_counts,
				     a->places, a->recv_types, a->comm);
	case REDUCE:
		return MPI_Reduce(a->send, a->recv, a->send_count, a->send_type, a->op, a->root, a->comm);
	case ALLREDUCE:
		return MPI_Allreduce(a->send, a->recv, a->send_count, a->send_type, a->op, a->comm);
	case REDUCE_SCATTER:
		return MPI_Reduce_scatter(a->send, a->recv, a->recv_counts, a->send_type, a->op, a->comm);
	case REDUCE_SCATTER_BLOCK:
		return MPI_Reduce_scatter_block(a->send, a->recv, a->send_count, a->send_type, a->op, a->comm);
	case IBCAST:
		code = MPI_Ibcast(a->recv, a->recv_count, a->recv_type, a->root, a->comm, &request);
		break;
	case IGATHER:
		code = MPI_Igather(a->send, a->send_count, a->send_type, a->recv, a->recv_count, a->recv_type,
				   a->root, a->comm, &request);
		break;
	case ISCATTER:
		code = MPI_Iscatter(a->send, a->send_count, a->send_type, a->recv, a->recv_count, a->recv_type,
				    a->root, a->comm, &request);
		break;
	case IALLGATHER:
		code = MPI_Iallgather(a->send, a->send_count, a->send_type, a->recv, a->recv_count,
				      a->recv_type, a->comm, &request);
		break;
	case IALLTOALL:
		code = MPI_Ialltoall(a->send, a->send_count, a->send_type, a->recv, a->recv_count, a->recv_type,
				     a->comm, &request);
		break;
	case IREDUCE:
		code = MPI_Ireduce(a->send, a->recv, a->send_count, a->send_type, a->op, a->root, a->comm,
				   &request);
		break;
	case IALLREDUCE:
		code = MPI_Iallreduce(a->send, a->recv, a->send_count, a->send_type, a->op, a->comm, &request);
		break;
	case SENDRECV:
		return MPI_Sendrecv(a->send, a->send_count, a->send_type, (rank + 1) % size, 1, a->recv,
				    a->recv_count, a->recv_type, (rank + size - 1) % size, 1, a->comm,
				    MPI_STATUS_IGNORE);
	case SEND:
		return MPI_Send(a->send, a->send_count, a->send_type, (rank + 1) % size, 2, a->comm);
	case ISEND:
		code = MPI_Isend(a->send, a->send_count, a->send_type, (rank + 1) % size, 3, a->comm, &request);
		break;
	case RECV:
		return MPI_Recv(a->recv, a->recv_count, a->recv_type, (rank + 1) % size, 4, a->comm,
				MPI_STATUS_IGNORE);
	case IRECV:
		code = MPI_Irecv(a->recv, a->recv_count, a->recv_type, (rank + 1) % size, 5, a->comm, &request);
		break;
	case PACK:
		return MPI_Pack(a->send, a->send_count, a->send_type, a->recv, size * MOST, &position, a->comm);
	default:
		return MPI_Unpack(a->send, size * MOST, &position, a->recv, a->recv_count, a->recv_type,
				  a->comm);
	}
	return code == MPI_SUCCESS ? MPI_Wait(&request, MPI_STATUS_IGNORE) : code;
}

/* Whether a function has such an argument, and whether it is the root's alone: 2. */
static int has(int function, int wrong)
{
	int first = function <= IALLREDUCE;
	int reduces = function == REDUCE || function == ALLREDUCE || function == REDUCE_SCATTER
		|| function == REDUCE_SCATTER_BLOCK || function == IREDUCE || function == IALLREDUCE;
	int bcasts = function == BCAST || function == IBCAST;
	int gathers = function == GATHER || function == GATHERV || function == IGATHER;
	int scatters = function == SCATTER || function == SCATTERV || function == ISCATTER;
	int sends = function == SEND || function == ISEND || function == PACK;
	int receives = function == RECV || function == IRECV || function == UNPACK;
	switch (wrong) {
	case SEND_COUNT:
	case SEND_TYPE:
		if (wrong == SEND_COUNT && function == REDUCE_SCATTER)
			return 0;
		return bcasts || receives ? 0 : scatters ? 2 : 1;
	case RECV_COUNT:
	case RECV_TYPE:
		return sends || (reduces && (wrong == RECV_TYPE || function != REDUCE_SCATTER)) ? 0
			: gathers ? 2 : 1;
	case NULL_TYPE:
		return 1;
	case ROOT:
		return bcasts || gathers || scatters || function == REDUCE || function == IREDUCE;
	case SAME:
		return bcasts || !first ? 0 : gathers || scatters || function == REDUCE || function == IREDUCE ? 2 : 1;
	default:
		return reduces;
	}
}

static int attempt(int function, int wrong, MPI_Comm comm)
{
	struct arguments a = {
		.send = one,
		.recv = other,
		.send_count = bytes,
		.recv_count = bytes,
		.send_type = MPI_BYTE,
		.recv_type = MPI_BYTE,
		.op = MPI_BXOR,
		.comm = comm,
	};
	for (int i = 0; i < size; i++) {
		a.send_counts[i] = a.recv_counts[i] = bytes;
		a.places[i] = i * bytes;
	}
	switch (wrong) {
	case SEND_COUNT:
		a.send_count = a.send_counts[0] = -1;
		break;
	case RECV_COUNT:
		a.recv_count = a.recv_counts[0] = -1;
		break;
	case SEND_TYPE:
		a.send_type = uncommitted;
		a.send_count = bytes / 8;
		break;
	case RECV_TYPE:
		a.recv_type = uncommitted;
		a.recv_count = bytes / 8;
		break;
	case NULL_TYPE:
		a.send_type = a.recv_type = MPI_DATATYPE_NULL;
		break;
	case ROOT:
		a.root = size;
		break;
	case SAME:
		switch (function) {
		case ALLGATHER:
		case ALLGATHERV:
		case IALLGATHER:
			a.send = other + rank * bytes;
			break;
		default:
			a.send = other;
		}
		break;
	default:
		a.op = MPI_OP_NULL;
	}
	for (int i = 0; i < size; i++) {
		if (wrong == SEND_TYPE)
			a.send_counts[i] /= 8;
		if (wrong == RECV_TYPE)
			a.recv_counts[i] /= 8;
		a.send_types[i] = a.send_type;
		a.recv_types[i] = a.recv_type;
	}
	return call(function, &a);
}

/* A communicator whose nonblocking collectives are done together, too. */
static MPI_Comm meet(void)
{
	MPI_Comm comm;
	MPI_Request request;
	char byte[16] = { 0 };
	MPI_Comm_dup(MPI_COMM_WORLD, &comm);
	MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
	MPI_Ibcast(byte, sizeof(byte), MPI_BYTE, 0, comm, &request);
	MPI_Wait(&request, MPI_STATUS_IGNORE);
	MPI_Bcast(byte, sizeof(byte), MPI_BYTE, 0, comm);
	return comm;
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	if (argc < 4 || size > RANKS || (bytes = atoi(argv[2])) > MOST)
		MPI_Abort(MPI_COMM_WORLD, 2);
	one = calloc(size, 2 * MOST);
	other = calloc(size, 2 * MOST);
	MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
	MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
	MPI_Type_vector(8, 1, 2, MPI_BYTE, &uncommitted);
	FILE *file = rank == 0 ? fopen(argv[1], "w") : NULL;
	int wrong = atoi(argv[3]);
	for (int function = 0; function < FUNCTIONS; function++) {
		int kind = has(function, wrong), class = MPI_SUCCESS;
		for (int i = 4; i < argc; i++)
			kind = strcmp(argv[i], functions[function]) == 0 ? 0 : kind;
		if (kind == 0)
			continue;
		MPI_Comm comm = meet();
		if (file) {
			fprintf(file, "%s, %s: ", functions[function], names[wrong]);
			fflush(file);
		}
		/* Where it is wrong at the root alone, the others wait for it for ever or send what
		 * nobody receives. */
		int code = kind == 2 && rank != 0 ? MPI_SUCCESS : attempt(function, wrong, comm);
		if (code != MPI_SUCCESS)
			MPI_Error_class(code, &class);
		MPI_Barrier(MPI_COMM_WORLD);
		memset(one, 1 << rank, bytes);
		comm = kind == 2 ? meet() : comm;
		code = MPI_Allreduce(one, other, bytes, MPI_BYTE, MPI_BXOR, comm);
		int works = code == MPI_SUCCESS && other[bytes / 2] == (char)((1 << size) - 1);
		if (file) {
			fprintf(file, "class %d, then %s\n", class, works ? "right" : "wrong");
			fflush(file);
		}
	}
	if (file)
		fclose(file);
	MPI_Type_free(&uncommitted);
	MPI_Finalize();
	return 0;
}
