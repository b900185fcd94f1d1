// SPDX-License-Identifier: MIT OR Apache-2.0

/* What the tests of the C API in one process have in common. */
#include <libcopy.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPECT(condition)                                                                      \
	do {                                                                                   \
		if (!(condition)) {                                                            \
			fprintf(stderr, "line %d: not %s (detail: %s)\n", __LINE__,            \
				#condition, libcopy_error_detail());                           \
			exit(1);                                                               \
		}                                                                              \
	} while (0)
#define GOOD(call) EXPECT((call) == LIBCOPY_OK)

static inline libcopy_type_t *parsed(const char *expression)
{
	libcopy_type_t *type = NULL;

	GOOD(libcopy_type_parse(expression, &type));
	return type;
}
