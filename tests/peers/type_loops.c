// SPDX-License-Identifier: MIT OR Apache-2.0

/*
 * Packs and unpacks the layouts of `libcopy bench types` with loops as a person would write them
 * into an application, compiled for this machine: nested loops over rows whose length the compiler
 * knows, index lists, transposes in blocks. One of the peers; see type_peer.h.
 *
 *   boxes N   (OFFSET BLOCK  N1 STRIDE1  N2 STRIDE2  N3 STRIDE3) * N    innermost first
 *   index N   (OFFSET BLOCK  COUNT INDEX...) * N                        of elements of BLOCK bytes
 *   lengths N (OFFSET LENGTH) * N                                       of doubles
 *   columns   OFFSET ROWS STRIDE COLUMNS                                of elements of 16 bytes
 */
#include "type_peer.h"

struct box {
	long long offset;
	long block, n[3], stride[3];
};

struct list {
	long long offset;
	long block, count;
	int *index;
};

/* Doubles of a block, and where it is. */
struct piece {
	int offset, length;
};

static struct box *boxes;
static struct piece *pieces;
static long piece_count;
static struct list *lists;
static long box_count, list_count;
static long columns_rows, columns_stride, columns;
static long long columns_offset;

typedef struct {
	double re, im;
} element;

#define BLOCKED 16

static inline __attribute__((always_inline)) void move(unsigned char *u, unsigned char *p,
						       size_t bytes, int unpack)
{
	if (unpack)
		memcpy(u, p, bytes);
	else
		memcpy(p, u, bytes);
}

/* The loops of one box; `block` and, where it matters, the stride are constants when inlined. */
static inline __attribute__((always_inline)) unsigned char *
rows(const struct box *b, unsigned char *restrict user_at, unsigned char *restrict packed_at,
     size_t block, long stride, int unpack)
{
	const long n1 = b->n[0], n2 = b->n[1], n3 = b->n[2];

	for (long k = 0; k < n3; k++)
		for (long j = 0; j < n2; j++) {
			unsigned char *u = user_at + k * b->stride[2] + j * b->stride[1];

			for (long i = 0; i < n1; i++)
				move(u + i * stride, packed_at + (size_t)i * block, block, unpack);
			packed_at += (size_t)n1 * block;
		}
	return packed_at;
}

/* The same for elements of a type that the compiler may turn into vectors. */
#define TYPED(name, type)                                                                      \
	static inline __attribute__((always_inline)) unsigned char *name(                      \
		const struct box *b, unsigned char *user_at, unsigned char *packed_at,         \
		long stride, int unpack)                                                       \
	{                                                                                      \
		const long n1 = b->n[0], n2 = b->n[1], n3 = b->n[2];                           \
		type *restrict p = (type *)packed_at;                                          \
                                                                                               \
		for (long k = 0; k < n3; k++)                                                  \
			for (long j = 0; j < n2; j++) {                                        \
				type *restrict u = (type *)(user_at + k * b->stride[2] +       \
							    j * b->stride[1]);                 \
                                                                                               \
				if (unpack)                                                    \
					for (long i = 0; i < n1; i++)                          \
						u[i * stride] = p[i];                          \
				else                                                           \
					for (long i = 0; i < n1; i++)                          \
						p[i] = u[i * stride];                          \
				p += n1;                                                       \
			}                                                                      \
		return (unsigned char *)p;                                                     \
	}

TYPED(floats, float)
TYPED(doubles, double)

static inline __attribute__((always_inline)) void all_boxes(int unpack)
{
	unsigned char *p = packed.data;

	for (long i = 0; i < box_count; i++) {
		const struct box *b = &boxes[i];
		unsigned char *u = user.data + origin + b->offset;
		long stride = b->stride[0];

		switch (b->block) {
		case 4:
			p = stride == 8 ? floats(b, u, p, 2, unpack) :
					  floats(b, u, p, stride / 4, unpack);
			break;
		case 8:
			p = stride == 16 ? doubles(b, u, p, 2, unpack) :
					   doubles(b, u, p, stride / 8, unpack);
			break;
#define KNOWN(bytes)                                                                           \
	case bytes:                                                                            \
		p = rows(b, u, p, bytes, stride, unpack);                                      \
		break;
			KNOWN(12)
			KNOWN(16)
			KNOWN(24)
			KNOWN(32)
			KNOWN(40)
			KNOWN(47)
			KNOWN(48)
			KNOWN(64)
			KNOWN(92)
			KNOWN(128)
			KNOWN(256)
		default:
			p = rows(b, u, p, (size_t)b->block, stride, unpack);
		}
	}
}

static inline __attribute__((always_inline)) void one_list(const struct list *l,
							   unsigned char *restrict u,
							   unsigned char *restrict p, size_t block,
							   int unpack)
{
	const int *restrict index = l->index;

	for (long i = 0; i < l->count; i++)
		move(u + (long)index[i] * (long)block, p + (size_t)i * block, block, unpack);
}

static inline __attribute__((always_inline)) void all_lists(int unpack)
{
	unsigned char *p = packed.data;

	for (long i = 0; i < list_count; i++) {
		const struct list *l = &lists[i];
		unsigned char *u = user.data + origin + l->offset;

		switch (l->block) {
		case 4:
			one_list(l, u, p, 4, unpack);
			break;
		case 8:
			one_list(l, u, p, 8, unpack);
			break;
		case 12:
			one_list(l, u, p, 12, unpack);
			break;
		case 24:
			one_list(l, u, p, 24, unpack);
			break;
		default:
			one_list(l, u, p, (size_t)l->block, unpack);
		}
		p += l->count * l->block;
	}
}

static inline __attribute__((always_inline)) void all_pieces(int unpack)
{
	double *restrict u = (double *)(user.data + origin);
	double *restrict p = (double *)packed.data;

	for (long i = 0; i < piece_count; i++) {
		const long at = pieces[i].offset, n = pieces[i].length;

		for (long k = 0; k < n; k++) {
			if (unpack)
				u[at + k] = p[k];
			else
				p[k] = u[at + k];
		}
		p += n;
	}
}

/* In squares: the lines of cache that the columns touch are used up before they are lost. */
static inline __attribute__((always_inline)) void all_columns(int unpack)
{
	element *restrict p = (element *)packed.data;
	element *restrict u = (element *)(user.data + origin + columns_offset);
	const long stride = columns_stride / (long)sizeof(element);

	for (long j = 0; j < columns; j += BLOCKED)
		for (long i = 0; i < columns_rows; i += BLOCKED) {
			long right = j + BLOCKED < columns ? j + BLOCKED : columns;
			long below = i + BLOCKED < columns_rows ? i + BLOCKED : columns_rows;

			for (long y = j; y < right; y++)
				for (long x = i; x < below; x++) {
					if (unpack)
						u[x * stride + y] = p[y * columns_rows + x];
					else
						p[y * columns_rows + x] = u[x * stride + y];
				}
		}
}

static void pack(void)
{
	if (columns)
		all_columns(0);
	else if (list_count)
		all_lists(0);
	else if (piece_count)
		all_pieces(0);
	else
		all_boxes(0);
}

static void unpack(void)
{
	if (columns)
		all_columns(1);
	else if (list_count)
		all_lists(1);
	else if (piece_count)
		all_pieces(1);
	else
		all_boxes(1);
}

static long long number(const char **text)
{
	char *end;
	long long value = strtoll(*text, &end, 10);

	if (end == *text) {
		errno = EINVAL;
		die("a loop has too few numbers");
	}
	*text = end;
	return value;
}

static const char *loop(const char *text)
{
	for (long i = 0; i < list_count; i++)
		free(lists[i].index);
	box_count = list_count = piece_count = columns = 0;
	if (!strncmp(text, "boxes ", 6)) {
		text += 6;
		box_count = (long)number(&text);
		boxes = realloc(boxes, (size_t)box_count * sizeof(*boxes));
		if (!boxes)
			die("realloc");
		for (struct box *b = boxes; b < boxes + box_count; b++) {
			b->offset = number(&text);
			b->block = (long)number(&text);
			for (int d = 0; d < 3; d++) {
				b->n[d] = (long)number(&text);
				b->stride[d] = (long)number(&text);
			}
		}
	} else if (!strncmp(text, "index ", 6)) {
		text += 6;
		list_count = (long)number(&text);
		lists = realloc(lists, (size_t)list_count * sizeof(*lists));
		if (!lists)
			die("realloc");
		for (struct list *l = lists; l < lists + list_count; l++) {
			l->offset = number(&text);
			l->block = (long)number(&text);
			l->count = (long)number(&text);
			l->index = malloc((size_t)l->count * sizeof(*l->index));
			if (!l->index)
				die("malloc");
			for (long i = 0; i < l->count; i++)
				l->index[i] = (int)number(&text);
		}
	} else if (!strncmp(text, "lengths ", 8)) {
		text += 8;
		piece_count = (long)number(&text);
		pieces = realloc(pieces, (size_t)piece_count * sizeof(*pieces));
		if (!pieces)
			die("realloc");
		for (struct piece *one = pieces; one < pieces + piece_count; one++) {
			one->offset = (int)number(&text);
			one->length = (int)number(&text);
		}
	} else if (!strncmp(text, "columns ", 8)) {
		text += 8;
		columns_offset = number(&text);
		columns_rows = (long)number(&text);
		columns_stride = (long)number(&text);
		columns = (long)number(&text);
	} else {
		return "unknown kind of loop";
	}
	return NULL;
}

int main(int argc, char **argv)
{
	const struct peer c = { .loop = loop, .pack = pack, .unpack = unpack };

	if (argc != 3 || strcmp(argv[1], "--control")) {
		fprintf(stderr, "usage: type_loops --control SOCKET (see `libcopy bench types`)\n");
		return 2;
	}
	obey(argv[2], "loops compiled by " __VERSION__, &c);
	return 0;
}
