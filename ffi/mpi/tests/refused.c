// SPDX-License-Identifier: MIT OR Apache-2.0

/* With -DLIBRARY, a library that looks like an MPI library from outside (with -DOPEN_MPI, -DMPICH
 * or neither, and with -DABI=N a version of the standard ABI, -1 for none), has no communicator at
 * all, and says what it is asked for; without, a program for it. */
#include <stdio.h>

#ifdef LIBRARY
#ifdef OPEN_MPI
char ompi_mpi_byte[64], ompi_mpi_info_null[64];
#endif
#ifdef MPICH
int MPIR_Dup_fn(void);
int MPIR_Dup_fn(void)
{
	return 0;
}
#endif
#ifdef ABI
int PMPI_Abi_get_version(int *major, int *minor);
int PMPI_Abi_get_version(int *major, int *minor)
{
	*major = ABI;
	*minor = ABI < 0 ? -1 : 0;
	return 0;
}
#endif
#define FUNCTION(name, ...)                           \
	int P##name(__VA_ARGS__);                     \
	int name(__VA_ARGS__) __attribute__((weak));  \
	int P##name(__VA_ARGS__)                      \
	{                                             \
		printf("%s\n", #name);                \
		return 0;                             \
	}                                             \
	int name(__VA_ARGS__)                         \
	{                                             \
		return 0;                             \
	}
FUNCTION(MPI_Init, int *argc, void *argv)
FUNCTION(MPI_Finalize, void)
FUNCTION(MPI_Bcast, void *bytes, int count, void *type, int root, void *comm)
FUNCTION(MPI_Send, const void *bytes, int count, void *type, int dest, int tag, void *comm)
FUNCTION(MPI_Pack, const void *in, int count, void *type, void *out, int size, int *at, void *comm)
#else
int MPI_Init(int *argc, void *argv);
int MPI_Finalize(void);
int MPI_Bcast(void *bytes, int count, void *type, int root, void *comm);
int MPI_Send(const void *bytes, int count, void *type, int dest, int tag, void *comm);
int MPI_Pack(const void *in, int count, void *type, void *out, int size, int *at, void *comm);

static char bytes[1 << 20];

int main(int argc, char **argv)
{
	/* No handle is one of any library's. */
	void *type = bytes + 1, *comm = bytes + 2;
	int at = 0;
	MPI_Init(&argc, &argv);
	MPI_Bcast(bytes, sizeof(bytes), type, 0, comm);
	MPI_Send(bytes, sizeof(bytes), type, 0, 0, comm);
	MPI_Pack(bytes, 100, type, bytes, sizeof(bytes), &at, comm);
	MPI_Finalize();
	return 0;
}
#endif
