// SPDX-License-Identifier: MIT OR Apache-2.0

/* Every function of the C API in a team of one, and what it says to wrong arguments. */
#include "expect.h"

int main(void)
{
	static const uint8_t key[LIBCOPY_KEY_LENGTH] = { 1, 2, 3 };
	libcopy_team_t *team = (libcopy_team_t *)key;
	char a[16] = "abcdefghijklmno", b[16] = "";
	size_t rank = 9, size = 9;

	EXPECT(libcopy_team_join(key, 3, 2, &team) == LIBCOPY_EINVAL);
	EXPECT(team == NULL && strstr(libcopy_error_detail(), "3"));
	EXPECT(libcopy_team_join(NULL, 0, 1, &team) == LIBCOPY_EINVAL);
	EXPECT(libcopy_team_from_env(NULL) == LIBCOPY_EINVAL);
	EXPECT(libcopy_team_barrier(NULL) == LIBCOPY_EINVAL);
	EXPECT(libcopy_team_free(NULL) == LIBCOPY_OK);

	EXPECT(libcopy_team_from_env(&team) == LIBCOPY_OK);
	EXPECT(libcopy_team_rank(team, &rank) == LIBCOPY_OK && rank == 0);
	EXPECT(libcopy_team_size(team, &size) == LIBCOPY_OK && size == 1);
	EXPECT(libcopy_team_barrier(team) == LIBCOPY_OK);
	EXPECT(libcopy_team_bcast(team, a, sizeof(a), 0) == LIBCOPY_OK);
	EXPECT(libcopy_team_gather(team, a, sizeof(a), 0, b) == LIBCOPY_OK && !memcmp(a, b, 16));
	memset(b, 0, sizeof(b));
	EXPECT(libcopy_team_scatter(team, a, sizeof(a), 0, b) == LIBCOPY_OK && !memcmp(a, b, 16));
	memset(b, 0, sizeof(b));
	EXPECT(libcopy_team_allgather(team, a, sizeof(a), b) == LIBCOPY_OK && !memcmp(a, b, 16));
	EXPECT(libcopy_team_bcast(team, NULL, 0, 0) == LIBCOPY_OK);

	EXPECT(libcopy_team_bcast(team, NULL, 1, 0) == LIBCOPY_EINVAL);
	EXPECT(libcopy_team_gather(team, a, 8, 0, a + 4) == LIBCOPY_EINVAL);
	EXPECT(strstr(libcopy_error_detail(), "overlap"));
	EXPECT(libcopy_team_allgather(team, a, (size_t)-1, b) == LIBCOPY_EINVAL);
	EXPECT(libcopy_team_set_transport(team, "pigeon") == LIBCOPY_EINVAL);
	EXPECT(strstr(libcopy_error_detail(), "pigeon"));
	EXPECT(libcopy_team_set_transport(team, NULL) == LIBCOPY_OK);
	/* Last: an operation that failed on one rank leaves the team broken. */
	EXPECT(libcopy_team_bcast(team, a, sizeof(a), 1) == LIBCOPY_EINVAL);
	EXPECT(libcopy_team_free(team) == LIBCOPY_OK);

	EXPECT(!strcmp(libcopy_strerror(LIBCOPY_OK), "success"));
	EXPECT(strcmp(libcopy_strerror(LIBCOPY_EPEER), libcopy_strerror(-1000)));
	return 0;
}
