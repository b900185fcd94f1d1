// SPDX-License-Identifier: MIT OR Apache-2.0

/* What the tests of the C API among several ranks have in common. */
#include <libcopy.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static libcopy_team_t *team;
static size_t rank, size;

#define EXPECT(condition)                                                                      \
	do {                                                                                   \
		if (!(condition)) {                                                            \
			fprintf(stderr, "rank %zu, line %d: not %s (detail: %s)\n", rank,      \
				__LINE__, #condition, libcopy_error_detail());                 \
			exit(1);                                                               \
		}                                                                              \
	} while (0)
