/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/* What libcopy_mpi.so has beyond MPI. The functions are there only where the library is preloaded:
 * programs that may run without it compare them with NULL, and call MPI_Type_commit and
 * MPI_Type_free otherwise.
 */
#ifndef LIBCOPY_MPIX_H
#define LIBCOPY_MPIX_H

#include <mpi.h>

#ifdef __cplusplus
extern "C" {
#endif

/* MPI_Type_commit by all processes of `comm` together ("FALCON-X", section 6.2): all get to know
 * each other's layout of the type, so that no message of it has to send one, not even the first.
 * The layouts may differ. Returns what MPI_Type_commit returns. */
__attribute__((weak)) int MPIX_Type_commit_comm(MPI_Datatype *datatype, MPI_Comm comm);

/* MPI_Type_free by all processes of `comm` together. */
__attribute__((weak)) int MPIX_Type_free_comm(MPI_Datatype *datatype, MPI_Comm comm);

#ifdef __cplusplus
}
#endif

#endif
