/* SPDX-License-Identifier: GPL-2.0 */
/* What bindgen makes declarations for Rust from. */
#include "../engine/dma.h"
#include "params.h"
#include "shim.h"
