// SPDX-License-Identifier: MIT OR Apache-2.0

/* Every function on datatypes, and what it says to wrong arguments. */
#include "expect.h"

/* Is `type` (which is freed) what the expression says, and back? */
static void is(libcopy_type_t *type, const char *expression)
{
	char text[200];
	size_t length;

	GOOD(libcopy_type_expression(type, text, sizeof(text), &length));
	if (strcmp(text, expression)) {
		fprintf(stderr, "%s, not %s\n", text, expression);
		exit(1);
	}
	GOOD(libcopy_type_free(type));
}

static void constructors(void)
{
	static const uint64_t lengths[] = { 2, 1 }, sizes[] = { 4, 6 }, subsizes[] = { 2, 3 },
			      starts[] = { 1, 2 }, blocks[] = { 0, 2 }, grid[] = { 2, 1 };
	static const int64_t places[] = { 0, 40 };
	static const int dealt[] = { LIBCOPY_DISTRIBUTE_CYCLIC, LIBCOPY_DISTRIBUTE_NONE };
	libcopy_type_t *f64, *i32, *type;
	const libcopy_type_t *both[2];

	GOOD(libcopy_type_named("MPI_DOUBLE", &f64));
	GOOD(libcopy_type_named("int", &i32));
	both[0] = f64;
	both[1] = i32;
	GOOD(libcopy_type_dup(f64, &type));
	is(type, "dup(double)");
	GOOD(libcopy_type_contiguous(3, f64, &type));
	is(type, "contiguous(3,double)");
	GOOD(libcopy_type_vector(3, 2, -4, f64, &type));
	is(type, "vector(3,2,-4,double)");
	GOOD(libcopy_type_hvector(3, 2, 40, f64, &type));
	is(type, "hvector(3,2,40,double)");
	GOOD(libcopy_type_indexed(2, lengths, places, f64, &type));
	is(type, "indexed([2,1],[0,40],double)");
	GOOD(libcopy_type_hindexed(2, lengths, places, f64, &type));
	is(type, "hindexed([2,1],[0,40],double)");
	GOOD(libcopy_type_indexed_block(2, 3, places, f64, &type));
	is(type, "indexed_block(3,[0,40],double)");
	GOOD(libcopy_type_hindexed_block(2, 3, places, f64, &type));
	is(type, "hindexed_block(3,[0,40],double)");
	GOOD(libcopy_type_struct(2, lengths, places, both, &type));
	is(type, "struct([2,1],[0,40],[double,int])");
	GOOD(libcopy_type_subarray(2, sizes, subsizes, starts, LIBCOPY_ORDER_FORTRAN, f64, &type));
	is(type, "subarray([4,6],[2,3],[1,2],fortran,double)");
	GOOD(libcopy_type_darray(2, 1, 2, sizes, dealt, blocks, grid, LIBCOPY_ORDER_C, f64, &type));
	is(type, "darray(2,1,[4,6],[cyclic,none],[2,1],c,double)");
	GOOD(libcopy_type_resized(-8, 64, f64, &type));
	is(type, "resized(-8,64,double)");
	GOOD(libcopy_type_indexed(0, NULL, NULL, f64, &type));
	is(type, "indexed([],[],double)");
	GOOD(libcopy_type_free(f64));
	GOOD(libcopy_type_free(i32));
}

static void questions(void)
{
	libcopy_type_t *type = parsed("resized(-8,128,struct([2,1],[0,40],[double,int]))"), *inner;
	libcopy_type_t *children[2];
	uint64_t size;
	int64_t lb, extent, counts[5];
	size_t integers, count, types, length;
	int combiner;
	char text[6];

	GOOD(libcopy_type_commit(type));
	GOOD(libcopy_type_size(type, &size));
	EXPECT(size == 20);
	GOOD(libcopy_type_extent(type, &lb, &extent));
	EXPECT(lb == -8 && extent == 128);
	GOOD(libcopy_type_true_extent(type, &lb, &extent));
	EXPECT(lb == 0 && extent == 44);
	GOOD(libcopy_type_envelope(type, &combiner, &integers, &count, &types));
	EXPECT(combiner == LIBCOPY_COMBINER_RESIZED && integers == 0 && count == 2 && types == 1);
	GOOD(libcopy_type_contents(type, 0, NULL, 2, counts, 1, &inner));
	EXPECT(counts[0] == -8 && counts[1] == 128);
	/* What a type is built on outlives it. */
	GOOD(libcopy_type_free(type));
	GOOD(libcopy_type_envelope(inner, &combiner, &integers, &count, &types));
	EXPECT(combiner == LIBCOPY_COMBINER_STRUCT && count == 5 && types == 2);
	EXPECT(libcopy_type_contents(inner, 0, NULL, 4, counts, 2, children) == LIBCOPY_EINVAL);
	EXPECT(strstr(libcopy_error_detail(), "5"));
	GOOD(libcopy_type_contents(inner, 0, NULL, 5, counts, 2, children));
	EXPECT(counts[0] == 2 && counts[1] == 2 && counts[2] == 1 && counts[3] == 0 &&
	       counts[4] == 40);
	EXPECT(libcopy_type_contents(children[0], 0, NULL, 0, NULL, 0, NULL) == LIBCOPY_EINVAL);
	GOOD(libcopy_type_expression(children[1], NULL, 0, &length));
	EXPECT(length == 3);
	GOOD(libcopy_type_expression(inner, text, sizeof(text), &length));
	EXPECT(!strcmp(text, "struc") && length > 6);
	GOOD(libcopy_type_free(children[0]));
	is(children[1], "int");
	GOOD(libcopy_type_retain(inner));
	GOOD(libcopy_type_free(inner));
	GOOD(libcopy_type_size(inner, &size));
	GOOD(libcopy_type_free(inner));
}

static void movement(void)
{
	libcopy_type_t *column = parsed("resized(0,4,vector(50,1,10,int))"), *dense = parsed("int");
	libcopy_type_t *bytes = parsed("byte"), *doubles = parsed("double");
	int matrix[500], transposed[500], back[500];
	libcopy_segment_t list[7];
	uint64_t segments;
	size_t actual;

	for (int i = 0; i < 500; i++)
		matrix[i] = i;
	GOOD(libcopy_type_pack(matrix, 10, column, 0, transposed, sizeof(transposed), &actual));
	EXPECT(actual == sizeof(transposed));
	for (int i = 0; i < 500; i++)
		EXPECT(transposed[i] == i % 50 * 10 + i / 50);

	/* The same in pieces of 7 bytes, the last ones first. */
	memset(back, 0, sizeof(back));
	for (long offset = 1995; offset >= 0; offset -= 7) {
		char piece[7];

		GOOD(libcopy_type_pack(matrix, 10, column, (uint64_t)offset, piece, 7, &actual));
		EXPECT(actual == (offset == 1995 ? 5 : 7));
		EXPECT(!memcmp(piece, (char *)transposed + offset, actual));
		GOOD(libcopy_type_unpack(piece, actual, back, 10, column, (uint64_t)offset,
					 &actual));
	}
	EXPECT(!memcmp(back, matrix, sizeof(matrix)));

	memset(back, 0, sizeof(back));
	GOOD(libcopy_type_copy(transposed, 500, dense, back, 10, column));
	EXPECT(!memcmp(back, matrix, sizeof(matrix)));
	memset(back, 0, sizeof(back));
	GOOD(libcopy_type_copy(transposed, 2000, bytes, back, 10, column));
	EXPECT(!memcmp(back, matrix, sizeof(matrix)));
	EXPECT(libcopy_type_copy(transposed, 250, doubles, back, 10, column) == LIBCOPY_EMISMATCH);
	EXPECT(libcopy_type_copy(transposed, 499, dense, back, 10, column) == LIBCOPY_EMISMATCH);

	GOOD(libcopy_type_segment_count(10, column, &segments));
	EXPECT(segments == 500);
	GOOD(libcopy_type_segments(10, column, 48, list, 7, &actual));
	EXPECT(actual == 7 && list[0].offset == 48 * 40 && list[0].length == 4);
	EXPECT(list[2].offset == 4 && list[6].offset == 4 + 4 * 40);
	GOOD(libcopy_type_segments(10, column, 498, list, 7, &actual));
	EXPECT(actual == 2);
	GOOD(libcopy_type_segments(10, column, UINT64_MAX, list, 7, &actual));
	EXPECT(actual == 0);

	EXPECT(libcopy_type_pack(matrix, 10, column, 2001, back, 7, &actual) == LIBCOPY_EINVAL);
	GOOD(libcopy_type_pack(matrix, 10, column, 2000, NULL, 7, &actual));
	EXPECT(actual == 0);
	GOOD(libcopy_type_pack(NULL, 0, column, 0, NULL, 7, &actual));
	EXPECT(actual == 0);
	EXPECT(libcopy_type_pack(matrix, 1, column, 0, NULL, 7, &actual) == LIBCOPY_EINVAL);
	/* Null is an address only for types whose displacements are addresses. */
	EXPECT(libcopy_type_pack(NULL, 1, column, 0, back, 7, &actual) == LIBCOPY_EINVAL);
	EXPECT(strstr(libcopy_error_detail(), "offset 0"));
	EXPECT(libcopy_type_unpack(back, 7, NULL, 1, column, 0, &actual) == LIBCOPY_EINVAL);
	EXPECT(libcopy_type_copy(NULL, 500, dense, back, 10, column) == LIBCOPY_EINVAL);
	EXPECT(libcopy_type_copy(transposed, 500, dense, NULL, 10, column) == LIBCOPY_EINVAL);
	EXPECT(libcopy_type_copy(NULL, 0, dense, NULL, 0, column) == LIBCOPY_OK);
	{
		int64_t place = (int64_t)(intptr_t)&matrix[7];
		libcopy_type_t *absolute;
		int seven = 0;

		GOOD(libcopy_type_hindexed_block(1, 1, &place, dense, &absolute));
		GOOD(libcopy_type_pack(NULL, 1, absolute, 0, &seven, 4, &actual));
		EXPECT(actual == 4 && seven == 7);
		GOOD(libcopy_type_free(absolute));
	}
	EXPECT(libcopy_type_pack(matrix, UINT64_MAX, column, 0, back, 7, &actual) ==
	       LIBCOPY_EINVAL);
	GOOD(libcopy_type_free(column));
	GOOD(libcopy_type_free(dense));
	GOOD(libcopy_type_free(bytes));
	GOOD(libcopy_type_free(doubles));
}

static void mistakes(void)
{
	libcopy_type_t *type = (libcopy_type_t *)&type, *i32 = parsed("int");
	static const uint64_t two[] = { 2 }, three[] = { 3 }, none[] = { 0 };
	uint64_t size;

	EXPECT(libcopy_type_named("doubble", &type) == LIBCOPY_EINVAL && !type);
	EXPECT(strstr(libcopy_error_detail(), "doubble"));
	EXPECT(libcopy_type_named(NULL, &type) == LIBCOPY_EINVAL);
	EXPECT(libcopy_type_named("int", NULL) == LIBCOPY_EINVAL);
	EXPECT(libcopy_type_parse("vector(3,1,int)", &type) == LIBCOPY_EINVAL && !type);
	EXPECT(libcopy_type_parse("\xff", &type) == LIBCOPY_EINVAL);
	EXPECT(libcopy_type_contiguous(3, NULL, &type) == LIBCOPY_EINVAL && !type);
	EXPECT(libcopy_type_contiguous(UINT64_MAX, i32, &type) == LIBCOPY_EINVAL && !type);
	EXPECT(libcopy_type_indexed(2, NULL, NULL, i32, &type) == LIBCOPY_EINVAL && !type);
	EXPECT(libcopy_type_subarray(1, two, three, none, LIBCOPY_ORDER_C, i32, &type) ==
	       LIBCOPY_EINVAL);
	EXPECT(libcopy_type_subarray(1, three, two, none, 7, i32, &type) == LIBCOPY_EINVAL);
	EXPECT(libcopy_type_size(NULL, &size) == LIBCOPY_EINVAL);
	EXPECT(libcopy_type_size(i32, NULL) == LIBCOPY_EINVAL);
	EXPECT(libcopy_type_commit(NULL) == LIBCOPY_EINVAL);
	EXPECT(libcopy_type_retain(NULL) == LIBCOPY_EINVAL);
	GOOD(libcopy_type_free(NULL));
	GOOD(libcopy_type_free(i32));
}

/* Where entries overlap, the last one in the type map wins. */
static void overlapping(void)
{
	/* Columns of 100 rows that are one element too close, all of them beginning with the
	 * last. */
	libcopy_type_t *type = parsed("contiguous(50,resized(0,8,vector(100,1,49,double)))");
	static double packed[5000], buffer[5000], expected[5000];
	size_t actual;

	for (int i = 0; i < 5000; i++)
		packed[i] = i;
	for (int column = 0; column < 50; column++)
		for (int row = 0; row < 100; row++)
			expected[row * 49 + column] = column * 100 + row;
	GOOD(libcopy_type_unpack(packed, sizeof(packed), buffer, 1, type, 0, &actual));
	EXPECT(actual == sizeof(packed) && !memcmp(buffer, expected, sizeof(buffer)));
	GOOD(libcopy_type_free(type));
}

int main(void)
{
	constructors();
	overlapping();
	questions();
	movement();
	mistakes();
	return 0;
}
