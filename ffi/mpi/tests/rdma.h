/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/* What the programs of typed messages between machines (rdma*.c) have in common. */
#include <libcopy_mpix.h>
#include <stdint.h>
#include <stdio.h>

enum {
	SIZE = 61440, /* bytes of an element of each type */
	OWN = 3936,   /* bytes of a header on the wire */
};

static long wrong, wrong_status;

static inline uint64_t next(uint64_t *state)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return *state >> 33;
}

/* The byte of a message at `i'. */
static inline unsigned char stream(uint64_t message, size_t i)
{
	return (message * 0x9e3779b97f4a7c15u + i * 0xff51afd7ed558ccdu) >> 56;
}

/* `inner', which is freed, with `span' bytes from element to element; committed together where that
 * can be. */
static inline void commit(MPI_Datatype inner, MPI_Aint span, MPI_Datatype *type, MPI_Comm comm)
{
	MPI_Type_create_resized(inner, 0, span, type);
	MPI_Type_free(&inner);
	if (MPIX_Type_commit_comm)
		MPIX_Type_commit_comm(type, comm);
	else
		MPI_Type_commit(type);
}

/* The same of SIZE bytes in blocks of `len' every `stride'. */
static inline void commit_blocks(int len, int stride, MPI_Aint span, MPI_Datatype *type, MPI_Comm comm)
{
	MPI_Datatype inner;
	MPI_Type_vector(SIZE / len, len, stride, MPI_BYTE, &inner);
	commit(inner, span, type, comm);
}

/* Frees what was committed together. */
static inline void free_together(MPI_Datatype *type, MPI_Comm comm)
{
	if (MPIX_Type_free_comm)
		MPIX_Type_free_comm(type, comm);
	else
		MPI_Type_free(type);
}

/* The line of a rank that tests look for. */
static inline void print_result(int rank, int rounds)
{
	printf("rank %d: %d rounds, %ld bytes wrong, %ld statuses wrong\n", rank, rounds, wrong, wrong_status);
}
