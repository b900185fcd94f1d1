// SPDX-License-Identifier: MIT OR Apache-2.0

/* What random_calls.c calls with: random numbers, datatypes, buffers, communicators, and the
 * log. */
#include <mpi.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "persistent.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))
#define CHECK(condition)                                                                                              \
	do {                                                                                                          \
		if (!(condition)) {                                                                                   \
			fprintf(stderr, "random_calls, line %d: not %s\n", __LINE__, #condition);                      \
			MPI_Abort(MPI_COMM_WORLD, 3);                                                                 \
		}                                                                                                     \
	} while (0)

/* Whose library it is, and its major version. */
#ifdef OPEN_MPI
enum { OMPI_MAJOR = OMPI_MAJOR_VERSION, MPICH_MAJOR = 0 };
#elif defined(MPICH_NUMVERSION)
enum { OMPI_MAJOR = 0, MPICH_MAJOR = MPICH_NUMVERSION / 10000000 };
#else
/* The standard ABI: this one is MPICH's. */
enum { OMPI_MAJOR = 0, MPICH_MAJOR = 5 };
#endif
/* Open MPI 5.0 says that it is MPI 3.1. */
#if MPI_VERSION >= 4 || (defined(OPEN_MPI) && OMPI_MAJOR_VERSION >= 5)
#define HAS_MPI4 1
#else
#define HAS_MPI4 0
#endif

enum { MOST_RANKS = 8, SIGNATURES = 10, KEPT = 2, EPOCH = 192, GUARD = 64 };

/* Numbers that are the same everywhere (splitmix64). */
struct rng {
	uint64_t state;
};

static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

static uint64_t draw(struct rng *r)
{
	return mix(r->state += 0x9e3779b97f4a7c15u);
}

static int below(struct rng *r, uint64_t n)
{
	return (int)((draw(r) >> 11) % n);
}

static struct rng seeded(uint64_t a, uint64_t b, uint64_t c)
{
	return (struct rng){ mix(mix(mix(a) + b) + c) };
}

/* Between 1 and `most`, each order of magnitude as often as the others. */
static long spread(struct rng *r, long most)
{
	int bits = 0;
	while (most >> bits)
		bits++;
	long top = 1L << below(r, bits), value = top + (long)(draw(r) >> 1) % top;
	return value < most ? value : most;
}

static uint64_t digest(uint64_t sum, const void *data, size_t length)
{
	const unsigned char *bytes = data;
	uint64_t word;
	size_t i = 0;
	for (; i + 8 <= length; i += 8) {
		memcpy(&word, bytes + i, 8);
		sum = (sum ^ word) * 0x9ddfea08eb382d69u;
		sum ^= sum >> 29;
	}
	for (; i < length; i++)
		sum = (sum ^ bytes[i]) * 1099511628211u;
	return sum;
}

/* A signature's element: predefined, or a struct, which each side places as it likes. */
enum atom { BYTE, SHORT, INT, FLOAT, DOUBLE, INT64, LONG_DOUBLE, COMPLEX, PAIR, MIXED, ATOMS };
static const int atom_bytes[ATOMS] = { 1, 2, 4, 4, 8, 8, 16, 16, 12, 13 };
/* What addresses are multiples of. Open MPI 5.0.11 moves complex numbers that are not at multiples
 * of their size to other places. */
static const int atom_align[ATOMS] = { 1, 2, 4, 4, 8, 8, 16, OMPI_MAJOR >= 5 ? 16 : 8, 8, 8 };

/* Elements of `m` atoms. */
struct signature {
	enum atom atom;
	long m;
};

/* A committed type of `m` atoms, and where its bytes are. */
struct layout {
	MPI_Datatype type;
	MPI_Aint lower, extent, true_lower, true_extent;
	/* Elements of the type that are one unit of the signature, or `all` elements that are
	 * everything. */
	int per_unit, keep;
};

/* Some memory: `base` is what a call gets. */
struct buffer {
	unsigned char *raw, *base;
	size_t size;
	int mapped;
	enum atom atom;
};

/* A communicator, and what all ranks know of it. */
struct group {
	MPI_Comm comm;
	int inter, n, me, remote;
	/* Of all ranks of the world: the part that they are in, and their number there. */
	int part[MOST_RANKS], number[MOST_RANKS];
	/* Neighbours. */
	int graph, in_degree, out_degree, in[4 * MOST_RANKS], out[4 * MOST_RANKS];
};

enum { WORLD, HALVES, REVERSED, SHUFFLED, SUBSET, SELF, INTER, MERGED, GRID, GRAPH, GROUPS };
static const char *const group_names[GROUPS] = { "world", "halves", "reversed", "shuffled", "subset",
						 "self",  "inter",  "merged",	"grid",	    "graph" };

/* A thread's. */
struct context {
	int rank, size, thread, threads, step, loud;
	uint64_t seed;
	long most, calls;
	MPI_Comm world;
	struct group groups[GROUPS];
	struct signature signatures[SIGNATURES];
	struct layout kept[SIGNATURES][KEPT];
	FILE *log;
	char line[400];
	int at;
};

static void say(struct context *c, const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	c->at += vsnprintf(c->line + c->at, sizeof(c->line) - c->at, format, arguments);
	va_end(arguments);
	if (c->at >= (int)sizeof(c->line))
		c->at = sizeof(c->line) - 1;
}

/* Seconds that a rank may write no line; 0: any number. */
static unsigned silent;

static void end_line(struct context *c)
{
	alarm(silent);
	fprintf(c->log, "%d %s\n", c->step, c->line);
	if (c->loud)
		fflush(c->log);
	c->at = 0;
}

/* Datatypes. */

/* Whether structures have no empty members. */
static __thread int full_members;

static MPI_Datatype atom_type(struct rng *r, enum atom atom)
{
	MPI_Datatype predefined[] = { MPI_BYTE,	  MPI_SHORT,	   MPI_INT,		 MPI_FLOAT,	MPI_DOUBLE,
				      MPI_INT64_T, MPI_LONG_DOUBLE, MPI_C_DOUBLE_COMPLEX, MPI_DOUBLE_INT };
	MPI_Datatype type, inner;
	if (atom != MIXED) {
		MPI_Type_dup(predefined[atom], &type);
		return type;
	}
	int lengths[3] = { 1, 1, 1 };
	MPI_Aint places[3] = { 0, 4 * (1 + below(r, 3)), 16 };
	MPI_Datatype types[3] = { MPI_CHAR, MPI_INT, MPI_DOUBLE };
	if (below(r, 3) == 0)
		/* Not in the order of addresses. */
		places[0] = 24, places[1] = 32, places[2] = 8 * below(r, 2);
	MPI_Type_create_struct(3, lengths, places, types, &inner);
	MPI_Type_create_resized(inner, 0, 40, &type);
	MPI_Type_free(&inner);
	return type;
}

static MPI_Datatype tree(struct rng *r, enum atom atom, long n, int depth);

/* `outer` elements of a tree of `n / outer` atoms. */
static MPI_Datatype repeated(struct rng *r, enum atom atom, long n, int outer, int depth)
{
	MPI_Datatype inner = tree(r, atom, n / outer, depth + 1), type, other;
	MPI_Aint lower, extent;
	MPI_Aint true_lower, true_extent;
	MPI_Type_get_extent(inner, &lower, &extent);
	MPI_Type_get_true_extent(inner, &true_lower, &true_extent);
	if (extent < true_extent) {
		/* Open MPI gives a structure the bounds of a darray in it, so that its elements
		 * would overlap. */
		MPI_Datatype tight = inner;
		extent = (true_extent + 15) / 16 * 16;
		MPI_Type_create_resized(tight, lower, extent, &inner);
		MPI_Type_free(&tight);
	}
	int length = 1;
	for (int i = 0; i < 4; i++) {
		int factor = 1 + below(r, 8);
		if (outer % (length * factor) == 0)
			length *= factor;
	}
	int blocks = outer / length, gap = below(r, 3) ? below(r, 4) : 0;
	enum { MOST_BLOCKS = 4096 };
	static __thread int lengths[MOST_BLOCKS], places[MOST_BLOCKS];
	static __thread MPI_Aint far[MOST_BLOCKS];
	int kind = below(r, 12), align;
	/* Blocks of one length, or of several, in any order. */
	if ((kind >= 3 && kind <= 6) && blocks > MOST_BLOCKS)
		kind = 1;
	int is_even = kind == 5 || kind == 6, used = blocks;
	if (kind >= 3 && kind <= 6) {
		long at = below(r, 3);
		int left = outer;
		for (int i = 0; i < blocks; i++) {
			lengths[i] = is_even || i == blocks - 1 ? (is_even ? length : left) : below(r, left < 2 * length ? left + 1 : 2 * length);
			left -= lengths[i];
			places[i] = (int)at;
			at += lengths[i] + below(r, 3);
		}
		for (int i = 0; i < blocks && below(r, 2); i++) {
			int k = below(r, blocks), one = lengths[i], place = places[i];
			lengths[i] = lengths[k], places[i] = places[k];
			lengths[k] = one, places[k] = place;
		}
		for (int i = 0; i < blocks; i++)
			far[i] = places[i] * extent;
	}
	switch (kind) {
	case 0:
		MPI_Type_contiguous(outer, inner, &type);
		break;
	case 1:
		MPI_Type_vector(blocks, length, length + gap, inner, &type);
		break;
	case 2:
		MPI_Type_create_hvector(blocks, length, (length + gap) * extent + atom_align[atom] * below(r, 3), inner, &type);
		break;
	case 3:
		MPI_Type_indexed(used, lengths, places, inner, &type);
		break;
	case 4:
		MPI_Type_create_hindexed(used, lengths, far, inner, &type);
		break;
	case 5:
		MPI_Type_create_indexed_block(used, length, places, inner, &type);
		break;
	case 6:
		MPI_Type_create_hindexed_block(used, length, far, inner, &type);
		break;
	case 7:
	case 8: {
		/* A part of a matrix. */
		int parts[2] = { blocks, length }, starts[2] = { below(r, 3), below(r, 3) },
		    sizes[2] = { blocks + starts[0] + below(r, 3), length + starts[1] + below(r, 3) };
		int order = below(r, 2) ? MPI_ORDER_C : MPI_ORDER_FORTRAN;
		if (kind == 7 || blocks > 10000) {
			MPI_Type_create_subarray(2, sizes, parts, starts, order, inner, &type);
		} else {
			/* What this process has of a matrix that is dealt out in blocks, which is
			 * `blocks` rows of two. */
			int grid[2] = { 2, 1 }, deal[2] = { MPI_DISTRIBUTE_CYCLIC, MPI_DISTRIBUTE_NONE },
			    blocking[2] = { 1 + below(r, 2), MPI_DISTRIBUTE_DFLT_DARG },
			    whole[2] = { 2 * blocks, length };
			if (blocks % blocking[0])
				blocking[0] = 1;
			MPI_Type_create_darray(2, below(r, 2), 2, whole, deal, blocking, grid, order, inner, &type);
		}
		break;
	}
	case 9: {
		/* Downwards: further than a block is long, since Open MPI 4.1 takes the negative of
		 * that for its positive. */
		MPI_Type_create_hvector(blocks, length, -(length + 1 + gap) * extent, inner, &type);
		break;
	}
	case 10:
		MPI_Type_vector(blocks, length, length + gap, inner, &other);
		MPI_Type_get_extent(other, &lower, &extent);
		align = atom_align[atom] < 8 ? 8 : atom_align[atom];
		MPI_Type_create_resized(other, lower - align * below(r, 3), extent + 2 * align + align * below(r, 3), &type);
		MPI_Type_free(&other);
		break;
	default:
		MPI_Type_contiguous(outer, inner, &other);
		MPI_Type_dup(other, &type);
		MPI_Type_free(&other);
	}
	MPI_Type_free(&inner);
	return type;
}

/* A type of `n` atoms. */
static MPI_Datatype tree(struct rng *r, enum atom atom, long n, int depth)
{
	MPI_Datatype type, parts[3];
	if (n == 1 && (depth == 0 || below(r, 2) || depth > 3))
		return atom_type(r, atom);
	if (n == 0 || depth > 3 || below(r, 6) == 0) {
		MPI_Datatype inner = atom_type(r, atom);
		MPI_Type_contiguous((int)n, inner, &type);
		MPI_Type_free(&inner);
		return type;
	}
	if (n > 2 && below(r, 4) == 0) {
		/* Parts of different types, one behind the other. */
		int count = full_members ? 2 : 2 + below(r, 2), lengths[3] = { 1, 1, 1 };
		MPI_Aint places[3], at = 0, lower, extent;
		for (int i = 0; i < count; i++) {
			long share = i == count - 1 ? n : n / 3 + below(r, n / 4 + 1);
			n -= share;
			parts[i] = tree(r, atom, share, depth + 1);
			MPI_Type_get_true_extent(parts[i], &lower, &extent);
			at = (at + 15) / 16 * 16;
			places[i] = at - lower / 16 * 16 + 16;
			at = places[i] + lower + extent + 16 * below(r, 3);
		}
		MPI_Type_create_struct(count, lengths, places, parts, &type);
		for (int i = 0; i < count; i++)
			MPI_Type_free(&parts[i]);
		return type;
	}
	int outer = 1;
	for (int i = 0; i < 12 && outer < 20000; i++) {
		int factor = 1 + below(r, 16);
		if (n % ((long)outer * factor) == 0)
			outer *= factor;
	}
	if (outer == 1 && n < 20000)
		outer = (int)n;
	return repeated(r, atom, n, outer, depth);
}

static void measure(struct layout *l)
{
	MPI_Type_commit(&l->type);
	MPI_Type_get_extent(l->type, &l->lower, &l->extent);
	MPI_Type_get_true_extent(l->type, &l->true_lower, &l->true_extent);
}

/* A type of `n` atoms that does not reach much further than they are long. */
static struct layout fresh(struct rng *r, enum atom atom, long n)
{
	struct layout l = { .per_unit = 1 };
	MPI_Aint bytes = n * atom_bytes[atom], room = 6 * bytes + 4096;
	l.type = tree(r, atom, n, 0);
	measure(&l);
	if (l.extent > room || l.extent < l.true_extent || l.true_lower < -room || l.true_lower > room) {
		MPI_Type_free(&l.type);
		MPI_Datatype inner = atom_type(r, atom);
		MPI_Type_contiguous((int)n, inner, &l.type);
		MPI_Type_free(&inner);
		measure(&l);
	}
	return l;
}

/* `units` elements of a signature as this rank has them, in `*count` elements of a type: one that
 * is kept, one of its own for this call, or one for all units together unless `unit_wise`.
 */
static struct layout layout(struct context *c, struct rng *r, int s, long units, int unit_wise, int *count)
{
	const struct signature *signature = &c->signatures[s];
	int kind = below(r, 8);
	struct layout l;
	*count = (int)units;
	if (kind < 4) {
		l = c->kept[s][below(r, KEPT)];
		l.keep = 1;
	} else if (kind < 5 || (unit_wise && kind < 7)) {
		l = fresh(r, signature->atom, signature->m);
	} else if (kind < 7) {
		l = fresh(r, signature->atom, signature->m * units);
		*count = 1;
	} else {
		/* Atoms. */
		l = fresh(r, signature->atom, 1);
		l.per_unit = (int)signature->m;
		*count = (int)(units * signature->m);
	}
	return l;
}

static void drop(struct layout *l)
{
	if (!l->keep && l->type != MPI_DATATYPE_NULL)
		MPI_Type_free(&l->type);
	l->type = MPI_DATATYPE_NULL;
}

/* Buffers. */

/* Memory with bytes from `low` to before `high`, those that a rank knows, and guards on both
 * sides. */
static struct buffer allocate(struct rng *r, MPI_Aint low, MPI_Aint high, enum atom atom)
{
	struct buffer b;
	if (high < low)
		high = low;
	b.size = (size_t)(high - low) + 2 * GUARD + 96;
	b.size = (b.size + 7) / 8 * 8;
	b.mapped = below(r, 24) == 0;
	b.atom = atom;
	if (b.mapped) {
		b.raw = mmap(NULL, b.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		CHECK(b.raw != MAP_FAILED);
	} else {
		b.raw = aligned_alloc(16, (b.size + 15) / 16 * 16);
		CHECK(b.raw);
	}
	MPI_Aint place = ((MPI_Aint)GUARD - low + 15) / 16 * 16;
	while (place + low < GUARD)
		place += 16;
	b.base = b.raw + place + (below(r, 4) ? 0 : atom_align[atom] % 16 * (MPI_Aint)below(r, 2));
	uint64_t word = draw(r);
	for (size_t i = 0; i < b.size; i += 8) {
		word = word * 6364136223846793005u + 1442695040888963407u;
		uint64_t mixed = word ^ word >> 31;
		memcpy(b.raw + i, &mixed, 8);
	}
	return b;
}

/* Memory for `count` elements at the places that they have from `first` elements on. */
static struct buffer room_for(struct rng *r, const struct layout *l, long count, enum atom atom)
{
	MPI_Aint high = count > 0 ? l->true_lower + l->true_extent + (count - 1) * l->extent : l->true_lower;
	return allocate(r, l->true_lower, high, atom);
}

static uint64_t sum_of(const struct buffer *b)
{
	uint64_t sum = b->size;
	if (!b->raw)
		return 0;
	if (b->atom != LONG_DOUBLE)
		return digest(sum, b->raw, b->size);
	/* The six bytes behind a number of ten are anybody's: libraries copy numbers, bytes, or
	 * what was in their own memory. */
	size_t first = (size_t)(b->base - b->raw) % 16;
	for (size_t i = first; i + 16 <= b->size; i += 16)
		sum = digest(sum, b->raw + i, 10);
	return sum;
}

static void release(struct buffer *b)
{
	if (b->raw && b->mapped)
		munmap(b->raw, b->size);
	else
		free(b->raw);
	b->raw = NULL;
}

/* Nobody may write what is sent. */
static void seal(struct rng *r, struct buffer *b)
{
	int chosen = below(r, 2);
	if (b->mapped && chosen)
		mprotect(b->raw, b->size, PROT_READ);
}

/* Communicators. */

static int is_pair(const struct group *g, int from, int to)
{
	return g->comm != MPI_COMM_NULL && (g->inter ? g->part[from] != g->part[to] : g->part[from] == g->part[to]);
}

/* The rank of the world that is `number` in a part. */
static int member(const struct context *c, const struct group *g, int part, int number)
{
	for (int i = 0; i < c->size; i++)
		if (g->part[i] == part && g->number[i] == number)
			return i;
	return -1;
}

static void split(struct context *c, struct group *g, const int *color, const int *key)
{
	MPI_Comm_split(c->world, color[c->rank], key[c->rank], &g->comm);
	for (int i = 0; i < c->size; i++) {
		g->part[i] = color[i];
		g->number[i] = 0;
		for (int k = 0; k < c->size; k++)
			g->number[i] += color[k] == color[i] && (key[k] < key[i] || (key[k] == key[i] && k < i));
	}
}

static void neighbours(struct context *c, struct rng *r, struct group *g, int kind)
{
	g->graph = 1;
	if (kind == GRID) {
		int dimensions = 1 + below(r, 2), sizes[2] = { 0, 0 }, periods[2];
		MPI_Dims_create(c->size, dimensions, sizes);
		for (int i = 0; i < 2; i++)
			/* With two in a row, the one before is the one behind. */
			periods[i] = below(r, 2) && sizes[i] > 2;
		MPI_Cart_create(c->world, dimensions, sizes, periods, 0, &g->comm);
		g->in_degree = g->out_degree = 2 * dimensions;
		for (int i = 0; i < dimensions; i++)
			MPI_Cart_shift(g->comm, i, 1, &g->in[2 * i], &g->in[2 * i + 1]);
		memcpy(g->out, g->in, sizeof(g->in));
		return;
	}
	int edges[MOST_RANKS][MOST_RANKS], index[MOST_RANKS], all[MOST_RANKS * MOST_RANKS], n = 0, of_all = below(r, 3) == 0;
	for (int i = 0; i < c->size; i++)
		for (int k = 0; k < c->size; k++)
			edges[i][k] = below(r, 3) > 0;
	g->in_degree = g->out_degree = 0;
	if (of_all) {
		for (int i = 0; i < c->size; i++) {
			for (int k = 0; k < c->size; k++)
				if (edges[i < k ? i : k][i < k ? k : i]) {
					all[n++] = k;
					if (i == c->rank)
						g->in[g->in_degree++] = k;
				}
			index[i] = n;
		}
		g->out_degree = g->in_degree;
		memcpy(g->out, g->in, sizeof(g->in));
		MPI_Graph_create(c->world, c->size, index, all, 0, &g->comm);
		return;
	}
	for (int k = c->size - 1; k >= 0; k--) {
		if (edges[k][c->rank])
			g->in[g->in_degree++] = k;
		if (edges[c->rank][k])
			g->out[g->out_degree++] = k;
	}
	for (int i = 0; i < MOST_RANKS; i++)
		index[i] = 1;
	MPI_Dist_graph_create_adjacent(c->world, g->in_degree, g->in, index, g->out_degree, g->out, index, MPI_INFO_NULL, 0, &g->comm);
}

/* Makes a communicator, together. */
static void make_group(struct context *c, struct rng *r, int kind)
{
	struct group *g = &c->groups[kind];
	int color[MOST_RANKS] = { 0 }, key[MOST_RANKS];
	memset(g, 0, sizeof(*g));
	g->comm = MPI_COMM_NULL;
	for (int i = 0; i < c->size; i++) {
		key[i] = i;
		g->number[i] = i;
	}
	switch (kind) {
	case WORLD:
		MPI_Comm_dup(c->world, &g->comm);
		break;
	case HALVES:
		for (int i = 0; i < c->size; i++)
			color[i] = i % 2;
		split(c, g, color, key);
		break;
	case REVERSED:
		for (int i = 0; i < c->size; i++)
			key[i] = -i;
		split(c, g, color, key);
		break;
	case SUBSET:
		for (int i = 0; i < c->size; i++)
			color[i] = below(r, 2);
		/* Falls through. */
	case SHUFFLED:
		for (int i = 0; i < c->size; i++)
			key[i] = below(r, 100);
		split(c, g, color, key);
		break;
	case SELF:
		for (int i = 0; i < c->size; i++)
			g->part[i] = i, g->number[i] = 0;
		MPI_Comm_dup(MPI_COMM_SELF, &g->comm);
		break;
	case INTER: {
		if (c->size < 2)
			return;
		struct group local = { .comm = MPI_COMM_NULL };
		for (int i = 0; i < c->size; i++)
			color[i] = i < 2 ? i : below(r, 2);
		split(c, &local, color, key);
		memcpy(g->part, local.part, sizeof(g->part));
		memcpy(g->number, local.number, sizeof(g->number));
		MPI_Intercomm_create(local.comm, 0, c->world, 1 - color[c->rank], 77, &g->comm);
		MPI_Comm_free(&local.comm);
		g->inter = 1;
		MPI_Comm_remote_size(g->comm, &g->remote);
		break;
	}
	case MERGED:
		if (c->size < 2)
			return;
		MPI_Intercomm_merge(c->groups[INTER].comm, c->groups[INTER].part[c->rank], &g->comm);
		for (int i = 0; i < c->size; i++) {
			g->number[i] = 0;
			for (int k = 0; k < c->size; k++)
				g->number[i] += c->groups[INTER].part[k] < c->groups[INTER].part[i] ||
						(c->groups[INTER].part[k] == c->groups[INTER].part[i] && k < i);
		}
		break;
	default:
		neighbours(c, r, g, kind);
	}
	MPI_Comm_rank(g->comm, &g->me);
	MPI_Comm_size(g->comm, &g->n);
	if (!g->inter)
		g->remote = g->n;
	CHECK(g->me == g->number[c->rank]);
	MPI_Comm_set_errhandler(g->comm, MPI_ERRORS_RETURN);
}

/* What the steps of an epoch have in common, as if all steps before had been. A communicator lives
 * for some epochs. */
static void begin_epoch(struct context *c, int epoch, int is_first)
{
	for (int kind = 0; kind < GROUPS; kind++) {
		int born = epoch;
		while (born > 0 && (kind <= REVERSED || below(&(struct rng){ mix(c->seed + born * 64 + kind / 2 * 2) }, 3)))
			born--;
		/* A thread makes none while others do. */
		if (c->threads > 1)
			born = 0;
		if (born != epoch && !is_first)
			continue;
		if (!is_first && c->groups[kind].comm != MPI_COMM_NULL)
			MPI_Comm_free(&c->groups[kind].comm);
		struct rng r = seeded(c->seed, 1000 + born, kind);
		make_group(c, &r, kind);
	}
	struct rng r = seeded(c->seed, epoch, 3), own = seeded(c->seed, epoch, 100 + c->rank);
	for (int i = 0; i < SIGNATURES; i++) {
		struct signature *s = &c->signatures[i];
		s->atom = below(&r, ATOMS);
		/* MPICH 4.0.2 and 5.0.2 count long messages of MPI_DOUBLE_INT differently at both
		 * ends: they hang, or are too long. */
		if (MPICH_MAJOR && s->atom == PAIR)
			s->atom = INT64;
		/* MPICH 4.0.2 says of long messages of structures that they are too long, and
		 * 5.0.2 that their types do not match. */
		s->m = spread(&r, i % 3 || (MPICH_MAJOR && s->atom == MIXED) ? 64 : 4096);
		for (int k = 0; k < KEPT; k++) {
			if (!is_first)
				MPI_Type_free(&c->kept[i][k].type);
			c->kept[i][k] = fresh(&own, s->atom, s->m);
		}
	}
}

static void end_all(struct context *c)
{
	for (int kind = GROUPS - 1; kind >= 0; kind--)
		if (c->groups[kind].comm != MPI_COMM_NULL)
			MPI_Comm_free(&c->groups[kind].comm);
	for (int i = 0; i < SIGNATURES * KEPT; i++)
		MPI_Type_free(&c->kept[i / KEPT][i % KEPT].type);
}

/* Units of a signature for a call: none, mostly few bytes, sometimes many. */
static long units(struct context *c, struct rng *r, int s, int parts)
{
	int kind = below(r, 40);
	long limit = kind < 2 ? 0 : kind < 30 ? 16384 : kind < 38 ? 262144 : c->most;
	/* MPICH 5.0.2 leaves the end of some of them as it was from 4000 bytes on. */
	if (MPICH_MAJOR && c->signatures[s].atom == MIXED && limit > 2048)
		limit = 2048;
	if (limit == 0)
		return 0;
	long bytes = spread(r, limit) / parts, unit = atom_bytes[c->signatures[s].atom] * c->signatures[s].m;
	return bytes / unit + 1;
}
