// SPDX-License-Identifier: MIT OR Apache-2.0

//! Whether several threads may call MPI at the same time (MPI 4.1, section 11.6).

use std::sync::OnceLock;

use crate::library::abi::Abi;
use crate::library::pmpi;
use crate::library::requests::Role;

/// Whether they may, so that one may receive what another one has found. The library is asked once.
#[inline(always)]
pub fn are_several(abi: &Abi) -> bool {
    Role::Threads.exists() && ask(abi)
}

/// The same where it is not known that there is one.
#[cold]
#[inline(never)]
fn ask(abi: &Abi) -> bool {
    static SEVERAL: OnceLock<bool> = OnceLock::new();
    if let Some(are_several) = SEVERAL.get() {
        return *are_several;
    }
    let mut provided = abi.thread_multiple;
    // SAFETY: a writable output.
    let code = unsafe { pmpi::query_thread(&mut provided) };
    let are_several = provided >= abi.thread_multiple;
    if code == 0 {
        let _ = SEVERAL.set(are_several);
        Role::Threads.set(are_several);
    }
    are_several
}
