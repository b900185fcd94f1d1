// SPDX-License-Identifier: GPL-2.0

//! The functions and types of `dma.h`, `params.h` and `shim.h`, which the kernel crate's bindings
//! include (`rust/bindings/bindings_helper.h`).

pub(crate) use kernel::bindings::*;
