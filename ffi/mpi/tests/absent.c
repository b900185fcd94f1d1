// SPDX-License-Identifier: MIT OR Apache-2.0

/* Functions that not every library has, found at run time, as programs in other languages do.
 * Prints the same in whichever library they are. Two ranks.
 *
 * usage: absent            calls them
 *        absent looks      only those that look at requests: MPICH 4.0 has the others, but
 *                          gives its program's types back too often and says nothing in the
 *                          status
 *        absent MPI_...    prints those of the names that the MPI library has not
 */
#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SMALL = 10, LONG = 300000, STRIDE = 3 };

static int (*exchange)(const void *, int, MPI_Datatype, int, int, void *, int, MPI_Datatype, int,
		       int, MPI_Comm, MPI_Request *);
static int (*replace)(void *, int, MPI_Datatype, int, int, int, int, MPI_Comm, MPI_Request *);
static int (*any)(int, MPI_Request *, int *, int *, MPI_Status *);
static int (*all)(int, MPI_Request *, int *, MPI_Status *);
static int (*some)(int, MPI_Request *, int *, int *, MPI_Status *);

static MPI_Comm comm;
static int rank, other;

static void find(const char *name, void *function)
{
	void *found = dlsym(RTLD_DEFAULT, name);
	if (!found) {
		fprintf(stderr, "no %s\n", name);
		MPI_Abort(MPI_COMM_WORLD, 3);
	}
	memcpy(function, &found, sizeof(found));
}

/* Elements of every third int, exchanged; the sender writes to them as soon as it may. */
static void exchanged(int elements, int source, int dest)
{
	MPI_Datatype every;
	MPI_Status status;
	MPI_Request request;
	int count = -1, *a = malloc(sizeof(int) * STRIDE * elements), *b = malloc(sizeof(int) * elements);
	MPI_Type_vector(elements, 1, STRIDE, MPI_INT, &every);
	MPI_Type_commit(&every);
	for (int i = 0; i < STRIDE * elements; i++)
		a[i] = rank * 1000000 + i;
	for (int i = 0; i < elements; i++)
		b[i] = -1;
	int code = exchange(a, 1, every, dest, 7, b, elements, MPI_INT, source, 7, comm, &request);
	code |= MPI_Wait(&request, &status);
	for (int i = 0; i < STRIDE * elements; i++)
		a[i] = -7;
	MPI_Get_count(&status, MPI_INT, &count);
	long long sum = 0;
	for (int i = 0; i < elements; i++)
		sum += (long long)b[i] * (i % 17);
	printf("%d exchange %d: %d, %d from %d, %lld, %d\n", rank, elements, code, count,
	       status.MPI_SOURCE == MPI_PROC_NULL ? -99 : status.MPI_SOURCE, sum,
	       request == MPI_REQUEST_NULL);
	for (int i = 0; i < STRIDE * elements; i++)
		a[i] = rank * 1000000 + i;
	code = replace(a, 1, every, dest, 8, source, 8, comm, &request);
	code |= MPI_Wait(&request, &status);
	sum = 0;
	for (int i = 0; i < STRIDE * elements; i++)
		sum += (long long)a[i] * (i % 19);
	printf("%d replace %d: %d, %lld\n", rank, elements, code, sum);
	MPI_Type_free(&every);
	free(a);
	free(b);
}

/* A request that nothing comes for yet, one that is complete, one that was never started. */
static void looked_at(void)
{
	MPI_Request requests[4];
	MPI_Status statuses[4];
	int flag, index, done, indices[4], out = rank, in[3] = { -1, -1, -1 };
	MPI_Recv_init(&in[2], 1, MPI_INT, other, 3, comm, &requests[0]);
	requests[1] = MPI_REQUEST_NULL;
	any(2, requests, &index, &flag, statuses);
	printf("%d none: %d %d\n", rank, flag, index == MPI_UNDEFINED);
	all(2, requests, &flag, statuses);
	printf("%d all of none: %d\n", rank, flag);
	some(2, requests, &done, indices, statuses);
	printf("%d some of none: %d\n", rank, done == MPI_UNDEFINED);
	MPI_Irecv(&in[0], 1, MPI_INT, other, 1, comm, &requests[2]);
	MPI_Irecv(&in[1], 1, MPI_INT, other, 2, comm, &requests[3]);
	MPI_Barrier(comm);
	any(4, requests, &index, &flag, MPI_STATUS_IGNORE);
	printf("%d nothing: %d %d\n", rank, flag, index == MPI_UNDEFINED);
	all(4, requests, &flag, MPI_STATUSES_IGNORE);
	printf("%d not all: %d\n", rank, flag);
	some(4, requests, &done, indices, MPI_STATUSES_IGNORE);
	printf("%d not some: %d\n", rank, done);
	MPI_Barrier(comm);
	MPI_Send(&out, 1, MPI_INT, other, 2, comm);
	for (flag = 0; !flag;)
		any(4, requests, &index, &flag, statuses);
	printf("%d any: %d from %d tag %d\n", rank, index, statuses[0].MPI_SOURCE, statuses[0].MPI_TAG);
	some(4, requests, &done, indices, statuses);
	printf("%d some: %d, %d tag %d\n", rank, done, indices[0], statuses[0].MPI_TAG);
	MPI_Barrier(comm);
	MPI_Send(&out, 1, MPI_INT, other, 1, comm);
	for (flag = 0; !flag;)
		all(4, requests, &flag, statuses);
	printf("%d all: tags %d %d\n", rank, statuses[2].MPI_TAG, statuses[3].MPI_TAG);
	/* The one that was made first, started and complete. */
	MPI_Start(&requests[0]);
	MPI_Send(&out, 1, MPI_INT, other, 3, comm);
	for (done = 0; done != 3;)
		some(4, requests, &done, indices, statuses);
	printf("%d some: %d %d %d\n", rank, indices[0], indices[1], indices[2]);
	MPI_Waitall(4, requests, statuses);
	printf("%d received %d %d %d\n", rank, in[0], in[1], in[2]);
	any(4, requests, &index, &flag, statuses);
	printf("%d none: %d %d\n", rank, flag, index == MPI_UNDEFINED);
	MPI_Request_free(&requests[0]);
	/* Persistent sends that are complete are active. */
	MPI_Send_init(&out, 1, MPI_INT, other, 4, comm, &requests[0]);
	MPI_Send_init(&out, 1, MPI_INT, other, 4, comm, &requests[1]);
	MPI_Startall(2, requests);
	MPI_Recv(&in[0], 1, MPI_INT, other, 4, comm, MPI_STATUS_IGNORE);
	MPI_Recv(&in[0], 1, MPI_INT, other, 4, comm, MPI_STATUS_IGNORE);
	for (flag = 0; !flag;)
		all(2, requests, &flag, MPI_STATUSES_IGNORE);
	some(2, requests, &done, indices, statuses);
	printf("%d sent: %d\n", rank, done);
	MPI_Waitall(2, requests, statuses);
	some(2, requests, &done, indices, statuses);
	printf("%d sent: %d\n", rank, done == MPI_UNDEFINED);
	MPI_Request_free(&requests[0]);
	MPI_Request_free(&requests[1]);
	/* Sends of which a library may have but one request. */
	MPI_Isend(&out, 1, MPI_INT, other, 5, comm, &requests[0]);
	MPI_Isend(&out, 1, MPI_INT, other, 5, comm, &requests[1]);
	MPI_Ibarrier(comm, &requests[2]);
	MPI_Recv(&in[0], 1, MPI_INT, other, 5, comm, MPI_STATUS_IGNORE);
	MPI_Recv(&in[0], 1, MPI_INT, other, 5, comm, MPI_STATUS_IGNORE);
	for (done = 0; done != 3;)
		some(3, requests, &done, indices, statuses);
	printf("%d sent: %d\n", rank, done);
	MPI_Waitall(3, requests, statuses);
}

/* Everything that sends and receives at the same time. */
static void exchanges(void)
{
	exchanged(SMALL, other, other);
	exchanged(LONG, other, other);
	exchanged(SMALL, MPI_PROC_NULL, MPI_PROC_NULL);
	/* To one side only. */
	exchanged(LONG, rank ? MPI_PROC_NULL : other, rank ? other : MPI_PROC_NULL);
	int a = 1, b = 2;
	MPI_Request request = MPI_REQUEST_NULL;
	int code = exchange(&a, 1, MPI_INT, 5, 0, &b, 1, MPI_INT, other, 0, comm, &request);
	int class = 0;
	MPI_Error_class(code, &class);
	printf("%d no such rank: %d\n", rank, class == MPI_ERR_RANK);
	/* Sent, although its sender has nothing to wait for any more. */
	if (rank == 0) {
		static int many[LONG];
		for (int i = 0; i < LONG; i++)
			many[i] = i;
		exchange(many, LONG, MPI_INT, 1, 9, &b, 1, MPI_INT, 1, 9, comm, &request);
		MPI_Wait(&request, MPI_STATUS_IGNORE);
		memset(many, 0, sizeof(many));
	} else {
		static int many[LONG];
		MPI_Send(&a, 1, MPI_INT, 0, 9, comm);
		for (int i = 0; i < LONG; i++)
			many[i] = -1;
		MPI_Recv(many, LONG, MPI_INT, 0, 9, comm, MPI_STATUS_IGNORE);
		printf("last: %d\n", many[LONG - 1]);
	}
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	int looks = argc == 2 && !strcmp(argv[1], "looks");
	for (int i = 1; i < argc && rank == 0 && !looks; i++) {
		char name[200];
		snprintf(name, sizeof(name), "P%s", argv[i]);
		if (!dlsym(RTLD_DEFAULT, name))
			printf("%s\n", argv[i]);
	}
	if (argc > 1 && !looks)
		return MPI_Finalize();
	other = 1 - rank;
	MPI_Comm_dup(MPI_COMM_WORLD, &comm);
	MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
	find("MPI_Isendrecv", &exchange);
	find("MPI_Isendrecv_replace", &replace);
	find("MPI_Request_get_status_any", &any);
	find("MPI_Request_get_status_all", &all);
	find("MPI_Request_get_status_some", &some);
	looked_at();
	if (!looks)
		exchanges();
	MPI_Finalize();
	return 0;
}
