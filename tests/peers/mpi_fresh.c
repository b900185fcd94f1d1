// SPDX-License-Identifier: MIT OR Apache-2.0

/*
 * Datatypes that are made for one use, and the same types kept: what `scripts/bench mpi` measures
 * with --ops fresh-types.
 *
 * usage: mpi_fresh [MILLISECONDS [BYTES,...]]
 *
 * Each case is measured for MILLISECONDS (100). Rank 0 prints a line of mpi_paired.h for each:
 *   fresh-pack      a type is made, committed, packed once and freed
 *   fresh-pingpong  half a round trip; each send and each receive has a type of its own
 *   kept-pack       a type that stays is packed once
 *   kept-pingpong   half a round trip with types that stay
 * Layouts: `column`, blocks of 8 bytes, every second one (MPI_Type_vector); `panel`, blocks of 256
 * bytes, every second one (MPI_Type_vector); `pieces`, blocks of 8 bytes at offsets that follow no
 * rule (MPI_Type_create_hindexed_block).
 */
#include "mpi_bench.h"
#include "mpi_paired.h"

enum { BLOCK = 8, WIDE = 256 };

enum layout { COLUMN, PANEL, PIECES };

static const char *const layouts[] = { "column", "panel", "pieces" };

/* What a case does over and over. */
struct work {
	/* Whether each use has a type of its own. */
	int fresh;
	/* Whether types are packed; otherwise they are sent and received. */
	int packs;
	enum layout layout;
	size_t bytes;
	/* Offsets of `PIECES`. */
	const MPI_Aint *places;
	unsigned char *from, *to, *packed;
	/* The type that stays. */
	MPI_Datatype kept;
};

static MPI_Datatype make(const struct work *work)
{
	MPI_Datatype type;
	int blocks = (int)(work->bytes / BLOCK);

	switch (work->layout) {
	case COLUMN:
		CALL(Type_vector, blocks, BLOCK, 2 * BLOCK, MPI_BYTE, &type);
		break;
	case PANEL:
		blocks = (int)(work->bytes / WIDE);
		CALL(Type_vector, blocks ? blocks : 1, blocks ? WIDE : (int)work->bytes, 2 * WIDE,
				MPI_BYTE, &type);
		break;
	default:
		CALL(Type_create_hindexed_block, blocks, BLOCK, work->places, MPI_BYTE, &type);
	}
	CALL(Type_commit, &type);
	return type;
}

static MPI_Datatype begin(const struct work *work)
{
	return work->fresh ? make(work) : work->kept;
}

static void end(const struct work *work, MPI_Datatype *type)
{
	if (work->fresh)
		CALL(Type_free, type);
}

static void send(const struct work *work, unsigned char *from)
{
	MPI_Datatype type = begin(work);

	CALL(Send, from, 1, type, 1 - rank, 1, MPI_COMM_WORLD);
	end(work, &type);
}

static void receive(const struct work *work)
{
	MPI_Datatype type = begin(work);

	CALL(Recv, work->to, 1, type, 1 - rank, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	end(work, &type);
}

static void pack(const struct work *work)
{
	MPI_Datatype type = begin(work);
	int position = 0;

	CALL(Pack, work->from, 1, type, work->packed, (int)work->bytes, &position, MPI_COMM_WORLD);
	end(work, &type);
}

static void once(const struct work *work)
{
	if (work->packs) {
		pack(work);
	} else if (rank == 0) {
		send(work, work->from);
		receive(work);
	} else {
		receive(work);
		send(work, work->from);
	}
}

/* What is measured now. */
static const struct work *current;

static double timed(int calls)
{
	double start = microseconds();

	for (int i = 0; i < calls; i++)
		once(current);
	return (microseconds() - start) / calls;
}

/* Where the bytes of a type are, one after the other. */
static size_t place(const struct work *work, size_t at)
{
	switch (work->layout) {
	case COLUMN:
		return at / BLOCK * 2 * BLOCK + at % BLOCK;
	case PANEL:
		return at / WIDE * 2 * WIDE + at % WIDE;
	default:
		return (size_t)work->places[at / BLOCK] + at % BLOCK;
	}
}

/* Whether the bytes of the type, and no others, come through. */
static int verified(const struct work *work, size_t span)
{
	unsigned char *expected = calloc(1, span);
	int same = 1;

	if (!expected)
		die("calloc");
	for (size_t i = 0; i < span; i++)
		work->from[i] = (unsigned char)(i * 37 + 11);
	memset(work->to, 0, span);
	memset(work->packed, 0, work->bytes);
	once(work);
	for (size_t at = 0; at < work->bytes; at++) {
		expected[place(work, at)] = work->from[place(work, at)];
		if (work->packs)
			same &= work->packed[at] == work->from[place(work, at)];
	}
	if (!work->packs)
		same = !memcmp(expected, work->to, span);
	free(expected);
	return same;
}

static void measure(struct work *work, const char *op, double budget, size_t span)
{
	char rest[32];
	int same = 1;

	if (!work->fresh)
		work->kept = make(work);
	current = work;
	intercepted = 1;
	/* Before a type has a layout, and after. */
	for (int i = 0; i < 40; i++)
		same &= verified(work, span);
	intercepted = 0;
	snprintf(rest, sizeof(rest), ",%s", layouts[work->layout]);
	paired(op, work->bytes, timed, budget, work->packs ? 1 : 2, same, rest);
	if (!work->fresh)
		MPI_Type_free(&work->kept);
}

int main(int argc, char **argv)
{
	const char *sizes = argc > 2 ? argv[2] : "128,512,2048,8192,32768,131072";
	double budget = argc > 1 ? atof(argv[1]) : 100;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	if (size != 2) {
		fprintf(stderr, "usage: mpirun -n 2 mpi_fresh [MILLISECONDS [BYTES,...]]\n");
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	for (char *next; *sizes; sizes = *next ? next + 1 : next) {
		struct work work = { .bytes = strtoul(sizes, &next, 10) / BLOCK * BLOCK };
		size_t blocks = work.bytes / BLOCK, span = 2 * work.bytes + 2 * WIDE;
		MPI_Aint *places = malloc((blocks + 1) * sizeof(*places));

		if (next == sizes || !work.bytes || !places)
			die(sizes);
		/* One in each of as many pairs, in an order that repeats nowhere. */
		for (size_t i = 0; i < blocks; i++)
			places[i] = (MPI_Aint)(2 * i + (i * i / 3 + i / 5) % 2) * BLOCK;
		work.places = places;
		work.from = memory(span, 0);
		work.to = memory(span, 1);
		work.packed = memory(work.bytes, 2);
		for (work.layout = COLUMN; work.layout <= PIECES; work.layout++) {
			work.fresh = work.packs = 1;
			measure(&work, "fresh-pack", budget, span);
			work.packs = 0;
			measure(&work, "fresh-pingpong", budget, span);
			work.fresh = 0;
			work.packs = 1;
			measure(&work, "kept-pack", budget, span);
			work.packs = 0;
			measure(&work, "kept-pingpong", budget, span);
		}
		free(places);
	}
	MPI_Finalize();
	return 0;
}
