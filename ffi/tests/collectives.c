// SPDX-License-Identifier: MIT OR Apache-2.0

/* Every collective of the C API among several ranks, with equal parts and parts of different
 * lengths that lie apart and out of order, in place and not, from every root. */
#include "ranks.h"

enum { MOST = 8, GAP = 7, UNTOUCHED = 0x5a };

static size_t counts[MOST], offsets[MOST], whole;

/* The byte at `i` of what rank `from` contributes in one step of the test. */
static unsigned char byte_of(size_t from, size_t i, unsigned step)
{
	return (unsigned char)(from * 31 + i * 7 + step * 101 + (i >> 8));
}

/* Divides a buffer: rank 0's part comes last, and nothing touches. */
static void divide(size_t length, int equal)
{
	whole = 0;
	for (size_t i = 0; i < size; i++) {
		size_t r = equal ? i : size - 1 - i;

		counts[r] = equal ? length : length * (r + 1) / size;
		whole += equal ? 0 : GAP;
		offsets[r] = whole;
		whole += counts[r];
	}
}

static void fill_part(unsigned char *buffer, size_t r, unsigned step)
{
	for (size_t i = 0; i < counts[r]; i++)
		buffer[offsets[r] + i] = byte_of(r, i, step);
}

/* What a buffer looks like that has the parts of all ranks, or of `only` one. */
static void fill(unsigned char *buffer, unsigned step, size_t only)
{
	memset(buffer, UNTOUCHED, whole);
	for (size_t r = 0; r < size; r++)
		if (only == MOST || only == r)
			fill_part(buffer, r, step);
}

static void gathers(size_t length, size_t root, int equal)
{
	unsigned char *want, *all, *mine;
	unsigned step = (unsigned)(root + length);

	divide(length, equal);
	want = malloc(whole + 1);
	all = malloc(whole + 1);
	mine = malloc(counts[rank] + 1);
	for (size_t i = 0; i < counts[rank]; i++)
		mine[i] = byte_of(rank, i, step);
	fill(want, step, MOST);

	/* To one: only the root may need what describes the parts. */
	memset(all, UNTOUCHED, whole);
	if (equal)
		EXPECT(!libcopy_team_gather(team, mine, length, root, all));
	else if (rank == root)
		EXPECT(!libcopy_team_gatherv(team, mine, counts[rank], counts, offsets, root, all));
	else
		EXPECT(!libcopy_team_gatherv(team, mine, counts[rank], NULL, NULL, root, NULL));
	if (rank == root)
		EXPECT(!memcmp(all, want, whole));

	fill(all, step, rank);
	if (equal)
		EXPECT(!libcopy_team_gather_in_place(team, rank == root ? all : mine, length, root));
	else if (rank == root)
		EXPECT(!libcopy_team_gatherv_in_place(team, all, 0, counts, offsets, root));
	else
		EXPECT(!libcopy_team_gatherv_in_place(team, mine, counts[rank], NULL, NULL, root));
	if (rank == root)
		EXPECT(!memcmp(all, want, whole));

	/* To all. */
	memset(all, UNTOUCHED, whole);
	if (equal)
		EXPECT(!libcopy_team_allgather(team, mine, length, all));
	else
		EXPECT(!libcopy_team_allgatherv(team, mine, counts[rank], counts, offsets, all));
	EXPECT(!memcmp(all, want, whole));
	fill(all, step, rank);
	if (equal)
		EXPECT(!libcopy_team_allgather_in_place(team, all, length));
	else
		EXPECT(!libcopy_team_allgatherv_in_place(team, all, counts, offsets));
	EXPECT(!memcmp(all, want, whole));
	free(want);
	free(all);
	free(mine);
}

static void scatters(size_t length, size_t root, int equal)
{
	unsigned char *all, *copy, *mine;
	unsigned step = (unsigned)(root + length + 50);

	divide(length, equal);
	all = malloc(whole + 1);
	copy = malloc(whole + 1);
	mine = malloc(counts[rank] + 1);
	fill(all, step, MOST);
	fill(copy, step, MOST);

	mine[counts[rank]] = UNTOUCHED;
	for (int in_place = 0; in_place < 2; in_place++) {
		memset(mine, 0, counts[rank]);
		if (!in_place && equal)
			EXPECT(!libcopy_team_scatter(team, rank == root ? all : NULL, length, root,
						     mine));
		else if (!in_place && rank == root)
			EXPECT(!libcopy_team_scatterv(team, all, counts, offsets, counts[rank],
						      root, mine));
		else if (!in_place)
			EXPECT(!libcopy_team_scatterv(team, NULL, NULL, NULL, counts[rank], root,
						      mine));
		else if (equal)
			EXPECT(!libcopy_team_scatter_in_place(team, rank == root ? all : mine,
							      length, root));
		else if (rank == root)
			EXPECT(!libcopy_team_scatterv_in_place(team, all, 0, counts, offsets,
							       root));
		else
			EXPECT(!libcopy_team_scatterv_in_place(team, mine, counts[rank], NULL,
							       NULL, root));
		EXPECT(mine[counts[rank]] == UNTOUCHED);
		EXPECT(!memcmp(all, copy, whole));
		if (in_place && rank == root)
			continue;
		for (size_t i = 0; i < counts[rank]; i++)
			EXPECT(mine[i] == byte_of(rank, i, step));
	}
	free(all);
	free(copy);
	free(mine);
}

/* What can be said about arguments without asking the others leaves the team whole. */
static void refusals(void)
{
	size_t far[MOST];
	char buffer[64] = "";

	divide(8, 1);
	for (size_t i = 0; i < MOST; i++)
		far[i] = (size_t)-4;
	EXPECT(libcopy_team_allgatherv(team, buffer, 8, NULL, offsets, buffer + 8) ==
	       LIBCOPY_EINVAL);
	EXPECT(libcopy_team_allgatherv(team, buffer, 8, counts, NULL, buffer + 8) ==
	       LIBCOPY_EINVAL);
	EXPECT(strstr(libcopy_error_detail(), "offsets is null"));
	EXPECT(libcopy_team_allgatherv(team, buffer, 8, counts, far, buffer + 8) ==
	       LIBCOPY_EINVAL);
	EXPECT(libcopy_team_allgatherv_in_place(team, NULL, counts, offsets) == LIBCOPY_EINVAL);
	EXPECT(libcopy_team_allgatherv(team, buffer + 4, 8, counts, offsets, buffer) ==
	       LIBCOPY_EINVAL);
	EXPECT(strstr(libcopy_error_detail(), "overlap"));
	EXPECT(libcopy_team_gatherv(team, buffer, 8, NULL, NULL, rank, buffer + 8) ==
	       LIBCOPY_EINVAL);
	EXPECT(libcopy_team_scatterv(team, buffer, NULL, NULL, 8, rank, buffer + 8) ==
	       LIBCOPY_EINVAL);
	EXPECT(libcopy_team_gather_in_place(team, NULL, 1, rank) == LIBCOPY_EINVAL);
	EXPECT(libcopy_team_scatter_in_place(team, buffer, (size_t)-1, rank) == LIBCOPY_EINVAL);
	EXPECT(libcopy_team_allgather_in_place(team, buffer, (size_t)-1) == LIBCOPY_EINVAL);
	EXPECT(libcopy_team_gatherv_in_place(team, NULL, 0, NULL, NULL, rank) == LIBCOPY_EINVAL);
	EXPECT(libcopy_team_scatterv_in_place(team, NULL, 0, NULL, NULL, rank) == LIBCOPY_EINVAL);
	EXPECT(libcopy_team_allgather_in_place(NULL, buffer, 1) == LIBCOPY_EINVAL);
}

int main(void)
{
	static const size_t lengths[] = { 0, 1, 100, 5000, 70000, 600000 };
	size_t overlapping[MOST] = { 0 };
	char buffer[64] = "";

	EXPECT(!libcopy_team_from_env(&team));
	EXPECT(!libcopy_team_rank(team, &rank) && !libcopy_team_size(team, &size));
	EXPECT(size <= MOST);
	refusals();
	for (size_t l = 0; l < sizeof(lengths) / sizeof(*lengths); l++) {
		for (size_t root = 0; root < size; root++) {
			for (int equal = 0; equal < 2; equal++) {
				gathers(lengths[l], root, equal);
				scatters(lengths[l], root, equal);
			}
		}
	}
	/* With a copy engine these return early; whether there is one makes no difference here. */
	EXPECT(libcopy_team_set_async(team, "sometimes") == LIBCOPY_EINVAL);
	EXPECT(libcopy_team_set_async(team, NULL) == LIBCOPY_EINVAL);
	EXPECT(!libcopy_team_set_async(team, "engine"));
	gathers(lengths[sizeof(lengths) / sizeof(*lengths) - 1], 0, 1);
	EXPECT(!libcopy_settle(buffer, 1));
	EXPECT(!libcopy_settle_all());
	EXPECT(libcopy_is_settled(buffer, 1));
	EXPECT(!libcopy_team_set_async(team, "off"));
	/* Last, since it breaks the team, also for a rank that is late: parts that would be written
	 * twice.
	 */
	EXPECT(!libcopy_team_barrier(team));
	divide(8, 1);
	if (size > 1)
		EXPECT(libcopy_team_allgatherv_in_place(team, buffer, counts, overlapping) < 0);
	EXPECT(!libcopy_team_free(team));
	printf("rank %zu is done\n", rank);
	return 0;
}
