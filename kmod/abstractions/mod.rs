// SPDX-License-Identifier: GPL-2.0

//! What the kernel crate has no abstraction for yet, with nothing of libcopy in it: each file would
//! be a patch to `rust/kernel`. `engine/dmaengine.rs` and `engine/leaving.rs` are of this kind,
//! too, and stand where a module without engines leaves them out.

pub(crate) mod declarations;
pub(crate) mod errno;
pub(crate) mod iov_iter;
pub(crate) mod irqlock;
pub(crate) mod miscdevice;
pub(crate) mod shim;
pub(crate) mod vm_operations;
