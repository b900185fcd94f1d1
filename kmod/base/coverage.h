/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the compiler has a basic block call, see coverage.c.
 */
#ifndef LIBCOPY_COVERAGE_H
#define LIBCOPY_COVERAGE_H

void __sanitizer_cov_trace_pc(void);

#endif
