// SPDX-License-Identifier: MIT OR Apache-2.0

/* Random datatypes packed and unpacked; prints a checksum of every buffer and position. What the
 * functions with their MPI_ and their PMPI_ names make is compared, and each unpacks what the other
 * one has packed: where libcopy_mpi.so is preloaded, these are not the same functions.
 *
 * usage: packing ROUNDS SEED MOST        MOST: bytes of a type, about
 *        packing readings ROUNDS         types that libraries read in ways of their own, two ranks
 *        packing between                 types that a library packs in its own way and receives as
 *                                        MPI defines, two ranks
 *        packing time                    nanoseconds of a call by either name, in turns
 *        packing external-time           the same of MPI_Pack_external and MPI_Unpack_external
 *
 * With -DLARGE, MPI_Pack_c and so on are called, even if the library has none.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "error_class.h"
#include "random.h"

#ifdef LARGE
typedef MPI_Count number;
#define CALL(function) function##_c
#if MPI_VERSION < 4
__attribute__((weak)) int MPI_Pack_c(const void *, number, MPI_Datatype, void *, number, number *,
				     MPI_Comm);
__attribute__((weak)) int MPI_Unpack_c(const void *, number, number *, void *, number, MPI_Datatype,
				       MPI_Comm);
__attribute__((weak)) int MPI_Pack_external_c(const char *, const void *, number, MPI_Datatype,
					      void *, number, number *);
__attribute__((weak)) int MPI_Unpack_external_c(const char *, const void *, number, number *,
						void *, number, MPI_Datatype);
#endif
typedef MPI_Count place;
#else
typedef int number;
typedef MPI_Aint place;
#define CALL(function) function
#endif

/* A type made of another one, whose bytes do not overlap. */
static MPI_Datatype around(MPI_Datatype inner, int n)
{
	MPI_Datatype type;
	MPI_Aint lower, extent, places[64];
	int lengths[64], starts[64];
	MPI_Type_get_extent(inner, &lower, &extent);
	int parts = 1 + (n < 63 ? n : 63);
	for (int i = 0, at = 0; i < parts; i++) {
		lengths[i] = 1 + next(3);
		starts[i] = at + next(2);
		places[i] = starts[i] * extent;
		at = starts[i] + lengths[i];
	}
	switch (next(8)) {
	case 0:
		MPI_Type_contiguous(n, inner, &type);
		break;
	case 1: {
		int block = 1 + next(4);
		MPI_Type_vector(n, block, block + next(3), inner, &type);
		break;
	}
	case 2:
		MPI_Type_create_hvector(n, 1, extent + 8 * next(3), inner, &type);
		break;
	case 3:
		MPI_Type_indexed(parts, lengths, starts, inner, &type);
		break;
	case 4:
		MPI_Type_create_hindexed(parts, lengths, places, inner, &type);
		break;
	case 5: {
		MPI_Datatype types[64];
		for (int i = 0; i < parts; i++)
			types[i] = inner;
		MPI_Type_create_struct(parts, lengths, places, types, &type);
		break;
	}
	case 6: {
		int sizes[2] = { 2 + next(6), 2 + n }, part[2], from[2];
		for (int i = 0; i < 2; i++) {
			part[i] = 1 + next(sizes[i]);
			from[i] = next(sizes[i] - part[i] + 1);
		}
		MPI_Type_create_subarray(2, sizes, part, from,
					 next(2) ? MPI_ORDER_C : MPI_ORDER_FORTRAN, inner, &type);
		break;
	}
	default:
		MPI_Type_create_resized(inner, lower, extent + 8 * next(4), &type);
	}
	return type;
}

/* The numbers of the kinds of elements. */
static MPI_Datatype random_type(int most, int kinds)
{
	static const int sizes[] = { 1, 2, 4, 8, 8, 6 };
	MPI_Datatype bases[] = { MPI_CHAR, MPI_SHORT, MPI_INT, MPI_DOUBLE, MPI_INT64_T,
				 MPI_SHORT_INT };
	int base = next(kinds), left = most / sizes[base];
	MPI_Datatype type;
	MPI_Type_dup(bases[base], &type);
	for (int depth = 1 + next(3); depth > 0; depth--) {
		int n = 1 + next(left < 1 ? 1 : depth == 1 ? left : left < 16 ? left : 16);
		MPI_Datatype outer = around(type, n);
		MPI_Type_free(&type);
		type = outer;
		left /= n;
	}
	MPI_Type_commit(&type);
	return type;
}

static int wrong;

/* Packs and unpacks by both names. */
static void both(int most, int round)
{
	MPI_Datatype type = random_type(most, 6);
	MPI_Aint lower, extent, true_lower, true_extent;
	int size, room, count = 1 + next(3);
	MPI_Type_size(type, &size);
	MPI_Type_get_extent(type, &lower, &extent);
	MPI_Type_get_true_extent(type, &true_lower, &true_extent);
	PMPI_Pack_size(count, type, MPI_COMM_WORLD, &room);
	size_t span = labs(true_lower) + true_extent + (size_t)labs(extent) * count;
	unsigned char *from = malloc(span), *to[2] = { malloc(span), malloc(span) };
	unsigned char *packed[2] = { malloc(room + 64), malloc(room + 64) };
	unsigned char *origin = from + (true_lower < 0 ? -true_lower : 0);
	for (size_t i = 0; i < span; i++) {
		from[i] = i * 31 + round;
		to[0][i] = to[1][i] = i;
	}
	memset(packed[0], round, room + 64);
	memset(packed[1], round, room + 64);
	int start = next(64), narrow = start, codes[2];
	number position = start;
	codes[0] = CALL(MPI_Pack)(origin, count, type, packed[0], room + 64, &position,
				  MPI_COMM_WORLD);
	codes[1] = PMPI_Pack(origin, count, type, packed[1], room + 64, &narrow, MPI_COMM_WORLD);
	wrong += codes[0] != codes[1] || position != narrow ||
		 memcmp(packed[0], packed[1], room + 64) != 0;
	/* Unpacked from each other's buffer. */
	long shift = origin - from;
	position = narrow = start;
	codes[0] = CALL(MPI_Unpack)(packed[1], room + 64, &position, to[0] + shift, count, type,
				    MPI_COMM_WORLD);
	codes[1] = PMPI_Unpack(packed[0], room + 64, &narrow, to[1] + shift, count, type,
			       MPI_COMM_WORLD);
	wrong += codes[0] != codes[1] || position != narrow || memcmp(to[0], to[1], span) != 0;
	printf("%d: %016llx %016llx %lld", round, (unsigned long long)hash(packed[0], room + 64),
	       (unsigned long long)hash(to[0], span), (long long)position);
	/* No room for the last byte. */
	if (count * size > 1) {
		position = 0;
		int code = CALL(MPI_Pack)(origin, count, type, packed[0], count * size - 1,
					  &position, MPI_COMM_WORLD);
		printf(" %d", class_of(code) == MPI_SUCCESS);
	}
	printf("\n");
	for (int i = 0; i < 2; i++) {
		free(to[i]);
		free(packed[i]);
	}
	free(from);
	MPI_Type_free(&type);
}

/* The same in external32, for which MPICH refuses pairs. */
#ifdef OPEN_MPI
enum { EXTERNAL_KINDS = 6 };
#else
enum { EXTERNAL_KINDS = 5 };
#endif

static void both_external(int most, int round)
{
	MPI_Datatype type = random_type(most, EXTERNAL_KINDS);
	MPI_Aint lower, extent, true_lower, true_extent, room;
	int count = 1 + next(3);
	MPI_Type_get_extent(type, &lower, &extent);
	MPI_Type_get_true_extent(type, &true_lower, &true_extent);
	PMPI_Pack_external_size("external32", count, type, &room);
	size_t span = labs(true_lower) + true_extent + (size_t)labs(extent) * count;
	unsigned char *from = malloc(span), *to[2] = { malloc(span), malloc(span) };
	unsigned char *packed[2] = { malloc(room + 64), malloc(room + 64) };
	long shift = true_lower < 0 ? -true_lower : 0;
	for (size_t i = 0; i < span; i++) {
		from[i] = i * 29 + round;
		to[0][i] = to[1][i] = i;
	}
	memset(packed[0], round, room + 64);
	memset(packed[1], round, room + 64);
	int start = next(64), codes[2];
	place position = start;
	MPI_Aint narrow = start;
	codes[0] = CALL(MPI_Pack_external)("external32", from + shift, count, type, packed[0],
					   room + 64, &position);
	codes[1] = PMPI_Pack_external("external32", from + shift, count, type, packed[1],
				      room + 64, &narrow);
	wrong += codes[0] != codes[1] || position != narrow ||
		 memcmp(packed[0], packed[1], room + 64) != 0;
	position = narrow = start;
	codes[0] = CALL(MPI_Unpack_external)("external32", packed[1], room + 64, &position,
					     to[0] + shift, count, type);
	codes[1] = PMPI_Unpack_external("external32", packed[0], room + 64, &narrow,
					to[1] + shift, count, type);
	wrong += codes[0] != codes[1] || position != narrow || memcmp(to[0], to[1], span) != 0;
	printf("%d external: %016llx %016llx %lld\n", round,
	       (unsigned long long)hash(packed[0], room + 64),
	       (unsigned long long)hash(to[0], span), (long long)position);
	for (int i = 0; i < 2; i++) {
		free(to[i]);
		free(packed[i]);
	}
	free(from);
	MPI_Type_free(&type);
}

/* Types that a library may read in another way than MPI defines them: it goes up where they go
 * down, or adds to their bounds, or has complex numbers at multiples of their size only. The last
 * two are ones that all read alike. */
enum { READINGS = 12 };

static MPI_Datatype reading(int which)
{
	enum { N = 20000 };
	static const int ones[] = { 1, 1, 1 };
	MPI_Aint places[] = { -2 * N, 0, 2 * N };
	MPI_Datatype type, inner;
	switch (which) {
	case 0:
		MPI_Type_create_hvector(N, 1, -1, MPI_BYTE, &type);
		break;
	case 1:
		MPI_Type_vector(N / 2, 2, -2, MPI_SHORT, &type);
		break;
	case 2:
		MPI_Type_create_hvector(N, 3, -1, MPI_BYTE, &type);
		break;
	case 3: { /* With the bounds that MPI defines. */
		MPI_Type_create_hvector(N, 1, -1, MPI_BYTE, &inner);
		MPI_Datatype types[] = { MPI_BYTE, inner, MPI_BYTE };
		MPI_Type_create_struct(3, ones, places, types, &type);
		MPI_Type_free(&inner);
		break;
	}
	case 4:
	case 5: {
		MPI_Datatype whole;
		int length = 3;
		MPI_Aint place = which == 4 ? 8 : 0;
		MPI_Type_create_hindexed(1, &length, &place, which == 4 ? MPI_FLOAT_INT : MPI_BYTE, &whole);
		MPI_Type_create_resized(whole, which == 4 ? -8 : -16, which == 4 ? -10 : -2, &inner);
		MPI_Type_contiguous(2, inner, &type);
		MPI_Type_free(&inner);
		MPI_Type_free(&whole);
		break;
	}
	case 6: {
		MPI_Datatype types[] = { MPI_INT, MPI_SHORT };
		MPI_Aint at[] = { 0, 8 };
		MPI_Type_create_resized(MPI_INT, 0, 4, &types[0]);
		MPI_Type_create_struct(2, (int[]){ 2, 1 }, at, types, &inner);
		MPI_Type_vector(N / 10, 1, 2, inner, &type);
		MPI_Type_free(&types[0]);
		MPI_Type_free(&inner);
		break;
	}
	case 7:
		MPI_Type_create_hvector(N / 16, 1, 24, MPI_C_DOUBLE_COMPLEX, &type);
		break;
	case 8: { /* Complex numbers behind single numbers. */
		MPI_Aint far[N / 32];
		for (int i = 0; i < N / 32; i++)
			far[i] = i * 40 + i % 3 * 8;
		MPI_Type_create_hindexed_block(N / 32, 1, far, MPI_C_DOUBLE_COMPLEX, &type);
		break;
	}
	case 9: {
		MPI_Type_create_resized(MPI_C_FLOAT_COMPLEX, 0, 12, &inner);
		MPI_Type_vector(N / 16, 1, 3, inner, &type);
		MPI_Type_free(&inner);
		break;
	}
	case 10:
		MPI_Type_create_hvector(N / 8, 1, -24, MPI_DOUBLE, &type);
		break;
	default:
		MPI_Type_vector(N / 8, 1, 3, MPI_DOUBLE, &type);
	}
	MPI_Type_commit(&type);
	return type;
}

/* Packs and sends elements of such a type again and again, in which it may become worth a
 * layout. */
static void readings(int rounds)
{
	int rank;
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	for (int which = 0; which < READINGS; which++) {
		MPI_Datatype type = reading(which);
		MPI_Aint bound, extent, lower, reach;
		/* MPICH goes another way from the second of those on. */
		int count = which == 4 || which == 5 ? 3 : 1, size, before = wrong, at;
		MPI_Type_size(type, &size);
		size *= count;
		MPI_Type_get_extent(type, &bound, &extent);
		MPI_Type_get_true_extent(type, &lower, &reach);
		/* So that these stay within, too. */
		reach += labs(extent) * count;
		unsigned char *memory = malloc(3 * reach), *origin = memory + reach - lower;
		unsigned char *packed[3] = { malloc(size), malloc(size), malloc(size) };
		for (long i = 0; i < 3 * reach; i++)
			memory[i] = i * 31 + i / 251;
		for (int round = 0; round < rounds; round++) {
			memset(packed[0], 0, size);
			memset(packed[2], 0, size);
			at = 0;
			PMPI_Pack(origin, count, type, packed[1], size, &at, MPI_COMM_WORLD);
			at = 0;
			MPI_Pack(origin, count, type, packed[0], size, &at, MPI_COMM_WORLD);
			wrong += at != size || memcmp(packed[0], packed[1], size) != 0;
			MPI_Sendrecv(origin, count, type, 1 - rank, 3, packed[2], size, MPI_PACKED,
				     1 - rank, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			wrong += memcmp(packed[2], packed[1], size) != 0;
		}
		printf("reading %d: %ld %ld %016llx, %d wrong\n", which, (long)lower, (long)extent,
		       (unsigned long long)hash(packed[0], size), wrong - before);
		for (int i = 0; i < 3; i++)
			free(packed[i]);
		free(memory);
		MPI_Type_free(&type);
	}
}

/* Dense bytes received as complex numbers that are not at multiples of their size, short enough to
 * be sent at once: Open MPI 5.0 packs and unpacks such types in a way of its own, and receives them
 * as MPI defines.
 */
static void between(void)
{
	enum { N = 100, BYTES = 16 * N, SPAN = 24 * N };
	static unsigned char dense[BYTES], got[SPAN];
	int rank, bytes;
	MPI_Aint place;
	MPI_Datatype type, absolute, types[2] = { MPI_BYTE, MPI_BYTE };
	MPI_Status status;
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Type_create_hvector(N, 1, 24, MPI_C_DOUBLE_COMPLEX, &type);
	MPI_Type_commit(&type);
	MPI_Get_address(got, &place);
	MPI_Type_create_hindexed(1, (int[]){ 1 }, &place, type, &absolute);
	MPI_Type_commit(&absolute);
	for (int i = 0; i < BYTES; i++)
		dense[i] = i * 31 + i / 251;
	for (int way = 0; way < 4; way++) {
		int before = wrong;
		memset(got, 0, sizeof(got));
		if (way < 2) {
			MPI_Sendrecv(dense, BYTES, MPI_BYTE, 1 - rank, 4, way ? MPI_BOTTOM : got, 1, way ? absolute : type, 1 - rank, 4,
				     MPI_COMM_WORLD, &status);
			MPI_Get_count(&status, MPI_BYTE, &bytes);
			wrong += bytes != BYTES;
		} else if (way == 2) {
			MPI_Request request;
			MPI_Irecv(got, 1, type, 1 - rank, 5, MPI_COMM_WORLD, &request);
			MPI_Send(dense, BYTES, MPI_BYTE, 1 - rank, 5, MPI_COMM_WORLD);
			MPI_Wait(&request, MPI_STATUS_IGNORE);
		} else {
			/* What a rank has for itself Open MPI 5.0 packs. */
			int sends[] = { rank * BYTES, (1 - rank) * BYTES }, ones[] = { rank, 1 - rank }, at[] = { 0, 0 };
			MPI_Datatype received[] = { type, type };
			MPI_Alltoallw(dense, sends, at, types, got, ones, at, received, MPI_COMM_WORLD);
		}
		for (int i = 0; i < SPAN; i++)
			wrong += got[i] != (i % 24 < 16 ? dense[i / 24 * 16 + i % 24] : 0);
		printf("between %d: %d wrong\n", way, wrong - before);
	}
	MPI_Type_free(&type);
	MPI_Type_free(&absolute);
}

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1e9 + time.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
	return (*(double *)a > *(double *)b) - (*(double *)a < *(double *)b);
}

enum { BLOCKS = 41 };

static int is_external;

/* Packs or unpacks by one of the names. */
static void once(int way, unsigned char *user, unsigned char *packed, int total, MPI_Datatype type)
{
	int at = 0;
	MPI_Aint place = 0;
	switch (way + 4 * is_external) {
	case 0:
		MPI_Pack(user, 1, type, packed, total, &at, MPI_COMM_WORLD);
		break;
	case 1:
		PMPI_Pack(user, 1, type, packed, total, &at, MPI_COMM_WORLD);
		break;
	case 2:
		MPI_Unpack(packed, total, &at, user, 1, type, MPI_COMM_WORLD);
		break;
	case 3:
		PMPI_Unpack(packed, total, &at, user, 1, type, MPI_COMM_WORLD);
		break;
	case 4:
		MPI_Pack_external("external32", user, 1, type, packed, total, &place);
		break;
	case 5:
		PMPI_Pack_external("external32", user, 1, type, packed, total, &place);
		break;
	case 6:
		MPI_Unpack_external("external32", packed, total, &place, user, 1, type);
		break;
	default:
		PMPI_Unpack_external("external32", packed, total, &place, user, 1, type);
	}
}

/* The lower quartile of blocks of calls, by either name. */
static void measure(int total, int piece)
{
	MPI_Datatype type;
	int n = total / piece, gap = piece < 64 ? piece : 64;
	if (is_external)
		MPI_Type_vector(n, piece / 8, (piece + gap) / 8, MPI_DOUBLE, &type);
	else
		MPI_Type_vector(n, piece, piece + gap, MPI_BYTE, &type);
	MPI_Type_commit(&type);
	unsigned char *user = calloc(2, total + 64 * 64), *packed = calloc(1, total);
	double times[4][BLOCKS];
	int calls = 1 + 400000 / (total + 200);
	for (int block = 0; block < BLOCKS; block++) {
		for (int way = 0; way < 4; way++) {
			double start = now();
			for (int i = 0; i < calls; i++)
				once(way, user, packed, total, type);
			times[way][block] = (now() - start) / calls;
		}
	}
	double at[4];
	for (int way = 0; way < 4; way++) {
		qsort(times[way], BLOCKS, sizeof(double), ascending);
		at[way] = times[way][BLOCKS / 4];
	}
	printf("%8d %6d %10.0f %10.0f %6.2f %10.0f %10.0f %6.2f\n", total, piece, at[0], at[1],
	       at[1] / at[0], at[2], at[3], at[3] / at[2]);
	free(user);
	free(packed);
	MPI_Type_free(&type);
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
	is_external = argc > 1 && strcmp(argv[1], "external-time") == 0;
	if (is_external || (argc > 1 && strcmp(argv[1], "time") == 0)) {
		printf("   bytes  piece       pack       PMPI   gain     unpack       PMPI   gain\n");
		for (int total = 256; total <= 1 << 20; total *= 4)
			for (int piece = is_external ? 8 : 1; piece <= total / 2 && piece <= 16384; piece *= 4)
				measure(total, piece);
		MPI_Finalize();
		return 0;
	}
	if (argc > 2 && strcmp(argv[1], "readings") == 0) {
		readings(atoi(argv[2]));
		printf("%d wrong\n", wrong);
		MPI_Finalize();
		return 0;
	}
	if (argc > 1 && strcmp(argv[1], "between") == 0) {
		between();
		printf("%d wrong\n", wrong);
		MPI_Finalize();
		return 0;
	}
	if (argc < 4) {
		fprintf(stderr, "usage: packing ROUNDS SEED MOST | packing readings ROUNDS | packing between | packing [external-]time\n");
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	state = strtoull(argv[2], NULL, 10) * 0x9e3779b97f4a7c15u + 1;
	for (int round = 0; round < atoi(argv[1]); round++) {
		both(atoi(argv[3]), round);
		both_external(atoi(argv[3]), round);
	}
	printf("%d wrong\n", wrong);
	MPI_Finalize();
	return 0;
}
