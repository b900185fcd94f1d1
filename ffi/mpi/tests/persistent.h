// SPDX-License-Identifier: MIT OR Apache-2.0

/* Persistent collectives by the names that a library has for them. */
#if defined(OPEN_MPI) && OMPI_MAJOR_VERSION < 5
/* As they were called before MPI 4.0. */
#include <mpi-ext.h>
#define INIT(name) MPIX_##name##_init
#define PROFILED_INIT(name) PMPIX_##name##_init
#else
#define INIT(name) MPI_##name##_init
#define PROFILED_INIT(name) PMPI_##name##_init
#endif

/* Whether the types that a request was made with have to live as long as it does. */
#ifdef OPEN_MPI
#define NEEDS_TYPES 1
#else
#define NEEDS_TYPES 0
#endif
