/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Parameters, read anew for every use.
 */
#ifndef LIBCOPY_PARAMS_H
#define LIBCOPY_PARAMS_H

int libcopy_param_engine(void);
unsigned int libcopy_param_depth(void);
unsigned int libcopy_param_deadline_ms(void);
unsigned int libcopy_param_fragment_pages(void);
unsigned int libcopy_param_max_user_requests(void);

#endif
