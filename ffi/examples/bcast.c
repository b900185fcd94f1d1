// SPDX-License-Identifier: MIT OR Apache-2.0

/* Broadcasts a buffer from rank 0 to everybody. */
#include <libcopy.h>
#include <stdio.h>
#include <string.h>

static int check(int code)
{
	if (code)
		fprintf(stderr, "%s: %s\n", libcopy_strerror(code), libcopy_error_detail());
	return code != 0;
}

int main(void)
{
	static char buffer[1 << 20];
	libcopy_team_t *team;
	size_t rank;

	if (check(libcopy_team_from_env(&team)) || check(libcopy_team_rank(team, &rank)))
		return 1;
	if (rank == 0)
		memset(buffer, 'x', sizeof(buffer));
	if (check(libcopy_team_bcast(team, buffer, sizeof(buffer), 0)))
		return 1;
	printf("rank %zu ends with %c\n", rank, buffer[sizeof(buffer) - 1]);
	return check(libcopy_team_free(team));
}
