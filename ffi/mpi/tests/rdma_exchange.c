/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/* MPI_Alltoallw and MPI_Neighbor_alltoallw with types that are committed together, and nonblocking
 * sends among them; every byte is compared, gaps as well. Prints a line per rank, the same with any
 * library.
 *
 * usage: rdma_exchange ROUNDS SEED
 */
#include "rdma.h"
#include <stdlib.h>
#include <string.h>

enum {
	SPAN = 2 * SIZE, /* room for an element with its gaps */
	TYPES = 4,
	TAG = 2,
};

/* Blocks of `len' bytes every `stride'. */
struct type {
	MPI_Datatype type;
	int len, stride;
};

static struct type types[TYPES] = {{.len = 1024, .stride = 2048}, {.len = 4096, .stride = 5000}, {.len = 48, .stride = 96},
				   {.len = SIZE, .stride = SIZE}};
static int rank, ranks;

static uint64_t name(uint64_t round, int from, int to)
{
	return (round * 64 + from) * 64 + to;
}

/* What a part is: elements of a type, bytes of a header's number, or nothing. */
struct part {
	const struct type *type;
	int bytes;
};

/* The same at both ends but for the type. */
static struct part part_of(uint64_t round, int from, int to, int end)
{
	uint64_t state = name(round, from, to) * 2654435761u + 12345;
	struct part part = {.type = NULL, .bytes = 0};
	next(&state);
	switch (next(&state) % 8) {
	case 0:
		break;
	case 1:
		part.bytes = OWN;
		break;
	default:
		for (int i = 0; i <= end; i++)
			part.type = types + next(&state) % TYPES;
		part.bytes = SIZE;
	}
	return part;
}

static void describe(const struct part *part, int i, int *counts, int *places, MPI_Aint *addresses, MPI_Datatype *all)
{
	counts[i] = part->type ? 1 : part->bytes;
	places[i] = i * SPAN;
	addresses[i] = i * SPAN;
	all[i] = part->type ? part->type->type : MPI_BYTE;
}

static void fill(unsigned char *at, const struct part *part, uint64_t message)
{
	size_t n = 0;
	for (int i = 0; i < SPAN; i++) {
		int is_data = part->type ? i % part->type->stride < part->type->len && n < SIZE : i < part->bytes;
		at[i] = is_data ? stream(message, n++) : 0xee;
	}
}

static void check(const unsigned char *at, const struct part *part, uint64_t message)
{
	size_t n = 0;
	for (int i = 0; i < SPAN; i++) {
		int is_data = part->type ? i % part->type->stride < part->type->len && n < SIZE : i < part->bytes;
		wrong += at[i] != (is_data ? stream(message, n++) : 0x5a);
	}
}

/* Parts for and from these ranks of a communicator. */
static void exchange(uint64_t round, MPI_Comm comm, int n_from, const int *from, int n_to, const int *to, int is_neighbor)
{
	int most = n_from > n_to ? n_from : n_to;
	unsigned char *out = malloc((size_t)SPAN * (most + 1)), *in = malloc((size_t)SPAN * (most + 1));
	int counts[2][most + 1], places[2][most + 1];
	MPI_Aint addresses[2][most + 1];
	MPI_Datatype all[2][most + 1];
	struct part sent[most + 1], received[most + 1];
	for (int i = 0; i < n_to; i++) {
		sent[i] = to[i] < 0 ? (struct part){.bytes = 0} : part_of(round, rank, to[i], 0);
		describe(sent + i, i, counts[0], places[0], addresses[0], all[0]);
		fill(out + (size_t)SPAN * i, sent + i, name(round, rank, to[i] & 63));
	}
	for (int i = 0; i < n_from; i++) {
		received[i] = from[i] < 0 ? (struct part){.bytes = 0} : part_of(round, from[i], rank, 1);
		describe(received + i, i, counts[1], places[1], addresses[1], all[1]);
	}
	memset(in, 0x5a, (size_t)SPAN * (most + 1));
	if (is_neighbor)
		MPI_Neighbor_alltoallw(out, counts[0], addresses[0], all[0], in, counts[1], addresses[1], all[1], comm);
	else
		MPI_Alltoallw(out, counts[0], places[0], all[0], in, counts[1], places[1], all[1], comm);
	for (int i = 0; i < n_from; i++)
		check(in + (size_t)SPAN * i, received + i, name(round, from[i] & 63, rank));
	free(out);
	free(in);
}

static void among_all(uint64_t round)
{
	int all[ranks];
	for (int i = 0; i < ranks; i++)
		all[i] = i;
	exchange(round, MPI_COMM_WORLD, ranks, all, ranks, all, 0);
}

static void among_neighbours(uint64_t round, MPI_Comm cart)
{
	int both[2];
	MPI_Cart_shift(cart, 0, 1, both, both + 1);
	for (int i = 0; i < 2; i++)
		both[i] = both[i] == MPI_PROC_NULL ? -1 : both[i];
	exchange(round, cart, 2, both, 2, both, 1);
}

/* A message of the program's own under way with the tag that the library may use, to the rank
 * behind this one. */
static void beside(uint64_t round)
{
	int to = (rank + 1) % ranks, from = (rank + ranks - 1) % ranks, got;
	unsigned char *out = malloc(SPAN), *in = malloc(SPAN);
	struct part sent = {.type = types + round % TYPES, .bytes = SIZE}, received = {.type = types, .bytes = SIZE};
	MPI_Request request;
	MPI_Status status;
	uint64_t message = name(round, rank, to) ^ UINT64_C(1) << 50;
	fill(out, &sent, message);
	memset(in, 0x5a, SPAN);
	if (round % 3)
		MPI_Isend(out, 1, sent.type->type, to, TAG, MPI_COMM_WORLD, &request);
	else
		MPI_Issend(out, 1, sent.type->type, to, TAG, MPI_COMM_WORLD, &request);
	among_all(round);
	MPI_Probe(from, TAG, MPI_COMM_WORLD, &status);
	MPI_Get_count(&status, MPI_BYTE, &got);
	wrong_status += got != SIZE;
	MPI_Recv(in, 1, received.type->type, from, TAG, MPI_COMM_WORLD, &status);
	MPI_Get_count(&status, MPI_BYTE, &got);
	wrong_status += got != SIZE || status.MPI_SOURCE != from || status.MPI_TAG != TAG;
	MPI_Wait(&request, MPI_STATUS_IGNORE);
	check(in, &received, name(round, from, rank) ^ UINT64_C(1) << 50);
	free(out);
	free(in);
}

/* Halos as programs exchange them: receives, sends, and all of them are waited for. */
static void halo(uint64_t round)
{
	int both[2] = {(rank + 1) % ranks, (rank + ranks - 1) % ranks};
	unsigned char *out = malloc(2 * SPAN), *in = malloc(2 * SPAN);
	struct part sent = {.type = types + round % TYPES, .bytes = SIZE}, received = {.type = types + 1, .bytes = SIZE};
	MPI_Request requests[4];
	MPI_Status statuses[4];
	memset(in, 0x5a, 2 * SPAN);
	for (int i = 0; i < 2; i++) {
		fill(out + i * SPAN, &sent, name(round, rank, both[i]) + ((uint64_t)i << 40));
		MPI_Irecv(in + i * SPAN, 1, received.type->type, both[i], 10 + i, MPI_COMM_WORLD, requests + i);
	}
	for (int i = 0; i < 2; i++)
		MPI_Isend(out + i * SPAN, 1, sent.type->type, both[i], 11 - i, MPI_COMM_WORLD, requests + 2 + i);
	MPI_Waitall(4, requests, statuses);
	/* What comes from the rank behind was sent to that before this one. */
	for (int i = 0; i < 2; i++)
		check(in + i * SPAN, &received, name(round, both[i], rank) + ((uint64_t)(1 - i) << 40));
	free(out);
	free(in);
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 20, seed = argc > 2 ? atoi(argv[2]) : 1;
	MPI_Comm cart;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	/* No rank is a neighbour twice. */
	int periodic = ranks > 2;
	MPI_Cart_create(MPI_COMM_WORLD, 1, &ranks, &periodic, 0, &cart);
	for (int i = 0; i < TYPES; i++)
		commit_blocks(types[i].len, types[i].stride, SPAN, &types[i].type, i % 2 ? cart : MPI_COMM_WORLD);
	for (int i = 0; i < rounds; i++) {
		uint64_t round = (uint64_t)seed * 100000 + i;
		switch (i % 4) {
		case 0:
			among_all(round);
			break;
		case 1:
			among_neighbours(round, cart);
			break;
		case 2:
			beside(round);
			break;
		case 3:
			halo(round);
			break;
		}
	}
	print_result(rank, rounds);
	for (int i = 0; i < TYPES; i++)
		free_together(&types[i].type, i % 2 ? cart : MPI_COMM_WORLD);
	MPI_Comm_free(&cart);
	MPI_Finalize();
	return 0;
}
