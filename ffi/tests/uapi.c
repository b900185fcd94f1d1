// SPDX-License-Identifier: MIT OR Apache-2.0

/* The size in each command word is that of its structure, seen from C. */
#include <libcopy_uapi.h>
#include <sys/ioctl.h>

#define SAME(command, type)                                                                    \
	_Static_assert((command) == _IOWR(LIBCOPY_IOC_TYPE, (command) & 0xff, struct type),   \
		       #command " belongs to struct " #type)

SAME(LIBCOPY_GET_INFO, libcopy_info);
SAME(LIBCOPY_DOMAIN_CREATE, libcopy_domain_create);
SAME(LIBCOPY_DOMAIN_JOIN, libcopy_domain_join);
SAME(LIBCOPY_DOMAIN_LEAVE, libcopy_domain_leave);
SAME(LIBCOPY_REGION_CREATE, libcopy_region_create);
SAME(LIBCOPY_REGION_DESTROY, libcopy_region_destroy);
SAME(LIBCOPY_REGION_INFO, libcopy_region_info);
SAME(LIBCOPY_REGION_COPY, libcopy_region_copy);
SAME(LIBCOPY_REGION_ATTACH, libcopy_region_attach);

_Static_assert(LIBCOPY_MAX_REGION_BYTES > UINT32_MAX, "computed in 64 bits");
_Static_assert(sizeof(LIBCOPY_DEVICE_PATH) == 13, "a string");
