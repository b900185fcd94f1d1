// SPDX-License-Identifier: MIT OR Apache-2.0

/* Datatypes that are used a few times: once and freed, as often as earns them a layout, freed while
 * a receive is under way, with handles that come back as another type's, and by several threads.
 * Prints what arrived, gaps included. Two ranks.
 *
 * usage: fresh [once|often|threads]
 *
 * once: every type is used by one call; often: few types by many (both print nothing). threads:
 * several at once, if the library lets them.
 */
#include "virtual_clock.h"

#include <mpi.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>

#include "checksum.h"

enum { SPAN = 1 << 19, SHAPES = 4, THREADS = 3 };

static int rank;

struct ends {
	MPI_Comm comm;
	unsigned char *from, *to;
};

static void fill(unsigned char *data, size_t length, uint64_t seed)
{
	uint64_t word = seed * 0x9e3779b97f4a7c15u + 1;
	for (size_t i = 0; i + 8 <= length; i += 8) {
		word = word * 6364136223846793005u + 1442695040888963407u;
		memcpy(data + i, &word, 8);
	}
}

/* `doubles` doubles, laid out in one of several ways, which take at most 24 bytes for each. */
static MPI_Datatype shape(int which, int doubles)
{
	MPI_Datatype type;
	if (which == 0) {
		MPI_Type_vector(doubles, 1, 2, MPI_DOUBLE, &type);
	} else if (which == 1) {
		MPI_Type_vector(doubles / 4, 4, 9, MPI_DOUBLE, &type);
	} else if (which == 2) {
		int *places = malloc(doubles * sizeof(int));
		for (int i = 0; i < doubles; i++)
			places[i] = 2 * (doubles - i) + i % 2;
		MPI_Type_create_indexed_block(doubles, 1, places, MPI_DOUBLE, &type);
		free(places);
	} else {
		int lengths[2] = { doubles / 2, doubles - doubles / 2 };
		MPI_Aint places[2] = { 8 * (doubles + 11), 16 };
		MPI_Datatype types[2] = { MPI_DOUBLE, MPI_DOUBLE };
		MPI_Type_create_struct(2, lengths, places, types, &type);
	}
	MPI_Type_commit(&type);
	return type;
}

static void show(const char *what, int doubles, int which, int i, unsigned char *data, MPI_Status *status)
{
	int bytes = -1;
	if (status)
		MPI_Get_count(status, MPI_BYTE, &bytes);
	printf("rank %d %s %d of shape %d, use %d: %016llx, %d bytes\n", rank, what, doubles, which, i,
	       (unsigned long long)hash(data, 24 * doubles + 256), bytes);
}

/* One use of a type on each side, in one of several ways; whether it was freed. */
static int use(struct ends *ends, int way, MPI_Datatype *out, MPI_Datatype *in, MPI_Status *status)
{
	MPI_Request requests[2];
	MPI_Status both[2];
	MPI_Message message;
	int peer = 1 - rank;
	MPI_Comm comm = ends->comm;
	switch (way) {
	case 0:
		if (rank == 0) {
			MPI_Send(ends->from, 1, *out, peer, way, comm);
			MPI_Recv(ends->to, 1, *in, peer, way, comm, status);
		} else {
			MPI_Recv(ends->to, 1, *in, peer, way, comm, status);
			MPI_Send(ends->from, 1, *out, peer, way, comm);
		}
		return 0;
	case 1:
		MPI_Sendrecv(ends->from, 1, *out, peer, way, ends->to, 1, *in, peer, way, comm, status);
		return 0;
	case 2:
		MPI_Irecv(ends->to, 1, *in, peer, way, comm, requests);
		MPI_Isend(ends->from, 1, *out, peer, way, comm, requests + 1);
		/* A type may go while it is used (MPI 4.1, section 5.1.9), and another one may get
		 * its handle. */
		MPI_Type_free(in);
		MPI_Type_free(out);
		*in = shape(1, 8);
		*out = shape(2, 8);
		MPI_Waitall(2, requests, both);
		*status = both[0];
		MPI_Type_free(in);
		MPI_Type_free(out);
		return 1;
	case 3:
		MPI_Irecv(ends->to, 1, *in, MPI_ANY_SOURCE, way, comm, requests);
		MPI_Ssend(ends->from, 1, *out, peer, way, comm);
		MPI_Wait(requests, status);
		return 0;
	default:
		MPI_Isend(ends->from, 1, *out, peer, way, comm, requests);
		MPI_Mprobe(peer, way, comm, &message, status);
		MPI_Mrecv(ends->to, 1, *in, &message, status);
		MPI_Wait(requests, MPI_STATUS_IGNORE);
		return 0;
	}
}

enum { WAYS = 5 };

static const int sizes[] = { 20, 64, 500, 512, 640, 2500, 20000 };
enum { SIZES = sizeof(sizes) / sizeof(*sizes) };

/* Types that stay, which earn a layout at some time; each way and each side by itself. */
static void kept(struct ends *ends)
{
	MPI_Status status;
	for (int s = 0; s < SIZES; s++) {
		for (int which = 0; which < SHAPES; which++) {
			int times = sizes[s] > 10000 ? 8 : 24;
			MPI_Datatype out = shape((which + rank) % SHAPES, sizes[s]);
			MPI_Datatype in = shape(which, sizes[s]);
			for (int i = 0; i < times; i++) {
				int way = i % WAYS == 2 ? 0 : i % WAYS;
				fill(ends->from, SPAN, 100 * s + i + rank);
				memset(ends->to, 7, 24 * sizes[s] + 256);
				use(ends, way, &out, &in, &status);
				show("kept", sizes[s], which, i, ends->to, &status);
			}
			MPI_Type_free(&out);
			MPI_Type_free(&in);
		}
	}
}

/* Types for one use on one side, or on both: what a sender keeps is received by what nobody
 * knows. */
static void mixed(struct ends *ends)
{
	MPI_Status status;
	for (int s = 0; s < SIZES; s++) {
		MPI_Datatype stays = shape(0, sizes[s]);
		/* Has a layout from now on. */
		for (int i = 0; i < 60; i++)
			use(ends, i % 2, &stays, &stays, &status);
		for (int i = 0; i < 5 * WAYS; i++) {
			int which = i % SHAPES, way = i % WAYS, sends = i / WAYS % 3;
			MPI_Datatype out = shape((which + 1) % SHAPES, sizes[s]);
			MPI_Datatype in = shape(which, sizes[s]);
			/* Both sides, the sender of rank 0, the receivers. */
			MPI_Datatype *from = sends == rank && way != 2 ? &stays : &out;
			MPI_Datatype *to = sends == 2 && way != 2 && rank ? &stays : &in;
			fill(ends->from, SPAN, 1000 * s + i + rank);
			memset(ends->to, 9, 24 * sizes[s] + 256);
			if (way == 2) {
				/* The sender's type stays: it sends headers if it is worth that. */
				MPI_Datatype again;
				MPI_Type_dup(stays, &again);
				for (int use_of_it = 0; use_of_it < 3; use_of_it++)
					MPI_Sendrecv(ends->from, 1, again, 1 - rank, 9, ends->to, 1, again,
						     1 - rank, 9, ends->comm, &status);
				MPI_Type_free(&again);
				memset(ends->to, 9, 24 * sizes[s] + 256);
				MPI_Request request;
				MPI_Irecv(ends->to, 1, in, 1 - rank, 8, ends->comm, &request);
				MPI_Type_free(&in);
				in = shape((which + 2) % SHAPES, 16);
				MPI_Send(ends->from, 1, stays, 1 - rank, 8, ends->comm);
				MPI_Wait(&request, &status);
			} else {
				use(ends, way, from, to, &status);
			}
			show("mixed", sizes[s], which, i, ends->to, &status);
			MPI_Type_free(&out);
			MPI_Type_free(&in);
		}
		/* Freed while both sides still receive. */
		MPI_Datatype out = shape(1, sizes[s]), in = shape(2, sizes[s]);
		memset(ends->to, 9, 24 * sizes[s] + 256);
		use(ends, 2, &out, &in, &status);
		show("freed", sizes[s], 2, 0, ends->to, &status);
		MPI_Type_free(&stays);
	}
}

/* A type that has a layout goes, and another one of the same length gets its handle. */
static void again(struct ends *ends)
{
	MPI_Status status;
	static unsigned char packed[8 * 2500];
	int returned = 0;
	for (int s = 0; s < SIZES - 1; s++) {
		MPI_Datatype first = shape(0, sizes[s]), second;
		for (int i = 0; i < 200; i++) {
			int position = 0;
			MPI_Pack(ends->from, 1, first, packed, 8 * sizes[s], &position, ends->comm);
		}
		for (int i = 0; i < 60; i++)
			use(ends, i % 2, &first, &first, &status);
		MPI_Datatype before = first;
		MPI_Type_free(&first);
		for (int i = 0; i < 6; i++) {
			int position = 0, which = 1 + i % 3;
			second = shape(which, sizes[s]);
			returned += second == before;
			fill(ends->from, SPAN, 77 * s + i + rank);
			memset(ends->to, 3, 24 * sizes[s] + 256);
			if (i % 2) {
				MPI_Pack(ends->from, 1, second, packed, 8 * sizes[s], &position, ends->comm);
				position = 0;
				MPI_Unpack(packed, 8 * sizes[s], &position, ends->to, 1, second, ends->comm);
				show("packed", sizes[s], which, i, ends->to, NULL);
			} else {
				use(ends, i / 2 % 2, &second, &second, &status);
				show("again", sizes[s], which, i, ends->to, &status);
			}
			MPI_Type_free(&second);
		}
	}
	fprintf(stderr, "%d handles came back\n", returned);
}

struct thread {
	pthread_t thread;
	struct ends ends;
	uint64_t hash;
	int number;
};

static void *run(void *argument)
{
	struct thread *mine = argument;
	MPI_Status status;
	MPI_Datatype kept = shape(0, 640);
	for (int i = 0; i < 120; i++) {
		int doubles = sizes[i % (SIZES - 1)], which = (i + mine->number) % SHAPES, freed = 0;
		int way = i % 3 == 2 ? 3 : i % 2;
		MPI_Datatype out = shape((which + rank) % SHAPES, doubles), in = shape(which, doubles);
		fill(mine->ends.from, 24 * doubles + 256, 50 * i + rank + mine->number);
		memset(mine->ends.to, 5, 24 * doubles + 256);
		if (i % 4 == 3)
			use(&mine->ends, way, &kept, &kept, &status);
		else
			freed = use(&mine->ends, i % 8 == 6 ? 2 : way, &out, &in, &status);
		mine->hash = mine->hash * 31 + hash(mine->ends.to, 24 * doubles + 256);
		if (!freed) {
			MPI_Type_free(&out);
			MPI_Type_free(&in);
		}
	}
	MPI_Type_free(&kept);
	return NULL;
}

static void threads(void)
{
	static struct thread all[THREADS];
	for (int i = 0; i < THREADS; i++) {
		all[i].number = i;
		all[i].ends.from = malloc(SPAN);
		all[i].ends.to = malloc(SPAN);
		MPI_Comm_dup(MPI_COMM_WORLD, &all[i].ends.comm);
	}
	for (int i = 0; i < THREADS; i++)
		pthread_create(&all[i].thread, NULL, run, &all[i]);
	for (int i = 0; i < THREADS; i++) {
		pthread_join(all[i].thread, NULL);
		printf("rank %d thread %d: %016llx\n", rank, i, (unsigned long long)all[i].hash);
		MPI_Comm_free(&all[i].ends.comm);
	}
}

/* Types that are used by one call each, or few types that are used by many. */
static void count_uses(struct ends *ends, int types, int uses)
{
	MPI_Status status;
	static unsigned char packed[8 * 640];
	for (int t = 0; t < types; t++) {
		MPI_Datatype out = shape(0, 640), in = shape(t % SHAPES, 640), other = shape(1, 640);
		for (int i = 0; i < uses; i++) {
			int position = 0;
			MPI_Pack(ends->from, 1, other, packed, sizeof(packed), &position, ends->comm);
			if (rank == 0)
				MPI_Send(ends->from, 1, out, 1, 1, ends->comm);
			else
				MPI_Recv(ends->to, 1, in, 0, 1, ends->comm, &status);
		}
		MPI_Type_free(&out);
		MPI_Type_free(&in);
		MPI_Type_free(&other);
	}
}

int main(int argc, char **argv)
{
	int provided;
	struct ends ends = { .from = malloc(SPAN), .to = malloc(SPAN) };
	int wants = argc > 1 && !strcmp(argv[1], "threads");
	MPI_Init_thread(&argc, &argv, wants ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &provided);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	ends.comm = MPI_COMM_WORLD;
	fill(ends.from, SPAN, 1);
	if (wants && provided == MPI_THREAD_MULTIPLE) {
		threads();
	} else if (argc > 1 && !strcmp(argv[1], "once")) {
		count_uses(&ends, 2000, 1);
	} else if (argc > 1 && !strcmp(argv[1], "often")) {
		count_uses(&ends, 4, 4000);
	} else if (argc == 1) {
		kept(&ends);
		mixed(&ends);
		again(&ends);
	}
	free(ends.from);
	free(ends.to);
	MPI_Finalize();
	return 0;
}
