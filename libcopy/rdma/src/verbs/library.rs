// SPDX-License-Identifier: MIT OR Apache-2.0

//! The functions of libibverbs and libmlx5, by dlopen(3): what is preloaded into programs must not
//! link them.

use std::ffi::{c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::sync::OnceLock;

use libloading::os::unix::Library;

use super::sys::{
    CompChannel, Context, DeviceAttr, GidEntry, Mlx5Mkey, Mlx5MkeyInitAttr, Mlx5QpEx,
    Mlx5QpInitAttr, Mr, Opaque, PortAttr, Qp, QpAttr, QpEx, QpInitAttr, QpInitAttrEx,
};
use crate::error::{Error, Result};

macro_rules! library {
    ($(#[$doc:meta])* $table:ident in $file:literal of $package:literal {
        $($name:ident = $symbol:literal ($($argument:ty),*) $(-> $result:ty)?;)*
    }) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $table {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl $table {
            /// Loads the library, once in a process.
            ///
            /// # Errors
            ///
            /// [`Error::Library`] if it cannot be loaded, [`Error::MissingFunction`] if it is too
            /// old.
            pub fn load() -> Result<&'static $table> {
                static TABLE: OnceLock<Result<$table>> = OnceLock::new();
                let table = TABLE.get_or_init(|| {
                    let library = open($file, $package)?;
                    Ok($table {
                        // SAFETY: the library's function of that name has this type (verbs.h,
                        // mlx5dv.h).
                        $($name: unsafe { function(&library, $file, $symbol)? },)*
                    })
                });
                table.as_ref().map_err(Clone::clone)
            }
        }
    };
}

library! {
    /// Functions of libibverbs.
    Verbs in "libibverbs.so.1" of "libibverbs1" {
        get_device_list = "ibv_get_device_list"(*mut c_int) -> *mut Opaque;
        free_device_list = "ibv_free_device_list"(*mut Opaque);
        get_device_name = "ibv_get_device_name"(Opaque) -> *const c_char;
        open_device = "ibv_open_device"(Opaque) -> *mut Context;
        close_device = "ibv_close_device"(*mut Context) -> c_int;
        query_device = "ibv_query_device"(*mut Context, *mut DeviceAttr) -> c_int;
        query_port = "ibv_query_port"(*mut Context, u8, *mut PortAttr) -> c_int;
        query_gid_ex = "_ibv_query_gid_ex"(*mut Context, u32, u32, *mut GidEntry, u32, usize) -> c_int;
        alloc_pd = "ibv_alloc_pd"(*mut Context) -> Opaque;
        dealloc_pd = "ibv_dealloc_pd"(Opaque) -> c_int;
        reg_mr = "ibv_reg_mr"(Opaque, *mut c_void, usize, c_int) -> *mut Mr;
        dereg_mr = "ibv_dereg_mr"(*mut Mr) -> c_int;
        create_comp_channel = "ibv_create_comp_channel"(*mut Context) -> *mut CompChannel;
        destroy_comp_channel = "ibv_destroy_comp_channel"(*mut CompChannel) -> c_int;
        create_cq = "ibv_create_cq"(*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> Opaque;
        destroy_cq = "ibv_destroy_cq"(Opaque) -> c_int;
        get_cq_event = "ibv_get_cq_event"(*mut CompChannel, *mut Opaque, *mut *mut c_void) -> c_int;
        ack_cq_events = "ibv_ack_cq_events"(Opaque, u32);
        create_qp = "ibv_create_qp"(Opaque, *mut QpInitAttr) -> *mut Qp;
        modify_qp = "ibv_modify_qp"(*mut Qp, *mut QpAttr, c_int) -> c_int;
        destroy_qp = "ibv_destroy_qp"(*mut Qp) -> c_int;
        qp_to_qp_ex = "ibv_qp_to_qp_ex"(*mut Qp) -> *mut QpEx;
        wc_status_str = "ibv_wc_status_str"(u32) -> *const c_char;
    }
}

library! {
    /// Functions of libmlx5.
    Mlx5 in "libmlx5.so.1" of "ibverbs-providers" {
        is_supported = "mlx5dv_is_supported"(Opaque) -> bool;
        create_qp = "mlx5dv_create_qp"(*mut Context, *mut QpInitAttrEx, *mut Mlx5QpInitAttr) -> *mut Qp;
        qp_ex_from_ibv_qp_ex = "mlx5dv_qp_ex_from_ibv_qp_ex"(*mut QpEx) -> *mut Mlx5QpEx;
        create_mkey = "mlx5dv_create_mkey"(*mut Mlx5MkeyInitAttr) -> *mut Mlx5Mkey;
        destroy_mkey = "mlx5dv_destroy_mkey"(*mut Mlx5Mkey) -> c_int;
    }
}

/// A library of the system, which stays loaded for ever.
fn open(file: &str, package: &'static str) -> Result<ManuallyDrop<Library>> {
    // SAFETY: its constructors may run in any program.
    let library = unsafe { Library::open(Some(file), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    let library = library.map_err(|reason| Error::Library {
        library: file.to_owned(),
        reason: reason.to_string(),
        package,
    })?;
    Ok(ManuallyDrop::new(library))
}

/// A function of it.
///
/// # Safety
///
/// `F` is the type of a pointer to it.
unsafe fn function<F: Copy>(
    library: &Library,
    file: &'static str,
    function: &'static str,
) -> Result<F> {
    // SAFETY: the caller's promise; null is none.
    let found = unsafe { library.get::<Option<F>>(function.as_bytes()) };
    let found = found.ok().and_then(|found| *found);
    found.ok_or(Error::MissingFunction {
        library: file,
        function,
    })
}

/// What `errno` says of a function that failed.
pub(crate) fn failed(function: &'static str) -> Error {
    let errno = std::io::Error::last_os_error().raw_os_error();
    Error::Verbs {
        function,
        errno: errno.unwrap_or(0),
    }
}

/// Turns a function's error number into a result. Verbs return `errno` and not -1, but a few do the
/// latter.
pub(crate) fn check(function: &'static str, code: c_int) -> Result<()> {
    match code {
        0 => Ok(()),
        -1 => Err(failed(function)),
        errno => Err(Error::Verbs {
            function,
            errno: errno.abs(),
        }),
    }
}
