// SPDX-License-Identifier: MIT OR Apache-2.0

/* The class of an error code, as a number and in words. */
#include <mpi.h>

__attribute__((unused)) static int class_of(int code)
{
	int class = MPI_SUCCESS;
	if (code != MPI_SUCCESS)
		MPI_Error_class(code, &class);
	return class;
}

__attribute__((unused)) static const char *class_name(int code)
{
	int class = class_of(code);
	return class == MPI_SUCCESS ? "success" : class == MPI_ERR_TRUNCATE ? "truncate" :
	       class == MPI_ERR_IN_STATUS ? "in status" : class == MPI_ERR_PENDING ? "pending" : "other";
}
