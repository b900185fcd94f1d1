/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/* Random messages of types that are committed together, by the functions that send and receive,
 * between random ranks; every byte is compared, gaps as well. Prints a line per rank, the same with
 * any library. Two ranks or more.
 *
 * usage: rdma ROUNDS SEED [barrier]
 * With `barrier' receivers wait in MPI_Barrier before they complete their receives.
 */
#include "rdma.h"
#include <stdlib.h>
#include <string.h>

enum {
	SPAN = 4 * SIZE, /* room for an element with its gaps */
	COUNT = 4,
	TYPES = 6,
	KINDS = 9,
};

struct type {
	MPI_Datatype type;
	int n;
	int *lens, *places;
};

static struct type types[TYPES];
static int rank, ranks;
static unsigned char *from, *to;

/* `n' blocks of `len' bytes every `stride', if `len' is not 0, else of random lengths and
 * distances. */
static void make(struct type *type, int n, int len, int stride, uint64_t *state)
{
	MPI_Datatype inner;
	int place = 0, left = SIZE;
	type->n = n;
	type->lens = malloc(n * sizeof(int));
	type->places = malloc(n * sizeof(int));
	for (int i = 0; i < n; i++) {
		int mine = len ? len : 1 + (int)(next(state) % (2 * left / (n - i) - 1));
		if (i == n - 1 || mine > left - (n - i - 1))
			mine = left - (n - i - 1);
		type->lens[i] = mine;
		type->places[i] = place;
		left -= mine;
		place += len ? stride : mine + (int)(next(state) % 512);
	}
	MPI_Type_indexed(n, type->lens, type->places, MPI_BYTE, &inner);
	commit(inner, SPAN, &type->type, MPI_COMM_WORLD);
}

static void fill(const struct type *type, int count, uint64_t message)
{
	size_t at = 0;
	memset(from, 0xee, (size_t)SPAN * count);
	for (int c = 0; c < count; c++)
		for (int i = 0; i < type->n; i++)
			for (int j = 0; j < type->lens[i]; j++)
				from[(size_t)SPAN * c + type->places[i] + j] = stream(message, at++);
}

static void check(const struct type *type, int count, uint64_t message)
{
	size_t at = 0;
	for (int c = 0; c < COUNT; c++) {
		unsigned char *element = to + (size_t)SPAN * c;
		int end = 0;
		for (int i = 0; c < count && i < type->n; i++) {
			for (; end < type->places[i]; end++)
				wrong += element[end] != 0x5a;
			for (int j = 0; j < type->lens[i]; j++)
				wrong += element[end++] != stream(message, at++);
		}
		for (; end < SPAN; end++)
			wrong += element[end] != 0x5a;
	}
}

static void check_status(MPI_Status *status, int source, int tag, int bytes)
{
	int got;
	MPI_Get_count(status, MPI_BYTE, &got);
	wrong_status += got != bytes || status->MPI_SOURCE != source || status->MPI_TAG != tag;
}

static void run_round(uint64_t number, uint64_t *state, int barrier)
{
	int a = next(state) % ranks, b = (a + 1 + next(state) % (ranks - 1)) % ranks;
	const struct type *out = types + next(state) % TYPES, *in = types + next(state) % TYPES;
	int count = 1 + next(state) % COUNT, room = count + next(state) % (COUNT - count + 1);
	/* What is received from any source has a tag that no other round has. */
	int tag = next(state) % 7, kind = barrier ? KINDS : (int)(next(state) % KINDS);
	MPI_Comm world = MPI_COMM_WORLD;
	MPI_Status status;
	MPI_Request request, other;
	MPI_Message message;
	if (kind == 3)
		tag = 100 + number % 30000;
	/* What goes from b to a, where both send. */
	uint64_t back = number ^ UINT64_C(1) << 60;
	int both = kind == 4 || kind == 5;

	if (rank != a && rank != b) {
		if (barrier)
			MPI_Barrier(world);
		return;
	}
	int peer = rank == a ? b : a, got = count * SIZE;
	if (rank == a || both)
		fill(out, count, rank == a ? number : back);
	if (rank == b || both)
		memset(to, 0x5a, (size_t)SPAN * COUNT);
	switch (kind) {
	case 4:
		MPI_Sendrecv(from, count, out->type, peer, tag, to, room, in->type, peer, tag, world, &status);
		break;
	case 5:
		MPI_Irecv(to, room, in->type, peer, tag, world, &request);
		MPI_Send(from, count, out->type, peer, tag, world);
		MPI_Wait(&request, &status);
		break;
	}
	if (rank == a && !both) {
		static unsigned char own[OWN];
		switch (kind) {
		case 1:
			MPI_Ssend(from, count, out->type, b, tag, world);
			break;
		case 6:
			MPI_Isend(from, count, out->type, b, tag, world, &request);
			MPI_Wait(&request, MPI_STATUS_IGNORE);
			break;
		case 7:
			/* A message as long as a header, and another tag, which no such message has
			 * had. */
			memset(own, number, sizeof(own));
			MPI_Send(own, OWN, MPI_BYTE, b, 10 + tag, world);
			MPI_Send(from, count, out->type, b, 10 + tag, world);
			break;
		default:
			MPI_Send(from, count, out->type, b, tag, world);
		}
	}
	if (rank == b && !both) {
		static unsigned char own[OWN];
		switch (kind) {
		case 1:
			MPI_Irecv(to, room, in->type, a, tag, world, &request);
			MPI_Wait(&request, &status);
			break;
		case 2:
			MPI_Probe(a, tag, world, &status);
			check_status(&status, a, tag, got);
			MPI_Recv(to, room, in->type, a, tag, world, &status);
			break;
		case 3:
			MPI_Mprobe(MPI_ANY_SOURCE, tag, world, &message, &status);
			check_status(&status, a, tag, got);
			MPI_Mrecv(to, room, in->type, &message, &status);
			break;
		case 7:
			MPI_Probe(a, 10 + tag, world, &status);
			check_status(&status, a, 10 + tag, OWN);
			MPI_Recv(own, OWN, MPI_BYTE, a, 10 + tag, world, &status);
			check_status(&status, a, 10 + tag, OWN);
			for (int i = 0; i < OWN; i++)
				wrong += own[i] != (unsigned char)number;
			MPI_Probe(a, 10 + tag, world, &status);
			check_status(&status, a, 10 + tag, got);
			MPI_Recv(to, room, in->type, a, 10 + tag, world, &status);
			tag += 10;
			break;
		case 8:
			MPI_Recv_init(to, room, in->type, a, MPI_ANY_TAG, world, &request);
			MPI_Start(&request);
			for (int done = 0; !done;)
				MPI_Test(&request, &done, &status);
			MPI_Request_free(&request);
			break;
		case KINDS:
			MPI_Irecv(to, room, in->type, a, tag, world, &other);
			MPI_Barrier(world);
			MPI_Wait(&other, &status);
			break;
		default:
			MPI_Recv(to, room, in->type, a, tag, world, &status);
		}
	}
	if (rank == a && kind == KINDS)
		MPI_Barrier(world);
	if (rank == b || both) {
		check_status(&status, peer, tag, got);
		check(in, count, rank == b ? number : back);
	}
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 100;
	uint64_t state = argc > 2 ? atoi(argv[2]) : 1;
	int barrier = argc > 3 && strcmp(argv[3], "barrier") == 0;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	make(types + 0, 60, 1024, 3000, &state);
	make(types + 1, 15, 4096, 5000, &state);
	make(types + 2, 1280, 48, 100, &state);
	make(types + 3, 1, SIZE, 0, &state);
	make(types + 4, 40, 0, 0, &state);
	make(types + 5, 300, 0, 0, &state);
	from = malloc((size_t)SPAN * COUNT);
	to = malloc((size_t)SPAN * COUNT);
	for (int i = 0; i < rounds; i++)
		run_round(i + 1, &state, barrier);
	print_result(rank, rounds);
	for (int i = 0; i < TYPES; i++) {
		free_together(&types[i].type, MPI_COMM_WORLD);
		free(types[i].lens);
		free(types[i].places);
	}
	free(from);
	free(to);
	MPI_Finalize();
	return 0;
}
