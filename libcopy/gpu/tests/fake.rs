// SPDX-License-Identifier: MIT OR Apache-2.0

//! Packing and unpacking between all memory spaces, with the stand-in for the CUDA driver
//! (`tests/fakecuda`), in whose device memory a processor dies.

mod common;
#[path = "common/cuda.rs"]
mod cuda;
#[path = "../../datatype/tests/datatype/generate.rs"]
#[allow(dead_code)]
mod generate;
#[path = "../../datatype/tests/datatype/oracle.rs"]
#[allow(dead_code)]
mod oracle;

use std::ffi::{c_int, c_void};

use common::{noise, random_layout};
use cuda::{Cuda, Memory, SPACES, Shape, driver, random_shapes, turn};
use generate::Choices;
use libcopy_datatype::{Datatype, Layout, Named};
use libcopy_gpu::{
    Buffer, Device, Error, GpuLayout, Message, Pointer, Space, copy, copy_after, copy_layout,
    limit_multiprocessors, pack, pack_all, pack_on, start_copy, start_copy_layout, start_pack,
    start_unpack, unpack, unpack_after, unpack_all, unpack_on,
};

/// Packs and unpacks a range between all pairs of spaces.
fn round_trips(layout: &Layout, range: std::ops::Range<u64>, seed: u64) {
    let bounds = layout.bounds();
    let (low, len) = (bounds.start, (bounds.end - bounds.start) as usize);
    let gpu = GpuLayout::new(layout.clone()).unwrap();
    let bytes = (range.end - range.start) as usize;
    for user_space in SPACES {
        for packed_space in SPACES {
            let what = format!("{user_space:?}, {packed_space:?}, {range:?}");
            let content = noise(seed, len);
            let user = Memory::new(user_space, &content);
            let packed = Memory::new(packed_space, &vec![0xa5; bytes]);
            if len > 0 {
                assert_eq!(
                    Pointer::of(driver(), user.address).unwrap().space,
                    user_space
                );
            }
            let origin = user.address.wrapping_add_signed(-low);
            // SAFETY: the memory was made for the layout.
            unsafe { pack(driver(), &gpu, origin, range.clone(), packed.address) }.unwrap();
            let mut expected = vec![0; bytes];
            layout
                .pack_range(&content, -low as isize, range.start, &mut expected)
                .unwrap();
            assert!(packed.read() == expected, "packed: {what}");

            let before = noise(seed + 1, len);
            user.write(&before);
            // SAFETY: as above.
            let unpacked = unsafe { unpack(driver(), &gpu, origin, range.clone(), packed.address) };
            if unpacked == Err(Error::Overlap) {
                assert!(user_space == Space::Device && !layout.form().is_disjoint());
                continue;
            }
            unpacked.unwrap();
            let mut after = before;
            layout
                .unpack_range(&expected, range.start, &mut after, -low as isize)
                .unwrap();
            assert!(user.read() == after, "unpacked: {what}");
        }
    }
}

#[test]
fn random_types_between_all_spaces() {
    let _turn = turn();
    Cuda::start();
    for case in 0..60_u64 {
        let list: Vec<u16> = noise(case + 1, 240)
            .chunks_exact(2)
            .map(|two| u16::from_le_bytes([two[0], two[1]]))
            .collect();
        let mut choices = Choices::new(&list);
        let layout = random_layout(&mut choices);
        let size = layout.size();
        let (a, b) = (choices.below(size + 1), choices.below(size + 1));
        round_trips(&layout, 0..size, case);
        round_trips(&layout, a.min(b)..a.max(b), case + 1000);
    }
}

#[test]
fn more_than_the_scratch_memory_holds() {
    let _turn = turn();
    Cuda::start();
    let layout = |datatype: Datatype| Layout::new(&datatype, 1).unwrap();
    let byte = Datatype::named(Named::Byte);
    // 9.2 MB, of which 4 MiB at a time go through pinned memory.
    round_trips(
        &layout(byte.vector(4001, 2301, 2310).unwrap()),
        17..9_206_300,
        3,
    );
}

#[test]
fn submitted_work_is_waited_for() {
    let _turn = turn();
    Cuda::start();
    // SAFETY: tests that read the environment have their turns.
    unsafe { std::env::set_var("FAKECUDA_DELAYED", "1") };
    let layout = Layout::new(
        &Datatype::named(Named::Double).vector(100, 3, 7).unwrap(),
        2,
    )
    .unwrap();
    round_trips(&layout, 0..layout.size(), 5);
    // SAFETY: as above.
    unsafe { std::env::remove_var("FAKECUDA_DELAYED") };
}

#[test]
fn one_launch_and_no_copy_between_device_buffers() {
    let _turn = turn();
    let cuda = Cuda::start();
    let layout = Layout::new(
        &Datatype::named(Named::Double).vector(1000, 1, 7).unwrap(),
        1,
    )
    .unwrap();
    let user = Memory::new(Space::Device, &vec![1; 8 * 7 * 1000]);
    let packed = Memory::new(Space::Device, &vec![0; 8000]);
    let gpu = GpuLayout::new(layout).unwrap();
    // SAFETY: the memory was made for the layout.
    let pack = || unsafe { pack(driver(), &gpu, user.address, 0..8000, packed.address) }.unwrap();
    pack();
    let before = cuda.counts();
    pack();
    let after = cuda.counts();
    assert_eq!(
        [
            after[0] - before[0],
            after[1] - before[1],
            after[2] - before[2]
        ],
        [1, 0, 0]
    );
}

#[test]
fn tables_are_given_back() {
    let _turn = turn();
    let cuda = Cuda::start();
    let user = Memory::new(Space::Device, &[7; 100]);
    let packed = Memory::new(Space::Device, &[0; 20]);
    let pack_once = || {
        let datatype = Datatype::named(Named::Byte)
            .indexed(&[3, 5, 12], &[0, 9, 60])
            .unwrap();
        let gpu = GpuLayout::new(Layout::new(&datatype, 1).unwrap()).unwrap();
        // SAFETY: the memory was made for the layout.
        unsafe { pack(driver(), &gpu, user.address, 0..20, packed.address) }.unwrap();
        assert_eq!(packed.read(), [7; 20]);
    };
    pack_once();
    let before = cuda.counts()[2];
    pack_once();
    assert_eq!(cuda.counts()[2], before);
    // By the next call: a layout may be dropped where the driver must not be called.
    // SAFETY: as many bytes on both sides.
    unsafe { copy(driver(), user.address, packed.address, 20) }.unwrap();
    assert_eq!(cuda.counts()[2], before - 1);
}

/// The stand-in dies where it is called by a destructor of a thread that it has forgotten.
#[test]
fn a_layout_that_a_thread_keeps_until_its_end_calls_no_driver() {
    thread_local! {
        static KEPT: std::cell::RefCell<Option<GpuLayout>> = const { std::cell::RefCell::new(None) };
    }
    let _turn = turn();
    Cuda::start();
    std::thread::spawn(|| {
        // Registered before the driver's variables, and so dropped after them.
        KEPT.with(|kept| assert!(kept.borrow().is_none()));
        let user = Memory::new(Space::Device, &[7; 100]);
        let packed = Memory::new(Space::Device, &[0; 20]);
        let byte = Datatype::named(Named::Byte);
        let datatype = byte.indexed(&[3, 5, 12], &[0, 9, 60]).unwrap();
        let gpu = GpuLayout::new(Layout::new(&datatype, 1).unwrap()).unwrap();
        // SAFETY: the memory was made for the layout.
        unsafe { pack(driver(), &gpu, user.address, 0..20, packed.address) }.unwrap();
        KEPT.with(|kept| *kept.borrow_mut() = Some(gpu));
    })
    .join()
    .unwrap();
}

#[test]
fn buffers_are_where_they_say_and_contiguous_bytes_go_through_them() {
    let _turn = turn();
    let cuda = Cuda::start();
    let user = Memory::new(Space::Device, &noise(9, 5000));
    let near = Pointer::of(driver(), user.address).unwrap();
    // What is kept per context is allocated once.
    // SAFETY: the bytes stay where they are.
    unsafe { copy(driver(), user.address, user.address + 2500, 2500) }.unwrap();
    user.write(&noise(9, 5000));
    let before = cuda.counts()[2];
    let buffers = [
        Buffer::pinned(driver(), &near, 5000).unwrap(),
        Buffer::device(driver(), &near, 5000).unwrap(),
    ];
    assert_eq!(cuda.counts()[2], before + 2);
    let host = Memory::new(Space::Host, &[0; 5000]);
    let mut from = user.address;
    for buffer in &buffers {
        let known = Pointer::of(driver(), buffer.address()).unwrap();
        assert_eq!((known.space, buffer.bytes()), (buffer.space(), 5000));
        assert!(buffer.is_near(&near));
        // SAFETY: as many bytes on both sides.
        unsafe { copy(driver(), buffer.address(), from, 5000) }.unwrap();
        from = buffer.address();
    }
    // SAFETY: as above.
    unsafe { copy(driver(), host.address, from, 5000) }.unwrap();
    assert!(host.read() == noise(9, 5000));
    let far = Memory::new(Space::Host, &[0; 8]);
    let nowhere = Pointer::of(driver(), far.address).unwrap();
    let refused = Buffer::device(driver(), &nowhere, 8).unwrap_err();
    assert!(matches!(refused, Error::NoContext { .. }), "{refused}");
    drop(buffers);
    assert_eq!(cuda.counts()[2], before);
}

#[test]
fn random_types_from_layout_to_layout_between_all_spaces() {
    let _turn = turn();
    Cuda::start();
    for (case, from, to) in random_shapes(40) {
        for from_space in SPACES {
            for to_space in SPACES {
                let (content, before) = (noise(case, from.len), noise(case + 1, to.len));
                let source = Memory::new(from_space, &content);
                let target = Memory::new(to_space, &before);
                // SAFETY: the memory was made for the layouts.
                let copied = unsafe {
                    copy_layout(
                        driver(),
                        &to.gpu,
                        to.origin(&target),
                        &from.gpu,
                        from.origin(&source),
                    )
                };
                if copied == Err(Error::Overlap) {
                    assert!(!to.gpu.layout().form().is_disjoint() && to_space == Space::Device);
                    continue;
                }
                copied.unwrap();
                let expected = to.unpacked(&from.packed(&content), &before);
                assert!(
                    target.read() == expected,
                    "{case} {from_space:?} {to_space:?}"
                );
                assert!(source.read() == content);
            }
        }
    }
}

#[test]
fn several_calls_are_under_way_and_each_is_waited_for() {
    let _turn = turn();
    Cuda::start();
    // SAFETY: tests that read the environment have their turns.
    unsafe { std::env::set_var("FAKECUDA_DELAYED", "1") };
    let mut waited = 0;
    let mut polled = 0;
    for (case, from, to) in random_shapes(30) {
        let (content, before) = (noise(case, from.len), noise(case + 1, to.len));
        let source = Memory::new(Space::Device, &content);
        let target = Memory::new(Space::Device, &before);
        let packed = Memory::new(Space::Device, &vec![0; from.size() as usize]);
        let [from_at, to_at] = [from.origin(&source), to.origin(&target)];
        // SAFETY: the memory was made for the layouts, and stays until they are done.
        let started = unsafe {
            [
                start_pack(driver(), &from.gpu, from_at, 0..from.size(), packed.address),
                start_copy_layout(driver(), &to.gpu, to_at, &from.gpu, from_at),
            ]
        };
        let mut packing = started[0].is_ok();
        for (i, started) in started.into_iter().enumerate() {
            let Ok(mut pending) = started else {
                assert!(i == 1 && !to.gpu.layout().form().is_disjoint());
                packing = false;
                continue;
            };
            if case % 2 == 0 {
                while !pending.is_done().unwrap() {
                    polled += 1;
                }
            } else {
                pending.wait().unwrap();
                waited += 1;
            }
            assert!(pending.is_done().unwrap());
        }
        let expected = from.packed(&content);
        assert!(packed.read() == expected, "{case}");
        if packing {
            assert!(target.read() == to.unpacked(&expected, &before), "{case}");
        }
        let other = noise(case + 2, from.len);
        source.write(&other);
        // SAFETY: as above.
        let started =
            unsafe { start_unpack(driver(), &from.gpu, from_at, 0..from.size(), packed.address) };
        if from.gpu.layout().form().is_disjoint() {
            let kept = std::sync::Arc::new(());
            let mut pending = started.unwrap();
            pending.keep(kept.clone());
            // Dropping it waits.
            drop(pending);
            assert_eq!(std::sync::Arc::strong_count(&kept), 1);
            assert!(source.read() == from.unpacked(&expected, &other));
        }
    }
    assert!(waited > 10 && polled > 10, "{waited} {polled}");
    // SAFETY: as above.
    unsafe { std::env::remove_var("FAKECUDA_DELAYED") };
}

/// Each step needs what the one before it has written, and none is waited for before the last one.
#[test]
fn steps_of_a_message_follow_each_other_on_the_stream() {
    let _turn = turn();
    Cuda::start();
    for delayed in [false, true] {
        if delayed {
            // SAFETY: tests that read the environment have their turns.
            unsafe { std::env::set_var("FAKECUDA_DELAYED", "1") };
        }
        let mut waited = 0;
        for (case, shape, _) in random_shapes(60) {
            let bytes = shape.size() as usize;
            let (content, before) = (noise(case, shape.len), noise(case + 1, shape.len));
            let zeros = vec![0; bytes];
            for space in [Space::Device, Space::Pinned, Space::Host] {
                let source = Memory::new(Space::Device, &content);
                let target = Memory::new(Space::Device, &before);
                let sent = Memory::new(Space::Device, &zeros);
                let host = Memory::new(space, &zeros);
                let received = Memory::new(Space::Device, &zeros);
                let origins = [shape.origin(&source), shape.origin(&target)];
                let all = || 0..shape.size();
                // SAFETY: the memory was made for the layout, and stays until all is done.
                let (mut pending, unpacked) = unsafe {
                    let packed = sent.address;
                    let mut pending =
                        start_pack(driver(), &shape.gpu, origins[0], all(), packed).unwrap();
                    copy_after(&mut pending, host.address, packed, bytes).unwrap();
                    copy_after(&mut pending, received.address, host.address, bytes).unwrap();
                    let unpacked = unpack_after(
                        &mut pending,
                        &shape.gpu,
                        origins[1],
                        all(),
                        received.address,
                    );
                    (pending, unpacked)
                };
                let is_written = shape.gpu.layout().form().is_disjoint();
                if is_written {
                    unpacked.unwrap();
                } else {
                    // The steps before it are under way still.
                    assert_eq!(unpacked, Err(Error::Overlap));
                }
                waited += u32::from(!pending.is_done().unwrap());
                if case % 2 == 0 {
                    pending.wait().unwrap();
                }
                drop(pending);
                let packed = shape.packed(&content);
                assert!(received.read() == packed, "{case}, {space:?}");
                if is_written {
                    let expected = shape.unpacked(&packed, &before);
                    assert!(target.read() == expected, "{case}, {space:?}");
                }
            }
        }
        assert_eq!(waited > 10, delayed, "{waited}");
    }
    // SAFETY: as above.
    unsafe { std::env::remove_var("FAKECUDA_DELAYED") };
}

/// What kernels do not reach is waited for before the processor goes on.
#[test]
fn a_step_of_the_processor_waits_for_the_steps_before() {
    let _turn = turn();
    Cuda::start();
    // SAFETY: tests that read the environment have their turns.
    unsafe { std::env::set_var("FAKECUDA_DELAYED", "1") };
    for (case, shape, _) in random_shapes(40) {
        let bytes = shape.size() as usize;
        let packed = noise(case, bytes);
        let sent = Memory::new(Space::Device, &packed);
        for (flat, user) in [
            (Space::Host, Space::Host),
            (Space::Host, Space::Device),
            (Space::Device, Space::Host),
        ] {
            let before = noise(case + 1, shape.len);
            let received = Memory::new(flat, &vec![0; bytes]);
            let target = Memory::new(user, &before);
            let origin = shape.origin(&target);
            // SAFETY: the memory was made for the layout, and stays until all is done.
            let unpacked = unsafe {
                let mut pending =
                    start_copy(driver(), received.address, sent.address, bytes).unwrap();
                let all = 0..shape.size();
                unpack_after(&mut pending, &shape.gpu, origin, all, received.address)
                    .and_then(|()| pending.wait())
            };
            if unpacked == Err(Error::Overlap) {
                assert!(user == Space::Device && !shape.gpu.layout().form().is_disjoint());
                continue;
            }
            unpacked.unwrap();
            let expected = shape.unpacked(&packed, &before);
            assert!(target.read() == expected, "{case}, {flat:?}, {user:?}");
        }
    }
    // SAFETY: as above.
    unsafe { std::env::remove_var("FAKECUDA_DELAYED") };
}

#[test]
fn many_messages_are_one_launch() {
    let _turn = turn();
    let cuda = Cuda::start();
    for delayed in [false, true] {
        if delayed {
            // SAFETY: tests that read the environment have their turns.
            unsafe { std::env::set_var("FAKECUDA_DELAYED", "1") };
        }
        // More than a table that is kept has place for, each of another kind.
        for count in [26, 200] {
            let byte = Datatype::named(Named::Byte);
            let shapes: Vec<Shape> = (0..count)
                .map(|i| {
                    let datatype = if i % 3 == 0 {
                        byte.indexed(&[3, 5, 1 + i], &[0, 9, 60]).unwrap()
                    } else {
                        byte.vector(40, 1 + i % 50, 77).unwrap()
                    };
                    Shape::new(Layout::new(&datatype, 1).unwrap())
                })
                .collect();
            let users: Vec<Memory> = shapes
                .iter()
                .map(|shape| Memory::new(Space::Device, &noise(shape.len as u64, shape.len)))
                .collect();
            let buffers: Vec<Memory> = shapes
                .iter()
                .map(|shape| Memory::new(Space::Pinned, &vec![0; shape.size() as usize]))
                .collect();
            let messages: Vec<Message<'_>> = (0..shapes.len())
                .map(|i| Message {
                    layout: &shapes[i].gpu,
                    origin: shapes[i].origin(&users[i]),
                    range: 0..shapes[i].size(),
                    packed: buffers[i].address,
                })
                .collect();
            // The tables are copied the first time.
            // SAFETY: the memory was made for the layouts.
            unsafe { pack_all(driver(), &messages) }.unwrap();
            let before = cuda.counts();
            // SAFETY: as above.
            unsafe { pack_all(driver(), &messages) }.unwrap();
            let after = cuda.counts();
            assert_eq!([after[0] - before[0], after[2] - before[2]], [1, 0]);
            for (i, shape) in shapes.iter().enumerate() {
                assert!(buffers[i].read() == shape.packed(&users[i].read()), "{i}");
                users[i].write(&vec![0; shape.len]);
            }
            // SAFETY: as above.
            unsafe { unpack_all(driver(), &messages) }.unwrap();
            for (i, shape) in shapes.iter().enumerate() {
                let expected = shape.unpacked(&buffers[i].read(), &vec![0; shape.len]);
                assert!(users[i].read() == expected, "{i}");
            }
        }
    }
    // SAFETY: as above.
    unsafe { std::env::remove_var("FAKECUDA_DELAYED") };
}

#[test]
fn a_limit_on_multiprocessors_keeps_the_bytes_right() {
    let _turn = turn();
    Cuda::start();
    limit_multiprocessors(Some(2));
    let byte = Datatype::named(Named::Byte);
    for datatype in [
        byte.vector(90, 2048, 4096).unwrap(),
        byte.vector(5000, 3, 7).unwrap(),
        byte.indexed(&[2048, 4096, 33], &[0, 8192, 16_385]).unwrap(),
    ] {
        let layout = Layout::new(&datatype, 1).unwrap();
        round_trips(&layout, 0..layout.size(), 11);
        round_trips(&layout, 5..layout.size() - 3, 12);
    }
    limit_multiprocessors(None);
}

#[test]
fn a_stream_of_the_program_does_it_in_its_order() {
    let _turn = turn();
    let cuda = Cuda::start();
    // SAFETY: tests that read the environment have their turns.
    unsafe { std::env::set_var("FAKECUDA_DELAYED", "1") };
    let shape =
        Shape::new(Layout::new(&Datatype::named(Named::Int).vector(50, 3, 7).unwrap(), 2).unwrap());
    let user = Memory::new(Space::Device, &noise(3, shape.len));
    let packed = Memory::new(Space::Device, &vec![0; shape.size() as usize]);
    let mut stream = 0_u64;
    cuda.call("cuStreamCreate", &[(&raw mut stream) as u64, 0]);
    let on = stream as *mut c_void;
    let (origin, range) = (shape.origin(&user), 0..shape.size());
    // SAFETY: the memory was made for the layout, and stays until the stream is done.
    unsafe {
        pack_on(
            driver(),
            &shape.gpu,
            origin,
            range.clone(),
            packed.address,
            on,
        )
    }
    .unwrap();
    assert!(packed.read() == vec![0; shape.size() as usize], "not yet");
    cuda.call("cuStreamSynchronize", &[stream]);
    assert!(packed.read() == shape.packed(&user.read()));
    let before = user.read();
    user.write(&vec![0; shape.len]);
    // SAFETY: as above.
    unsafe {
        unpack_on(
            driver(),
            &shape.gpu,
            origin,
            range.clone(),
            packed.address,
            on,
        )
    }
    .unwrap();
    cuda.call("cuStreamSynchronize", &[stream]);
    assert!(user.read() == shape.unpacked(&shape.packed(&before), &vec![0; shape.len]));
    let host = Memory::new(Space::Host, &vec![0; shape.size() as usize]);
    // SAFETY: nothing is launched.
    let refused = unsafe { pack_on(driver(), &shape.gpu, origin, range, host.address, on) };
    assert_eq!(
        refused,
        Err(Error::NotReached {
            address: host.address
        })
    );
    cuda.call("cuStreamDestroy_v2", &[stream]);
    // SAFETY: as above.
    unsafe { std::env::remove_var("FAKECUDA_DELAYED") };
}

#[test]
fn a_context_made_again_with_the_same_handle_is_another() {
    let _turn = turn();
    let cuda = Cuda::start();
    // The second device's context, so that no other test loses its memory.
    let mut context = 0_usize;
    cuda.call("cuDevicePrimaryCtxRetain", &[(&raw mut context) as u64, 1]);
    let datatype = Datatype::named(Named::Byte)
        .indexed(&[3, 5, 12], &[0, 9, 60])
        .unwrap();
    let shape = Shape::new(Layout::new(&datatype, 1).unwrap());
    let mut buffers = Vec::new();
    for round in 0..3 {
        cuda.call("cuCtxPushCurrent_v2", &[context as u64]);
        let mut user = 0_u64;
        cuda.call("cuMemAlloc_v2", &[(&raw mut user) as u64, shape.len as u64]);
        let mut popped = 0_u64;
        cuda.call("cuCtxPopCurrent_v2", &[(&raw mut popped) as u64]);
        let near = Pointer::of(driver(), user).unwrap();
        buffers.push(Buffer::device(driver(), &near, 64).unwrap());
        let content = noise(round, shape.len);
        // SAFETY: as many bytes on both sides.
        unsafe { copy(driver(), user, content.as_ptr() as u64, shape.len) }.unwrap();
        let mut packed = vec![0_u8; shape.size() as usize];
        let (range, to) = (0..shape.size(), packed.as_mut_ptr() as u64);
        // SAFETY: the memory was made for the layout.
        unsafe { pack(driver(), &shape.gpu, user, range, to) }.unwrap();
        assert!(packed == shape.packed(&content), "{round}");
        cuda.call("cuDevicePrimaryCtxReset_v2", &[1]);
    }
    let before = cuda.counts()[2];
    // Their memory is gone; nothing of others is freed instead.
    drop(buffers);
    drop(shape);
    assert_eq!(cuda.counts()[2], before);
}

#[test]
fn devices_say_what_they_are() {
    let _turn = turn();
    Cuda::start();
    let devices = Device::all(driver()).unwrap();
    assert_eq!(devices.len(), 2);
    assert!(devices.iter().all(Device::is_stand_in));
    assert_eq!(
        devices[0].uuid.to_string(),
        "GPU-6c696263-6f70-792d-7374-616e64696e00"
    );
    assert_eq!(driver().version(), Ok(12_000));
}

#[test]
fn wrong_ranges_are_refused() {
    let _turn = turn();
    Cuda::start();
    let gpu = GpuLayout::new(Layout::new(&Datatype::named(Named::Int), 3).unwrap()).unwrap();
    let memory = Memory::new(Space::Device, &[0; 64]);
    for range in [0..13, 13..14, std::ops::Range { start: 5, end: 4 }] {
        // SAFETY: nothing is moved.
        let error = unsafe { pack(driver(), &gpu, memory.address, range, memory.address + 32) };
        let text = error.unwrap_err().to_string();
        assert!(text.contains("not within its 12 bytes"), "{text}");
    }
}

#[test]
fn a_processor_dies_in_device_memory() {
    let _turn = turn();
    let memory = Memory::new(Space::Device, &[1; 8]);
    // SAFETY: the child only reads a byte and ends.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::signal(libc::SIGSEGV, libc::SIG_DFL);
            let byte = std::ptr::read_volatile(memory.address as *const u8);
            libc::_exit(c_int::from(byte));
        }
        let mut status: c_int = 0;
        libc::waitpid(child, &raw mut status, 0);
        assert!(
            libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV,
            "{status}"
        );
    }
}
