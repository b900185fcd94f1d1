/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Says in which file some functions of the C library are that this program, which uses libcopy,
 * calls.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <libcopy.h>
#include <stdio.h>
#include <unistd.h>

int main(void)
{
	static const char *const names[] = { "read", "free", "_exit", "execve" };
	libcopy_team_t *team;
	const unsigned char key[LIBCOPY_KEY_LENGTH] = { 0 };
	Dl_info info;

	/* So that a linker keeps the libraries that leaves out what is not needed. */
	if (libcopy_team_join(key, 0, 0, &team) == 0 || read(-1, &info, 1) != -1)
		return 1;
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		if (!dladdr(dlsym(RTLD_DEFAULT, names[i]), &info))
			return 1;
		printf("%s: %s\n", names[i], info.dli_fname);
	}
	return 0;
}
