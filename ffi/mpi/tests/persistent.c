// SPDX-License-Identifier: MIT OR Apache-2.0

/* Random persistent collectives on several communicators, with persistent sends and receives and,
 * where the library has them, partitioned ones: started again and again, one by one or by
 * MPI_Startall, between blocking and nonblocking collectives, completed by all functions, and
 * freed. Prints a checksum of every buffer. Two runs with the same arguments print the same,
 * whether libcopy or the MPI library moves the bytes.
 *
 * usage: persistent ROUNDS SEED MOST [own|blocking]     MOST: bytes of the largest part of one rank
 *
 * own: each rank starts them in an order of its own, as the standard allows; MPICH 4.0 and Open MPI
 * 4.1 do not. blocking: calls blocking collectives where it would start persistent ones, to
 * compare.
 */
#include "completion.h"
#include "persistent.h"

/* MPICH 4.0.2 does not find persistent collectives complete that are inactive: its MPI_Wait hangs
 * with one. With each start after the first one its MPI_Gather_init leaves out the root's own part,
 * so plain runs cannot be compared. MPICH 5.0.2 does neither; its MPI_Testall fails with inactive
 * ones. With either, this program completes active requests only. */
#ifdef MPICH_NUMVERSION
#define ANY_MPICH 1
#else
#define ANY_MPICH 0
#endif

enum { OPS = 7, COLLECTIVES = 7, ALL = COLLECTIVES + 4, EPOCH = 8, COMMS = 3, SENT = 40000 };

static const char *const names[OPS] = { "bcast",    "gather", "scatter",   "allgather",
					"alltoall", "reduce", "allreduce" };

struct collective {
	int op, doubles, root, in_place, gaps, n, me;
	MPI_Comm comm;
	MPI_Datatype types[2];
	double *send, *recv;
	size_t room;
};

static int rank, size, blocking;
static struct collective all[COLLECTIVES];
static MPI_Request requests[ALL];
static double *out, *in, *parts;

/* Makes a request, or does it at once. */
static void init(struct collective *c, MPI_Request *r)
{
	int sent, received, is_root = c->me == c->root;
	MPI_Datatype from = doubles_of(c->doubles, c->gaps ? SPACED : DENSE, &sent);
	MPI_Datatype to = doubles_of(c->doubles, (c->gaps + c->me) % 2 ? SPACED : DENSE, &received);
	void *s = c->in_place ? MPI_IN_PLACE : (void *)c->send;
	MPI_Info none = MPI_INFO_NULL;
#define DO(name, ...) (blocking ? MPI_##name(__VA_ARGS__) : INIT(name)(__VA_ARGS__, none, r))
	switch (c->op) {
	case 0:
		DO(Bcast, c->recv, received, to, c->root, c->comm);
		break;
	case 1:
		DO(Gather, is_root ? s : c->send, sent, from, c->recv, received, to, c->root, c->comm);
		break;
	case 2:
		DO(Scatter, c->send, sent, from, is_root && c->in_place ? MPI_IN_PLACE : (void *)c->recv, received, to,
		   c->root, c->comm);
		break;
	case 3:
		DO(Allgather, s, sent, from, c->recv, received, to, c->comm);
		break;
	case 4:
		DO(Alltoall, c->send, sent, from, c->recv, received, to, c->comm);
		break;
	case 5:
		DO(Reduce, is_root ? s : c->send, c->recv, c->doubles, MPI_DOUBLE, MPI_SUM, c->root, c->comm);
		break;
	default:
		DO(Allreduce, s, c->recv, c->doubles, MPI_DOUBLE, MPI_MAX, c->comm);
	}
	/* Types may go before the requests that were made with them, but Open MPI 4.1 needs
	 * them. */
	c->types[0] = from, c->types[1] = to;
	for (int i = 0; i < 2 && (blocking || !NEEDS_TYPES); i++)
		MPI_Type_free(&c->types[i]);
}

static void epoch_begins(MPI_Comm *comms, uint64_t most)
{
	for (int k = 0; k < COLLECTIVES; k++) {
		struct collective *c = &all[k];
		c->op = (int)next(OPS), c->comm = comms[next(COMMS)];
		MPI_Comm_rank(c->comm, &c->me);
		MPI_Comm_size(c->comm, &c->n);
		c->root = (int)next(c->n), c->in_place = next(3) == 0;
		/* Some are small. */
		c->doubles = 1 + (int)next((next(4) ? most : 512) / 8);
		c->gaps = (int)next(2);
		if (c->op == 4)
			c->doubles = 1 + c->doubles / c->n, c->in_place = 0;
		/* MPICH 4.0 follows MPI_IN_PLACE as an address where another root than 0 passes
		 * it. */
		if (c->op == 5 && c->root != 0)
			c->in_place = 0;
		c->room = 16 * (size_t)c->doubles * c->n;
		c->send = malloc(c->room), c->recv = malloc(c->room);
		requests[k] = MPI_REQUEST_NULL;
		if (!blocking)
			init(c, &requests[k]);
	}
	int to = (rank + 1) % size, from = (rank + size - 1) % size;
	MPI_Send_init(out, SENT, MPI_DOUBLE, to, 1, MPI_COMM_WORLD, &requests[COLLECTIVES]);
	MPI_Recv_init(in, SENT, MPI_DOUBLE, from, 1, MPI_COMM_WORLD, &requests[COLLECTIVES + 1]);
	requests[COLLECTIVES + 2] = requests[COLLECTIVES + 3] = MPI_REQUEST_NULL;
#if MPI_VERSION >= 4
	MPI_Psend_init(out, 1, SENT, MPI_DOUBLE, to, 2, MPI_COMM_WORLD, MPI_INFO_NULL, &requests[COLLECTIVES + 2]);
	MPI_Precv_init(parts, 1, SENT, MPI_DOUBLE, from, 2, MPI_COMM_WORLD, MPI_INFO_NULL, &requests[COLLECTIVES + 3]);
#endif
}

static void tell(int round, int k)
{
	struct collective *c = &all[k];
	char what[128];
	snprintf(what, sizeof what, "%d.%d %s bytes %d root %d in place %d", round, k, names[c->op], 8 * c->doubles, c->root,
		 c->in_place);
	print_checksums(what, c->send, c->recv, c->room);
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	int rounds = atoi(argv[1]), own = argc > 4 && !strcmp(argv[4], "own");
	blocking = argc > 4 && !own;
	uint64_t seed = strtoull(argv[2], NULL, 10), most = strtoull(argv[3], NULL, 10);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	if (size > MOST_RANKS)
		MPI_Abort(MPI_COMM_WORLD, 2);
	MPI_Comm comms[COMMS];
	communicators(comms, size < 4 ? 0 : rank % 2);
	out = malloc(8 * SENT), in = malloc(8 * SENT), parts = malloc(8 * SENT);
	for (int round = 0; round < rounds; round++) {
		/* What all ranks decide alike. */
		state = seed + 1000003u * (round + 1);
		for (int i = 0; i < 5; i++)
			next(2);
		if (round % EPOCH == 0)
			epoch_begins(comms, most);
		uint64_t chosen = next(1 << ALL) | next(1 << ALL), between = next(4);
		if (requests[COLLECTIVES + 2] == MPI_REQUEST_NULL)
			chosen &= (1 << (COLLECTIVES + 2)) - 1;
		/* Both sides, or none. */
		for (int i = COLLECTIVES; i < ALL; i += 2)
			chosen = (chosen & ~(2ull << i)) | (chosen >> i & 1) << (i + 1);
		for (int k = 0; k < COLLECTIVES; k++)
			for (size_t i = 0; i < all[k].room / 8; i++) {
				all[k].send[i] = (double)((i * 31 + round * 7 + rank * 3 + k) % 1001);
				all[k].recv[i] = (double)((i * 17 + round * 5 + rank + k) % 997);
			}
		for (int i = 0; i < SENT; i++)
			out[i] = rank * 1000.0 + round + i, in[i] = parts[i] = -1;
		int order[ALL], active = 0, first = (own * rank * 5 + round) % ALL;
		for (int i = 0; i < ALL; i++) {
			int k = (first + i) % ALL;
			if (k < COLLECTIVES && blocking && chosen >> k & 1)
				init(&all[k], NULL);
			else if (chosen >> k & 1)
				order[active++] = k;
		}
		int token = 0;
		MPI_Request other;
		if (between == 0)
			MPI_Ibarrier(MPI_COMM_WORLD, &other);
		MPI_Request some[ALL];
		for (int i = 0; i < active; i++)
			some[i] = requests[order[i]];
		if ((rank + round) % 2) {
			MPI_Startall(active, some);
		} else {
			for (int i = 0; i < active; i++)
				MPI_Start(&some[i]);
		}
#if MPI_VERSION >= 4
		if (chosen >> (COLLECTIVES + 2) & 1)
			MPI_Pready(0, requests[COLLECTIVES + 2]);
#endif
		if (between == 0)
			MPI_Wait(&other, MPI_STATUS_IGNORE);
		else if (between == 1)
			MPI_Bcast(&token, 1, MPI_INT, 0, MPI_COMM_WORLD);
		int way = (int)((seed + round * 17 + rank * 5) % 8);
		if (ANY_MPICH)
			complete(active, some, active, way % 3 ? way % 2 : 7);
		else if (round % 3)
			complete(active, some, active, way);
		else
			complete(ALL, requests, active, way);
		/* They stay, inactive. */
		for (int i = 0; i < active; i++)
			if (some[i] != requests[order[i]])
				MPI_Abort(MPI_COMM_WORLD, 5);
		for (int i = 0; i < SENT; i++)
			if ((chosen >> COLLECTIVES & 1 && in[i] != (rank + size - 1) % size * 1000.0 + round + i) ||
			    (chosen >> (COLLECTIVES + 2) & 1 && parts[i] != (rank + size - 1) % size * 1000.0 + round + i))
				MPI_Abort(MPI_COMM_WORLD, 6);
		for (int k = 0; k < COLLECTIVES; k++)
			tell(round, k);
		if (round % EPOCH == EPOCH - 1 || round == rounds - 1) {
			for (int i = 0; i < ALL; i++)
				if (requests[i] != MPI_REQUEST_NULL)
					MPI_Request_free(&requests[i]);
			for (int k = 0; k < COLLECTIVES; k++)
				free(all[k].send), free(all[k].recv);
			for (int k = 0; k < 2 * COLLECTIVES && NEEDS_TYPES && !blocking; k++)
				MPI_Type_free(&all[k / 2].types[k % 2]);
		}
	}
	free(out), free(in), free(parts);
	MPI_Comm_free(&comms[1]);
	MPI_Comm_free(&comms[2]);
	MPI_Finalize();
	return 0;
}
