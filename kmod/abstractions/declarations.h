/* SPDX-License-Identifier: GPL-2.0 */
/* What bindgen makes declarations for Rust from. */
#ifdef CONFIG_LIBCOPY_ENGINES
#include "../engine/dma.h"
#endif
#include "../base/params.h"
#include "shim.h"
