// SPDX-License-Identifier: MIT OR Apache-2.0

//! The handlers with C names, for runtimes of cards.
//!
//! Each handler exists twice: `libcopy_nic_NAME` calls functions of a [`Device`],
//! `libcopy_nic_port_NAME` stores commands to the registers of a [`port::Port`], inline.
//! `include/libcopy_nic_handlers.h` has the same declarations.

#![allow(unsafe_code)]

use core::ffi::c_void;
use core::slice;

use libcopy_walk::Image;

use crate::{Nic, Packet, Segment, Specialised};

/// What a handler gets: `struct libcopy_nic_call`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Call {
    /// The image's words, in the memory of the card.
    pub image: *const u32,
    /// How many words.
    pub words: u32,
    /// Bytes of the message before the packet.
    pub position: u32,
    /// Bytes of the packet.
    pub len: u32,
    /// Bytes between two checkpoints (RO-CP).
    pub interval: u32,
    /// The segment of the virtual HPU (HPU-local), or the checkpoint that it owns (RW-CP).
    pub state: *mut Segment,
    /// All checkpoints (RO-CP), or the master copy of the one checkpoint (RW-CP).
    pub checkpoints: *const Segment,
    /// How many checkpoints there are (RO-CP).
    pub count: u32,
}

impl Call {
    fn packet(&self) -> Packet {
        Packet {
            position: self.position,
            len: self.len,
        }
    }

    /// # Safety
    ///
    /// `image` points to `words` words, which live as long as `'a` and do not change.
    unsafe fn image<'a>(&self) -> Image<'a> {
        // SAFETY: this function's own condition.
        Image::trusted(unsafe { slice::from_raw_parts(self.image, self.words as usize) })
    }

    /// # Safety
    ///
    /// `checkpoints` points to `count` states, which live as long as `'a` and do not change.
    unsafe fn checkpoints<'a>(&self) -> &'a [Segment] {
        // SAFETY: this function's own condition.
        unsafe { slice::from_raw_parts(self.checkpoints, self.count as usize) }
    }
}

/// The functions of a card: `struct libcopy_nic_device`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Device {
    /// First argument of all functions.
    pub context: *mut c_void,
    /// [`Nic::dma_to_host`].
    pub dma_to_host: unsafe extern "C" fn(*mut c_void, host: i32, packet: u32, len: u32),
    /// [`Nic::dma_event`].
    pub dma_event: unsafe extern "C" fn(*mut c_void),
    /// [`Nic::stream_put`]; `is_end` is 0 or 1.
    pub stream_put:
        unsafe extern "C" fn(*mut c_void, host: i32, position: u32, len: u32, is_end: u32),
}

impl Nic for &Device {
    fn dma_to_host(&mut self, host: i32, packet: u32, len: u32) {
        // SAFETY: the caller of the handler passed functions for this context (`libcopy_nic_call`
        // functions' condition).
        unsafe { (self.dma_to_host)(self.context, host, packet, len) }
    }

    fn dma_event(&mut self) {
        // SAFETY: as in `dma_to_host`.
        unsafe { (self.dma_event)(self.context) }
    }

    fn stream_put(&mut self, host: i32, position: u32, len: u32, is_end: bool) {
        // SAFETY: as in `dma_to_host`.
        unsafe { (self.stream_put)(self.context, host, position, len, u32::from(is_end)) }
    }
}

/// Commands as stores to registers.
pub mod port {
    use crate::Nic;

    /// The registers: `struct libcopy_nic_port`. A command is issued by the store to `command`,
    /// which comes last.
    #[derive(Debug)]
    #[repr(C)]
    pub struct Port {
        /// Bytes from the origin of the buffer in host memory.
        pub host: i32,
        /// Where in the packet's payload, or in the message (stream put).
        pub position: u32,
        /// The number of bytes, and the kind of the command.
        pub command: u32,
    }

    /// In `command`: the write makes an event. Without it and [`STREAM_PUT`], it is a write to the
    /// host without one.
    pub const EVENT: u32 = 1 << 31;
    /// In `command`: a stream put.
    pub const STREAM_PUT: u32 = 1 << 30;
    /// In `command`: a stream put with the last bytes of the message.
    pub const END: u32 = 1 << 29;

    /// A handler's port.
    #[derive(Clone, Copy, Debug)]
    pub struct Registers(pub(super) *mut Port);

    impl Registers {
        #[inline(always)]
        fn issue(self, host: i32, position: u32, command: u32) {
            // SAFETY: the caller of the handler passed registers, or memory, that may be written.
            unsafe {
                (&raw mut (*self.0).host).write_volatile(host);
                (&raw mut (*self.0).position).write_volatile(position);
                (&raw mut (*self.0).command).write_volatile(command);
            }
        }
    }

    impl Nic for Registers {
        #[inline(always)]
        fn dma_to_host(&mut self, host: i32, packet: u32, len: u32) {
            self.issue(host, packet, len);
        }

        #[inline(always)]
        fn dma_event(&mut self) {
            self.issue(0, 0, EVENT);
        }

        #[inline(always)]
        fn stream_put(&mut self, host: i32, position: u32, len: u32, is_end: bool) {
            let end = if is_end { END } else { 0 };
            self.issue(host, position, len | STREAM_PUT | end);
        }
    }
}

/// The payload handler of one kind of datatype; the image is of that kind, which the host found out
/// at commit. With an image of another kind nothing is written.
macro_rules! specialised {
    ($call:ident, $nic:ident, $kind:ident) => {{
        // SAFETY: the caller's promise about the image.
        let image = unsafe { $call.image() };
        if let Some(handler @ Specialised::$kind { .. }) = Specialised::of_root(image) {
            handler.payload(image, $call.packet(), &mut $nic);
        }
    }};
}

/// Handlers that copy checkpoints, with checkpoints of 612 bytes, for a port: what the simulator
/// compares with ours.
#[cfg(all(feature = "paper-segment", feature = "c-names"))]
mod paper {
    use super::{Call, port};
    use crate::PaperSegment;
    use core::slice;

    /// RO-CP with [`PaperSegment`]s.
    ///
    /// # Safety
    ///
    /// As for `libcopy_nic_port_ro_cp`, but the checkpoints are [`PaperSegment`]s.
    #[cfg_attr(feature = "c-names", unsafe(no_mangle))]
    unsafe extern "C" fn libcopy_nic_port_ro_cp_612(call: *const Call, port: *mut port::Port) {
        // SAFETY: `call` is valid, and with it the image and the checkpoints, which nobody changes
        // while there are packets.
        let (call, image, checkpoints) = unsafe {
            let call = &*call;
            let first = call.checkpoints.cast::<PaperSegment>();
            let checkpoints = slice::from_raw_parts(first, call.count as usize);
            (call, call.image(), checkpoints)
        };
        let nic = &mut port::Registers(port);
        crate::read_only(image, checkpoints, call.interval, call.packet(), nic);
    }

    /// RW-CP with [`PaperSegment`]s.
    ///
    /// # Safety
    ///
    /// As for `libcopy_nic_port_rw_cp`, but the checkpoint and its master copy are
    /// [`PaperSegment`]s.
    #[cfg_attr(feature = "c-names", unsafe(no_mangle))]
    unsafe extern "C" fn libcopy_nic_port_rw_cp_612(call: *const Call, port: *mut port::Port) {
        // SAFETY: `call` is valid, and with it the image; the checkpoint belongs to the virtual HPU
        // that runs this handler alone; nobody changes the master copy.
        let (call, image, state, master) = unsafe {
            let call = &*call;
            let state = &mut *call.state.cast::<PaperSegment>();
            let master = &*call.checkpoints.cast::<PaperSegment>();
            (call, call.image(), state, master)
        };
        let nic = &mut port::Registers(port);
        crate::read_write(image, state, master, call.packet(), nic);
    }
}

/// Defines each handler for both kinds of device.
macro_rules! handlers {
    ($($(#[$doc:meta])* $name:ident, $ported:ident, |$call:ident, $nic:ident| $body:expr;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// `call` and what it points to are valid as `struct libcopy_nic_call` says; so are the
        /// functions of `device`.
        #[cfg_attr(feature = "c-names", unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(call: *const Call, device: *const Device) {
            // SAFETY: both point to structures that do not change during the call.
            let ($call, mut $nic) = unsafe { (&*call, &*device) };
            $body
        }

        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// As for the function of a device; `port` may be written.
        #[cfg_attr(feature = "c-names", unsafe(no_mangle))]
        pub unsafe extern "C" fn $ported(call: *const Call, port: *mut port::Port) {
            let mut $nic = port::Registers(port);
            // SAFETY: it points to a structure that does not change during the call.
            let $call = unsafe { &*call };
            $body
        }
    )*};
}

handlers! {
    /// Payload handler: contiguous.
    libcopy_nic_contiguous, libcopy_nic_port_contiguous,
    |call, nic| specialised!(call, nic, Contiguous);
    /// Payload handler: vector.
    libcopy_nic_vector, libcopy_nic_port_vector,
    |call, nic| specialised!(call, nic, Vector);
    /// Payload handler: indexed-block.
    libcopy_nic_indexed_block, libcopy_nic_port_indexed_block,
    |call, nic| specialised!(call, nic, IndexedBlock);
    /// Payload handler: indexed.
    libcopy_nic_indexed, libcopy_nic_port_indexed,
    |call, nic| specialised!(call, nic, Indexed);
    /// Payload handler: struct.
    libcopy_nic_struct, libcopy_nic_port_struct,
    |call, nic| specialised!(call, nic, Struct);
    /// Payload handler: HPU-local.
    libcopy_nic_local, libcopy_nic_port_local,
    |call, nic| {
        // SAFETY: the image is valid, and the state belongs to the virtual HPU that runs this
        // handler alone.
        let (image, state) = unsafe { (call.image(), &mut *call.state) };
        crate::local(image, state, call.packet(), &mut nic);
    };
    /// Payload handler: RO-CP.
    libcopy_nic_ro_cp, libcopy_nic_port_ro_cp,
    |call, nic| {
        // SAFETY: the image and the checkpoints are valid, and nobody changes them while there are
        // packets.
        let (image, checkpoints) = unsafe { (call.image(), call.checkpoints()) };
        crate::read_only(image, checkpoints, call.interval, call.packet(), &mut nic);
    };
    /// Payload handler: RW-CP.
    libcopy_nic_rw_cp, libcopy_nic_port_rw_cp,
    |call, nic| {
        // SAFETY: the image is valid; the checkpoint belongs to the virtual HPU that runs this
        // handler alone; nobody changes the master copy.
        let (image, state, master) = unsafe { (call.image(), &mut *call.state, &*call.checkpoints) };
        crate::read_write(image, state, master, call.packet(), &mut nic);
    };
    /// Payload handler: seek.
    libcopy_nic_seek, libcopy_nic_port_seek,
    |call, nic| {
        // SAFETY: the image is valid.
        let image = unsafe { call.image() };
        crate::seek(image, call.packet(), &mut nic);
    };
    /// Completion handler.
    libcopy_nic_completion, libcopy_nic_port_completion,
    |_call, nic| crate::completion(&mut nic);
    /// Handler of an outgoing packet: process-put.
    libcopy_nic_process_put, libcopy_nic_port_process_put,
    |call, nic| {
        // SAFETY: the image is valid.
        let image = unsafe { call.image() };
        crate::process_put(image, call.packet(), &mut nic);
    };
}

#[cfg(feature = "panic-handler")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // The handlers have no panics; the language wants a handler.
    loop {
        core::hint::spin_loop();
    }
}
