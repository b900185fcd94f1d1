// SPDX-License-Identifier: MIT OR Apache-2.0

//! The C names: the same commands as the Rust functions, through functions and through registers,
//! and a header that has the same structures.

mod random;

use std::ffi::c_void;
use std::mem::{offset_of, size_of};
use std::path::Path;
use std::process::Command;
use std::ptr;

use libcopy_datatype::Layout;
use libcopy_nic_handlers::abi::{self, Call, Device, port::Port};
use libcopy_nic_handlers::{Nic, Packet, Segment, Specialised, checkpoints, process_put, seek};
use libcopy_walk::{Image, Tree};
use random::{Random, datatype};

/// Kind, host, position, length.
type Issued = (&'static str, i32, u32, u32);

#[derive(Default)]
struct Kept(Vec<Issued>);

impl Nic for Kept {
    fn dma_to_host(&mut self, host: i32, packet: u32, len: u32) {
        self.0.push(("write", host, packet, len));
    }

    fn dma_event(&mut self) {
        self.0.push(("event", 0, 0, 0));
    }

    fn stream_put(&mut self, host: i32, position: u32, len: u32, is_end: bool) {
        let kind = if is_end { "end" } else { "put" };
        self.0.push((kind, host, position, len));
    }
}

/// # Safety
///
/// `context` is the `Kept` of `device`.
unsafe extern "C" fn dma_to_host(context: *mut c_void, host: i32, packet: u32, len: u32) {
    // SAFETY: see above; nothing else uses it during the call.
    unsafe { &mut *context.cast::<Kept>() }.dma_to_host(host, packet, len);
}

/// # Safety
///
/// As for `dma_to_host`.
unsafe extern "C" fn dma_event(context: *mut c_void) {
    // SAFETY: see above.
    unsafe { &mut *context.cast::<Kept>() }.dma_event();
}

/// # Safety
///
/// As for `dma_to_host`.
unsafe extern "C" fn stream_put(
    context: *mut c_void,
    host: i32,
    position: u32,
    len: u32,
    is_end: u32,
) {
    // SAFETY: see above.
    unsafe { &mut *context.cast::<Kept>() }.stream_put(host, position, len, is_end == 1);
}

type Handler = unsafe extern "C" fn(*const Call, *const Device);
type Ported = unsafe extern "C" fn(*const Call, *mut Port);

/// What a handler issues through functions. Through registers, the last command has to be the same.
fn issued(call: &Call, handler: Handler, ported: Ported) -> Vec<Issued> {
    let mut kept = Kept::default();
    let device = Device {
        context: (&raw mut kept).cast(),
        dma_to_host,
        dma_event,
        stream_put,
    };
    // The handler may change the state; the second run starts from the same one.
    // SAFETY: the state, if there is one, is the test's own.
    let before = (!call.state.is_null()).then(|| unsafe { *call.state });
    // SAFETY: the call's pointers are valid, and the functions are those of `kept`.
    unsafe { handler(call, &device) };
    if let Some(before) = before {
        // SAFETY: as above.
        unsafe { *call.state = before };
    }
    let mut port = Port {
        host: i32::MIN,
        position: u32::MAX,
        command: u32::MAX,
    };
    // SAFETY: the call's pointers are valid, and the port is memory.
    unsafe { ported(call, &mut port) };
    if let Some((kind, host, position, len)) = kept.0.last() {
        let flags = match *kind {
            "write" => 0,
            "event" => abi::port::EVENT,
            "put" => abi::port::STREAM_PUT,
            _ => abi::port::STREAM_PUT | abi::port::END,
        };
        let found = (port.host, port.position, port.command);
        assert_eq!(found, (*host, *position, len | flags));
    } else {
        assert_eq!(port.command, u32::MAX);
    }
    kept.0
}

#[test]
fn c_names_issue_the_same_commands() {
    let mut random = Random(0xabc);
    // Miri interprets.
    let cases = if cfg!(miri) { 5 } else { 300 };
    for _ in 0..cases {
        let datatype = datatype(&mut random);
        let words = Layout::new(&datatype, 2).unwrap().image().unwrap();
        let image = Image::check(&words).unwrap();
        let size = image.size() as u32;
        let position = random.below(u64::from(size)) as u32;
        let len = (1 + random.below(60) as u32).min(size - position);
        let packet = Packet { position, len };
        let mut expected = Kept::default();
        seek(image, packet, &mut expected);

        let interval = 1 + random.below(100) as u32;
        let points: Vec<Segment> = checkpoints(image, interval).collect();
        let mut state = points[0];
        let mut call = Call {
            image: words.as_ptr(),
            words: words.len() as u32,
            position,
            len,
            interval,
            state: ptr::null_mut(),
            checkpoints: points.as_ptr(),
            count: points.len() as u32,
        };
        let all: [(&str, Handler, Ported); 5] = [
            (
                "contiguous",
                abi::libcopy_nic_contiguous,
                abi::libcopy_nic_port_contiguous,
            ),
            (
                "vector",
                abi::libcopy_nic_vector,
                abi::libcopy_nic_port_vector,
            ),
            (
                "indexed-block",
                abi::libcopy_nic_indexed_block,
                abi::libcopy_nic_port_indexed_block,
            ),
            (
                "indexed",
                abi::libcopy_nic_indexed,
                abi::libcopy_nic_port_indexed,
            ),
            (
                "struct",
                abi::libcopy_nic_struct,
                abi::libcopy_nic_port_struct,
            ),
        ];
        let own = Specialised::of_root(image).map(|handler| handler.name());
        for (name, handler, ported) in all {
            let found = issued(&call, handler, ported);
            // A handler of another kind issues nothing.
            assert_eq!(
                found,
                if own == Some(name) {
                    &expected.0[..]
                } else {
                    &[]
                },
                "{name}"
            );
        }
        let found = issued(&call, abi::libcopy_nic_seek, abi::libcopy_nic_port_seek);
        assert_eq!(found, expected.0);
        let found = issued(&call, abi::libcopy_nic_ro_cp, abi::libcopy_nic_port_ro_cp);
        assert_eq!(found, expected.0);
        call.state = &mut state;
        let found = issued(&call, abi::libcopy_nic_local, abi::libcopy_nic_port_local);
        assert_eq!(found, expected.0);
        // The state is behind the packet now and has to be reverted.
        let found = issued(&call, abi::libcopy_nic_rw_cp, abi::libcopy_nic_port_rw_cp);
        assert_eq!(found, expected.0);
        let found = issued(
            &call,
            abi::libcopy_nic_completion,
            abi::libcopy_nic_port_completion,
        );
        assert_eq!(found, [("event", 0, 0, 0)]);
        let mut expected = Kept::default();
        process_put(image, packet, &mut expected);
        let found = issued(
            &call,
            abi::libcopy_nic_process_put,
            abi::libcopy_nic_port_process_put,
        );
        assert_eq!(found, expected.0);
    }
}

#[test]
fn the_header_has_the_same_structures() {
    let mut source = String::from("#include <stddef.h>\n#include \"libcopy_nic_handlers.h\"\n");
    let mut assert = |expression: &str, value: usize| {
        source += &format!("_Static_assert({expression} == {value}, \"{expression}\");\n");
    };
    assert("sizeof(struct libcopy_nic_state)", size_of::<Segment>());
    assert("sizeof(struct libcopy_nic_call)", size_of::<Call>());
    assert("sizeof(struct libcopy_nic_device)", size_of::<Device>());
    assert("sizeof(struct libcopy_nic_port)", size_of::<Port>());
    macro_rules! members {
        ($name:literal, $of:ty: $($member:ident)*) => {$(
            let expression = concat!("offsetof(struct ", $name, ", ", stringify!($member), ")");
            assert(expression, offset_of!($of, $member));
        )*};
    }
    members!("libcopy_nic_call", Call: image words position len interval state checkpoints count);
    members!("libcopy_nic_device", Device: context dma_to_host dma_event stream_put);
    members!("libcopy_nic_port", Port: host position command);
    assert("LIBCOPY_NIC_EVENT", abi::port::EVENT as usize);
    assert("LIBCOPY_NIC_STREAM_PUT", abi::port::STREAM_PUT as usize);
    assert("LIBCOPY_NIC_END", abi::port::END as usize);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let file = folder.join("nic_handlers_abi.c");
    std::fs::write(&file, source).unwrap();
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let output = Command::new("cc")
        .args([
            "-std=c11",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-fsyntax-only",
            "-I",
        ])
        .arg(include)
        .arg(&file)
        .output()
        .expect("there is no C compiler (cc)");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}
