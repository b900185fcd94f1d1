// SPDX-License-Identifier: MIT OR Apache-2.0

/* Cursors, iovecs, external32, signatures, the binary form and reductions, against loops that say
 * the same byte by byte. */
#include "expect.h"
#include <wchar.h>

enum { ROWS = 50, COLUMNS = 10, CELLS = ROWS * COLUMNS, BYTES = 4 * CELLS };

/* Columns of a matrix of ints, the last three of each row in one piece: where each byte is. */
static const char *const SOME =
	"struct([7,1],[0,28],[resized(0,4,vector(50,1,10,int)),vector(50,3,10,int)])";
static int64_t places[BYTES];

static void oracle(void)
{
	int n = 0;

	for (int column = 0; column < 7; column++)
		for (int row = 0; row < ROWS; row++)
			for (int byte = 0; byte < 4; byte++)
				places[n++] = (row * COLUMNS + column) * 4 + byte;
	for (int row = 0; row < ROWS; row++)
		for (int byte = 0; byte < 12; byte++)
			places[n++] = (row * COLUMNS + 7) * 4 + byte;
	EXPECT(n == BYTES);
}

static unsigned chance = 1;

static unsigned below(unsigned n)
{
	chance = chance * 1664525 + 1013904223;
	return (chance >> 8) % n;
}

static void cursors(void)
{
	libcopy_type_t *type = parsed(SOME);
	static unsigned char matrix[BYTES], packed[BYTES], back[BYTES];
	libcopy_cursor_t *cursor;
	libcopy_segment_t list[9];
	struct iovec iov[9];
	uint64_t position, bytes, segment, skip, segments;
	size_t n;

	for (int i = 0; i < BYTES; i++)
		matrix[i] = (unsigned char)(i * 7 + i / 256);
	GOOD(libcopy_cursor_new(1, type, &cursor));
	/* Batches of any length, from places of any kind. */
	for (int round = 0; round < 400; round++) {
		unsigned at = below(BYTES + 1), most = 1 + below(200), entries = 1 + below(9);
		unsigned here = at;

		GOOD(libcopy_cursor_seek(cursor, at));
		GOOD(libcopy_cursor_segments(cursor, most, list, entries, &n));
		EXPECT(n <= entries && (n > 0 || at == BYTES));
		for (size_t i = 0; i < n; i++)
			for (uint64_t byte = 0; byte < list[i].length; byte++)
				EXPECT(places[here++] == list[i].offset + (int64_t)byte);
		/* Whether it could have been more. */
		EXPECT(here - at <= most);
		EXPECT(n == entries || here == BYTES || here - at == most);
		EXPECT(here == BYTES || here - at == most || places[here] != places[here - 1] + 1);
		GOOD(libcopy_cursor_position(cursor, &position));
		EXPECT(position == here);

		GOOD(libcopy_type_iovec(matrix, 1, type, at, most, iov, entries, &n, &bytes));
		EXPECT(bytes == here - at);
		here = at;
		for (size_t i = 0; i < n; i++)
			for (size_t byte = 0; byte < iov[i].iov_len; byte++)
				EXPECT((unsigned char *)iov[i].iov_base + byte ==
				       matrix + places[here++]);
		EXPECT(here - at == bytes);
	}
	/* Everything in steps. */
	GOOD(libcopy_cursor_seek(cursor, 0));
	for (size_t done = 0; done < BYTES; done += n) {
		GOOD(libcopy_cursor_pack(cursor, matrix, packed + done, 97, &n));
		EXPECT(n == (BYTES - done < 97 ? BYTES - done : 97));
	}
	for (int i = 0; i < BYTES; i++)
		EXPECT(packed[i] == matrix[places[i]]);
	GOOD(libcopy_cursor_pack(cursor, matrix, packed, 97, &n));
	EXPECT(n == 0);
	GOOD(libcopy_cursor_seek(cursor, 0));
	for (size_t done = 0; done < BYTES; done += n)
		GOOD(libcopy_cursor_unpack(cursor, packed + done, 103, back, &n));
	EXPECT(!memcmp(back, matrix, BYTES));
	GOOD(libcopy_cursor_seek(cursor, 0));
	bytes = 0;
	do {
		uint64_t some;

		GOOD(libcopy_cursor_iovec(cursor, matrix, UINT64_MAX, iov, 9, &n, &some));
		bytes += some;
	} while (n > 0);
	EXPECT(bytes == BYTES);
	EXPECT(libcopy_cursor_seek(cursor, BYTES + 1) == LIBCOPY_EINVAL);
	EXPECT(libcopy_cursor_seek(NULL, 0) == LIBCOPY_EINVAL);

	/* By byte offset and by maximum bytes: 350 pieces of 4 bytes, then 50 of 12. */
	GOOD(libcopy_type_segment_count(1, type, &segments));
	EXPECT(segments == 400);
	for (unsigned at = 0; at < BYTES; at++) {
		unsigned first = at < 1400 ? at / 4 : 350 + (at - 1400) / 12;
		unsigned before = at < 1400 ? at % 4 : (at - 1400) % 12;

		GOOD(libcopy_type_segment_at(1, type, at, &segment, &skip));
		EXPECT(segment == first && skip == before);
		GOOD(libcopy_type_segments_within(1, type, at, &segments, &bytes));
		EXPECT(segments == first && bytes == at - before);
	}
	EXPECT(libcopy_type_segment_at(1, type, BYTES, &segment, &skip) == LIBCOPY_EINVAL);
	GOOD(libcopy_type_segments_within(1, type, UINT64_MAX, &segments, &bytes));
	EXPECT(segments == 400 && bytes == BYTES);
	EXPECT(libcopy_type_iovec(NULL, 1, type, 0, 8, iov, 9, &n, &bytes) == LIBCOPY_EINVAL);
	EXPECT(libcopy_type_iovec(matrix, 1, type, BYTES + 1, 8, iov, 9, &n, &bytes) ==
	       LIBCOPY_EINVAL);
	/* The cursor outlives the handle of its type. */
	GOOD(libcopy_type_free(type));
	GOOD(libcopy_cursor_seek(cursor, 3));
	GOOD(libcopy_cursor_free(cursor));
	GOOD(libcopy_cursor_free(NULL));
}

static void questions(void)
{
	libcopy_type_t *mixed = parsed("struct([2,1],[0,8],[int,double])"), *ints = parsed("int");
	libcopy_type_t *row = parsed("contiguous(6,int)"), *column = parsed("vector(6,1,4,int)");
	libcopy_signature_t a, b;
	uint64_t elements;
	uint32_t alignment;

	GOOD(libcopy_type_alignment(mixed, &alignment));
	EXPECT(alignment == 8);
	GOOD(libcopy_type_alignment(column, &alignment));
	EXPECT(alignment == 4);
	GOOD(libcopy_type_elements(mixed, 36, &elements));
	EXPECT(elements == 7);
	EXPECT(libcopy_type_elements(mixed, 30, &elements) == LIBCOPY_EINVAL);
	EXPECT(strstr(libcopy_error_detail(), "30 bytes"));
	GOOD(libcopy_type_signature(2, row, &a));
	GOOD(libcopy_type_signature(2, column, &b));
	EXPECT(a.elements == 12 && !memcmp(&a, &b, sizeof(a)));
	GOOD(libcopy_type_signature(12, ints, &b));
	EXPECT(!memcmp(&a, &b, sizeof(a)));
	GOOD(libcopy_type_signature(4, mixed, &b));
	EXPECT(b.elements == 12 && memcmp(&a, &b, sizeof(a)));
	EXPECT(libcopy_type_signature(UINT64_MAX, row, &b) == LIBCOPY_EINVAL);
	GOOD(libcopy_type_free(mixed));
	GOOD(libcopy_type_free(ints));
	GOOD(libcopy_type_free(row));
	GOOD(libcopy_type_free(column));
}

static void binary(void)
{
	static const char *const all[] = {
		"double_int",
		"dup(int)",
		"contiguous(3,long_double)",
		"vector(3,2,-4,byte)",
		"hvector(3,2,40,double_int)",
		"indexed([1,0,2],[4,-9,0],int)",
		"hindexed([],[],int)",
		"indexed_block(2,[7,3,-9],int)",
		"hindexed_block(2,[8,0],real16)",
		"struct([1,2],[0,16],[int,vector(2,1,2,double)])",
		"subarray([4,6],[2,3],[1,2],fortran,float)",
		"darray(6,5,[10,9],[block(5),cyclic],[2,3],c,int)",
		"resized(-8,64,2real)",
	};
	char text[200];
	size_t length, n;

	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
		libcopy_type_t *type = parsed(all[i]), *again;
		unsigned char *bytes;

		GOOD(libcopy_type_flatten(type, NULL, 0, &length));
		bytes = malloc(length);
		EXPECT(libcopy_type_flatten(type, bytes, length - 1, &n) == LIBCOPY_EINVAL);
		GOOD(libcopy_type_flatten(type, bytes, length, &n));
		EXPECT(n == length);
		GOOD(libcopy_type_free(type));
		GOOD(libcopy_type_unflatten(bytes, length, &again));
		GOOD(libcopy_type_expression(again, text, sizeof(text), &n));
		EXPECT(!strcmp(text, all[i]));
		GOOD(libcopy_type_free(again));
		for (n = 0; n < length; n++) {
			EXPECT(libcopy_type_unflatten(bytes, n, &again) == LIBCOPY_EINVAL);
			bytes[n] ^= 0x20;
			EXPECT(libcopy_type_unflatten(bytes, length, &again) == LIBCOPY_EINVAL);
			EXPECT(!again && *libcopy_error_detail());
			bytes[n] ^= 0x20;
		}
		bytes[6] = 9;
		EXPECT(libcopy_type_unflatten(bytes, length, &again) == LIBCOPY_EINVAL);
		EXPECT(strstr(libcopy_error_detail(), "version 9"));
		free(bytes);
	}
	{
		libcopy_type_t *again;

		EXPECT(libcopy_type_unflatten(NULL, 0, &again) == LIBCOPY_EINVAL);
		EXPECT(libcopy_type_unflatten(NULL, 40, &again) == LIBCOPY_EINVAL);
	}
}

static void external(void)
{
	libcopy_type_t *type = parsed("resized(0,32,struct([2,1,1],[0,8,16],[int,double,wchar]))");
	struct {
		int pair[2];
		double number;
		wchar_t letter;
		char rest[8];
	} data[3], back[3];
	unsigned char packed[3 * 18 + 1];
	uint64_t size;
	size_t n;

	EXPECT(sizeof(*data) == 32);
	memset(data, 0, sizeof(data));
	memset(back, 0, sizeof(back));
	for (int i = 0; i < 3; i++) {
		data[i].pair[0] = 0x01020304 * (i + 1);
		data[i].pair[1] = -i;
		data[i].number = 1.5 * i;
		data[i].letter = 0x20ac + i;
	}
	GOOD(libcopy_type_external_size(3, type, &size));
	EXPECT(size == 54);
	GOOD(libcopy_type_pack_external(data, 3, type, packed, sizeof(packed), &n));
	EXPECT(n == 54);
	for (int i = 0; i < 3; i++) {
		const unsigned char *at = packed + 18 * i;

		for (int byte = 0; byte < 4; byte++) {
			EXPECT(at[byte] == (unsigned char)(data[i].pair[0] >> (24 - 8 * byte)));
			EXPECT(at[4 + byte] == (unsigned char)(data[i].pair[1] >> (24 - 8 * byte)));
		}
		for (int byte = 0; byte < 8; byte++)
			EXPECT(at[8 + byte] == ((unsigned char *)&data[i].number)[7 - byte]);
		EXPECT(at[16] == 0x20 && at[17] == 0xac + i);
	}
	GOOD(libcopy_type_unpack_external(packed, 54, back, 3, type, &n));
	EXPECT(n == 54 && !memcmp(data, back, sizeof(data)));
	EXPECT(libcopy_type_pack_external(data, 3, type, packed, 53, &n) == LIBCOPY_EINVAL);
	EXPECT(libcopy_type_unpack_external(packed, 53, back, 3, type, &n) == LIBCOPY_EINVAL);
	EXPECT(libcopy_type_pack_external(NULL, 3, type, packed, 54, &n) == LIBCOPY_EINVAL);
	data[0].letter = 0x1f600;
	EXPECT(libcopy_type_pack_external(data, 3, type, packed, 54, &n) == LIBCOPY_EINVAL);
	EXPECT(strstr(libcopy_error_detail(), "wide character"));
	GOOD(libcopy_type_free(type));
}

static int combined(int op, int a, int b)
{
	switch (op) {
	case LIBCOPY_REPLACE:
		return b;
	case LIBCOPY_SUM:
		return (int)((unsigned)a + (unsigned)b);
	case LIBCOPY_PROD:
		return (int)((unsigned)a * (unsigned)b);
	case LIBCOPY_MIN:
		return a < b ? a : b;
	case LIBCOPY_MAX:
		return a > b ? a : b;
	case LIBCOPY_LAND:
		return a && b;
	case LIBCOPY_LOR:
		return a || b;
	case LIBCOPY_LXOR:
		return !a != !b;
	case LIBCOPY_BAND:
		return a & b;
	case LIBCOPY_BOR:
		return a | b;
	default:
		return a ^ b;
	}
}

static void reductions(void)
{
	libcopy_type_t *ints = parsed(SOME), *doubles = parsed("vector(5000,1,3,double)");
	libcopy_type_t *mixed = parsed("double_int");
	static int matrix[CELLS], packed[CELLS], into[CELLS];
	static double wide[15000], narrow[5000];
	size_t n;

	for (int op = LIBCOPY_REPLACE; op <= LIBCOPY_BXOR; op++) {
		for (int i = 0; i < CELLS; i++) {
			matrix[i] = (int)below(7) * (int)below(1 << 20) - 99999;
			packed[i] = into[i] = (int)below(3) * (int)below(1 << 23);
		}
		/* In two ranges, the later one first. */
		GOOD(libcopy_type_pack_reduce(matrix, 1, ints, op, 1200, into + 300, 9999, &n));
		EXPECT(n == BYTES - 1200);
		GOOD(libcopy_type_pack_reduce(matrix, 1, ints, op, 0, into, 1200, &n));
		EXPECT(n == 1200);
		for (int i = 0; i < CELLS; i++)
			EXPECT(into[i] == combined(op, packed[i], matrix[places[4 * i] / 4]));
		memcpy(into, matrix, sizeof(matrix));
		GOOD(libcopy_type_unpack_reduce(packed, BYTES, into, 1, ints, op, 0, &n));
		EXPECT(n == BYTES);
		for (int i = 0; i < CELLS; i++) {
			int cell = (int)(places[4 * i] / 4);

			EXPECT(into[cell] == combined(op, matrix[cell], packed[i]));
		}
	}
	for (int i = 0; i < 15000; i++)
		wide[i] = i;
	for (int i = 0; i < 5000; i++)
		narrow[i] = 0.5 * i;
	GOOD(libcopy_type_pack_reduce(wide, 1, doubles, LIBCOPY_SUM, 0, narrow, sizeof(narrow), &n));
	for (int i = 0; i < 5000; i++)
		EXPECT(narrow[i] == 3.5 * i);
	GOOD(libcopy_type_unpack_reduce(narrow, sizeof(narrow), wide, 1, doubles, LIBCOPY_MAX, 0,
					&n));
	for (int i = 0; i < 15000; i++)
		EXPECT(wide[i] == (i % 3 ? i : 3.5 * (i / 3)));
	EXPECT(libcopy_type_pack_reduce(wide, 1, doubles, LIBCOPY_BAND, 0, narrow, 8, &n) ==
	       LIBCOPY_EINVAL);
	EXPECT(libcopy_type_pack_reduce(wide, 1, doubles, LIBCOPY_SUM, 4, narrow, 8, &n) ==
	       LIBCOPY_EINVAL);
	EXPECT(libcopy_type_pack_reduce(wide, 1, doubles, 77, 0, narrow, 8, &n) == LIBCOPY_EINVAL);
	EXPECT(libcopy_type_pack_reduce(wide, 1, mixed, LIBCOPY_SUM, 0, narrow, 12, &n) ==
	       LIBCOPY_EINVAL);
	GOOD(libcopy_type_pack_reduce(wide, 1, mixed, LIBCOPY_REPLACE, 0, narrow, 12, &n));
	EXPECT(n == 12);
	GOOD(libcopy_type_free(ints));
	GOOD(libcopy_type_free(doubles));
	GOOD(libcopy_type_free(mixed));
}

int main(void)
{
	oracle();
	cursors();
	questions();
	binary();
	external();
	reductions();
	return 0;
}
