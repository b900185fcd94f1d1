// SPDX-License-Identifier: MIT OR Apache-2.0

/* Sessions (MPI 4.1, section 11.3): large collectives, messages of derived types and attributes on
 * communicators that are made from a session.
 *
 * usage: sessions only NUMBER   no MPI_Init: NUMBER sessions, one after the other
 *        sessions beside        with MPI_Init before and MPI_Finalize behind
 *        sessions after         the session goes on after MPI_Finalize
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Open MPI 5 has sessions, but says that it is MPI 3.1. */
#if MPI_VERSION < 4 && !(defined(OMPI_MAJOR_VERSION) && OMPI_MAJOR_VERSION >= 5)
int main(void)
{
	return printf("no sessions\n") < 0;
}
#else

enum { MANY = 1 << 18, ROWS = 1 << 12 };

static int wrong, deleted;

static int forget(MPI_Comm comm, int keyval, void *value, void *extra)
{
	(void)comm, (void)keyval, (void)extra;
	deleted += value == (void *)&wrong;
	return MPI_SUCCESS;
}

static int forget_type(MPI_Datatype type, int keyval, void *value, void *extra)
{
	(void)type, (void)keyval, (void)extra;
	deleted += value == (void *)&wrong;
	return MPI_SUCCESS;
}

/* Attributes of the program's stay what they are. */
static void has(MPI_Comm comm, int keyval, MPI_Datatype type, int type_keyval)
{
	void *value;
	int flag;
	MPI_Comm_get_attr(comm, keyval, &value, &flag);
	wrong += !flag || value != (void *)&wrong;
	MPI_Type_get_attr(type, type_keyval, &value, &flag);
	wrong += !flag || value != (void *)&wrong;
}

static void work(MPI_Comm comm, int round)
{
	int rank, size, keyval, type_keyval;
	MPI_Comm_rank(comm, &rank);
	MPI_Comm_size(comm, &size);
	int *data = malloc(sizeof(int) * MANY), *sums = malloc(sizeof(int) * MANY);
	char *from = malloc(sizeof(int) * MANY), *to = malloc(sizeof(int) * MANY);
	MPI_Request requests[2];
	MPI_Status status;
	MPI_Datatype rows;

	MPI_Type_vector(ROWS, 16, 32, MPI_INT, &rows);
	MPI_Type_commit(&rows);
	MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, forget, &keyval, NULL);
	MPI_Type_create_keyval(MPI_TYPE_NULL_COPY_FN, forget_type, &type_keyval, NULL);
	MPI_Comm_set_attr(comm, keyval, &wrong);
	MPI_Type_set_attr(rows, type_keyval, &wrong);
	for (int again = 0; again < 3; again++) {
		for (int i = 0; i < MANY; i++)
			data[i] = rank ? -1 : i + round + again;
		MPI_Bcast(data, MANY, MPI_INT, 0, comm);
		for (int i = 0; i < MANY; i++)
			wrong += data[i] != i + round + again;
		MPI_Allreduce(data, sums, MANY, MPI_INT, MPI_SUM, comm);
		for (int i = 0; i < MANY; i++)
			wrong += sums[i] != size * data[i];
		memset(sums, 0, sizeof(int) * MANY);
		if (!rank)
			memcpy(sums, data, sizeof(int) * MANY);
		MPI_Ibcast(sums, MANY, MPI_INT, 0, comm, &requests[0]);
		MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
		wrong += memcmp(sums, data, sizeof(int) * MANY) != 0;
		/* An irregular one, whose ranks agree on lengths now and then. */
		int counts[64], places[64];
		for (int i = 0; i < size; i++) {
			counts[i] = MANY / size;
			places[i] = i * (MANY / size);
		}
		MPI_Allgatherv(data + places[rank], counts[rank], MPI_INT, sums, counts, places, MPI_INT,
			       comm);
		wrong += memcmp(sums, data, sizeof(int) * (MANY / size) * size) != 0;

		int peer = size - 1 - rank;
		memset(to, 0, sizeof(int) * MANY);
		memset(from, rank + 1 + again, sizeof(int) * MANY);
		if (peer != rank) {
			MPI_Irecv(to, 1, rows, peer, 5, comm, &requests[0]);
			MPI_Isend(from, 1, rows, peer, 5, comm, &requests[1]);
			MPI_Wait(&requests[0], &status);
			MPI_Wait(&requests[1], MPI_STATUS_IGNORE);
			int count = -1;
			MPI_Get_count(&status, rows, &count);
			wrong += count != 1;
			for (int i = 0; i < ROWS; i++)
				for (int j = 0; j < 64; j++) {
					wrong += to[i * 128 + j] != peer + 1 + again;
					wrong += to[i * 128 + 64 + j] != 0;
				}
		}
		int at = 0;
		MPI_Pack(from, 1, rows, sums, sizeof(int) * MANY, &at, comm);
		wrong += at != ROWS * 64;
		has(comm, keyval, rows, type_keyval);
		MPI_Barrier(comm);
	}
	MPI_Type_free(&rows);
	MPI_Comm_delete_attr(comm, keyval);
	wrong += deleted != 2;
	deleted = 0;
	MPI_Comm_free_keyval(&keyval);
	MPI_Type_free_keyval(&type_keyval);
	free(data), free(sums), free(from), free(to);
}

static MPI_Comm from_session(MPI_Session session, int number)
{
	char tag[32];
	MPI_Group group;
	MPI_Comm comm;
	snprintf(tag, sizeof(tag), "libcopy-%d", number);
	MPI_Group_from_session_pset(session, "mpi://WORLD", &group);
	MPI_Comm_create_from_group(group, tag, MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &comm);
	MPI_Group_free(&group);
	return comm;
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "only";
	int is_only = !strcmp(mode, "only"), is_after = !strcmp(mode, "after"), rank = -1;
	for (int number = 0; number < (argc > 2 ? atoi(argv[2]) : 1); number++) {
		MPI_Session session;
		if (!is_only) {
			MPI_Init(&argc, &argv);
			work(MPI_COMM_WORLD, 7);
		}
		MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &session);
		MPI_Comm comm = from_session(session, number), other;
		MPI_Comm_rank(comm, &rank);
		work(comm, number);
		if (is_after) {
			work(MPI_COMM_WORLD, 8);
			MPI_Finalize();
			work(comm, number + 1);
		}
		MPI_Comm_dup(comm, &other);
		work(other, number + 2);
		MPI_Comm_free(&other);
		MPI_Comm_free(&comm);
		MPI_Session_finalize(&session);
	}
	if (!is_only && !is_after) {
		work(MPI_COMM_WORLD, 9);
		MPI_Finalize();
	}
	printf("rank %d: %s, wrong %d\n", rank, mode, wrong);
	return wrong != 0;
}
#endif
