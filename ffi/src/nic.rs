// SPDX-License-Identifier: MIT OR Apache-2.0

//! Datatypes on a network card: plans, and what the host puts into the memory of a card.

use crate::arguments::{Out, Room, copy_text};
use crate::datatype::libcopy_type_t;
use crate::error::{Result, invalid};
use libcopy::datatype::Layout;
use libcopy::nic::card::Strategy;
use libcopy::nic::handlers::{Image, Segment, checkpoints};
use libcopy::nic::plan::{Options, Plan, Refusal, Verdict, plan};
use libcopy_ffi_macros::c_api;
use std::ffi::{c_char, c_int};

/// The host unpacks.
pub const LIBCOPY_NIC_HOST: c_int = 0;
/// A handler for one form: contiguous, vector, indexed-block, indexed, or a struct of those.
pub const LIBCOPY_NIC_SPECIALIZED: c_int = 1;
/// A state per virtual HPU (handler processing unit), which catches up from packet to packet.
pub const LIBCOPY_NIC_HPU_LOCAL: c_int = 2;
/// Read-only checkpoints: the nearest is copied, then catches up.
pub const LIBCOPY_NIC_RO_CP: c_int = 3;
/// Checkpoints that move on: a sequence of packets owns one.
pub const LIBCOPY_NIC_RW_CP: c_int = 4;
/// Every packet descends from the root of the type. It needs no checkpoints.
pub const LIBCOPY_NIC_SEEK: c_int = 5;

/// The host unpacks because the attribute `offload` is 0.
pub const LIBCOPY_NIC_BY_ATTRIBUTE: c_int = 1;
/// There is no data.
pub const LIBCOPY_NIC_EMPTY: c_int = 2;
/// Bytes of the type belong to two of its pieces.
pub const LIBCOPY_NIC_OVERLAP: c_int = 3;
/// Data or extent are larger than offsets of a card reach.
pub const LIBCOPY_NIC_TOO_LARGE: c_int = 4;
/// A specialised handler was asked for, and there is none.
pub const LIBCOPY_NIC_NO_HANDLER: c_int = 5;
/// NIC memory is too small.
pub const LIBCOPY_NIC_MEMORY: c_int = 6;
/// The packet buffer is too small.
pub const LIBCOPY_NIC_PACKET_BUFFER: c_int = 7;

/// 32-bit words of a checkpoint: `struct libcopy_nic_state` of `libcopy_nic_handlers.h`.
pub const LIBCOPY_NIC_STATE_WORDS: usize = 27;

/// Bytes of the sentence of a plan, with the zero at its end.
pub const LIBCOPY_NIC_WHY_BYTES: usize = 192;

/// The attributes of a type, and a card.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types, reason = "its name in C")]
pub struct libcopy_nic_options_t {
    /// Not 0: a card may unpack the type.
    pub offload: i32,
    /// Types of lower priority give way first when NIC memory is short.
    pub priority: i32,
    /// What scheduling may add to the processing of a message, as a part of it: above 0, at most
    /// 100.
    pub epsilon: f64,
    /// One of `LIBCOPY_NIC_SPECIALIZED` to `LIBCOPY_NIC_SEEK`; 0 is the one that is expected to be
    /// fastest.
    pub strategy: i32,
    /// Handler processing units of the card: 1 to 4096.
    pub hpus: u32,
    /// Their clock in MHz: 1 to 100000.
    pub clock: u32,
    /// Line rate in Gbit/s: 1 to 100000.
    pub rate: u32,
    /// Bytes of NIC memory for datatypes and checkpoints.
    pub memory: u64,
}

/// How a card unpacks a type, or why the host does. Times are modelled: no such card was available.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types, reason = "its name in C")]
pub struct libcopy_nic_plan_t {
    /// One of `LIBCOPY_NIC_HOST` to `LIBCOPY_NIC_SEEK`.
    pub strategy: i32,
    /// Why the host unpacks: 0 if a card does, else one of `LIBCOPY_NIC_BY_ATTRIBUTE` to
    /// `LIBCOPY_NIC_PACKET_BUFFER`.
    pub refusal: i32,
    /// The type's priority for NIC memory.
    pub priority: i32,
    /// 1 if the card keeps up with the line.
    pub is_line_rate: i32,
    /// HPUs that keep up with the line; 0 if no number does, because of PCIe.
    pub hpus_for_line_rate: u64,
    /// Bytes of the message.
    pub bytes: u64,
    /// Its packets.
    pub packets: u64,
    /// Its contiguous pieces.
    pub pieces: u64,
    /// Bytes between two checkpoints (RO-CP, RW-CP); 0 without.
    pub interval: u64,
    /// Checkpoints with master copies, or states of HPUs.
    pub states: u64,
    /// Bytes of the image (`libcopy_nic_image`).
    pub image_bytes: u64,
    /// Bytes of NIC memory: image and states.
    pub memory: u64,
    /// A payload handler on the average, in picoseconds.
    pub handler_ps: u64,
    /// What processing takes, in picoseconds.
    pub processing_ps: u64,
    /// What arrival takes, in picoseconds.
    pub arrival_ps: u64,
    /// What the writes take on PCIe, in picoseconds.
    pub pcie_ps: u64,
    /// The longest of the three, in picoseconds.
    pub expected_ps: u64,
    /// Why it is at line rate or not, or why the host unpacks; ends with a zero.
    pub why: [c_char; LIBCOPY_NIC_WHY_BYTES],
}

fn code_of(strategy: Strategy) -> c_int {
    match strategy {
        Strategy::Specialized => LIBCOPY_NIC_SPECIALIZED,
        Strategy::HpuLocal => LIBCOPY_NIC_HPU_LOCAL,
        Strategy::RoCp => LIBCOPY_NIC_RO_CP,
        Strategy::RwCp => LIBCOPY_NIC_RW_CP,
        Strategy::Seek => LIBCOPY_NIC_SEEK,
    }
}

fn reason(refusal: &Refusal) -> c_int {
    match refusal {
        Refusal::Attribute => LIBCOPY_NIC_BY_ATTRIBUTE,
        Refusal::Empty => LIBCOPY_NIC_EMPTY,
        Refusal::Overlap => LIBCOPY_NIC_OVERLAP,
        Refusal::TooLarge(_) => LIBCOPY_NIC_TOO_LARGE,
        Refusal::NoHandler => LIBCOPY_NIC_NO_HANDLER,
        Refusal::Memory { .. } => LIBCOPY_NIC_MEMORY,
        Refusal::PacketBuffer { .. } => LIBCOPY_NIC_PACKET_BUFFER,
    }
}

fn options_of(from: &libcopy_nic_options_t) -> Result<Options> {
    let code = from.strategy;
    let strategy = Strategy::ALL.into_iter().find(|it| code_of(*it) == code);
    if strategy.is_none() && code != LIBCOPY_NIC_HOST {
        return Err(invalid(format!("strategy {code}: 0 to {LIBCOPY_NIC_SEEK}")));
    }
    let mut options = Options {
        strategy,
        ..Options::default()
    };
    let (hpus, clock, rate) = (from.hpus.into(), from.clock.into(), from.rate.into());
    let set = options.set(hpus, clock, rate, from.epsilon);
    set.map_err(|error| invalid(error.to_string()))?;
    options.parameters.nic_memory = from.memory;
    options.attributes.offload = from.offload != 0;
    options.attributes.priority = from.priority;
    Ok(options)
}

impl libcopy_nic_plan_t {
    fn of(verdict: &Verdict, layout: &Layout, options: &Options) -> Self {
        let (plan, refusal, text) = match verdict {
            Verdict::Offload(plan) => (Some(plan), 0, plan.why(&options.parameters)),
            Verdict::Host(refusal) => (None, reason(refusal), refusal.to_string()),
        };
        let mut why = [0; LIBCOPY_NIC_WHY_BYTES];
        copy_text(&text, &mut why);
        // All is 0 where the host unpacks.
        let of = |what: fn(&Plan) -> u64| plan.map_or(0, what);
        libcopy_nic_plan_t {
            strategy: plan.map_or(LIBCOPY_NIC_HOST, |plan| code_of(plan.strategy)),
            refusal,
            priority: options.attributes.priority,
            is_line_rate: plan.is_some_and(|plan| plan.is_line_rate).into(),
            hpus_for_line_rate: of(|plan| plan.hpus_for_line_rate.unwrap_or(0)),
            bytes: layout.size(),
            packets: options.parameters.packets(layout.size()),
            pieces: plan.map_or(layout.segment_count(), |plan| plan.pieces),
            interval: of(|plan| plan.interval.map_or(0, |interval| interval.bytes)),
            states: of(|plan| plan.states),
            image_bytes: of(|plan| plan.description),
            memory: of(|plan| plan.nic_bytes),
            handler_ps: of(|plan| plan.handler),
            processing_ps: of(|plan| plan.processing),
            arrival_ps: of(|plan| plan.arrival),
            pcie_ps: of(|plan| plan.pcie),
            expected_ps: of(|plan| plan.expected),
            why,
        }
    }
}

/// The paper's attributes and card: offloaded, priority 0, epsilon 0.2; 32 HPUs of 800 MHz, 200
/// Gbit/s, 6 MiB of NIC memory ("Network-Accelerated Non-Contiguous Memory Transfers", SC 2019,
/// section 5.1).
#[c_api]
pub fn libcopy_nic_options(options: Out<libcopy_nic_options_t>) -> Result {
    let default = Options::default();
    let (parameters, attributes) = (default.parameters, default.attributes);
    options.put(libcopy_nic_options_t {
        offload: attributes.offload.into(),
        priority: attributes.priority,
        epsilon: attributes.epsilon as f64 / libcopy::nic::plan::MILLION as f64,
        strategy: LIBCOPY_NIC_HOST,
        hpus: parameters.hpus as u32,
        clock: parameters.mhz as u32,
        rate: (parameters.line_rate / 1_000_000_000) as u32,
        memory: parameters.nic_memory,
    })
}

/// Decides how a card receives a message of `count` elements: by which handlers, with what NIC
/// memory, and whether it keeps up with the line; or why the host unpacks, which is no error. Null
/// `options` are those of `libcopy_nic_options`.
#[c_api]
pub fn libcopy_nic_plan(
    datatype: &libcopy_type_t,
    count: u64,
    options: Option<&libcopy_nic_options_t>,
    plan_out: Out<libcopy_nic_plan_t>,
) -> Result {
    let layout = datatype.layout(count)?;
    let options = options.map(options_of).transpose()?.unwrap_or_default();
    let verdict = plan(&layout, &options);
    plan_out.put(libcopy_nic_plan_t::of(&verdict, &layout, &options))
}

/// The image of `count` elements, which handlers walk (`image` of `struct libcopy_nic_call`,
/// `libcopy_nic_handlers.h`): at most `max` words, little endian; `*length` is how many there are.
/// Null `words` only ask for that.
#[c_api]
pub fn libcopy_nic_image(
    datatype: &libcopy_type_t,
    count: u64,
    #[len(max)] words: Room<u32>,
    max: usize,
    length: Out<usize>,
) -> Result {
    let layout = datatype.layout(count)?;
    if words.is_null() {
        return length.put((layout.image_bytes() / 4) as usize);
    }
    let image = layout.image()?;
    length.put(image.len())?;
    words.first(image.len())?.copy_from_slice(&image);
    Ok(())
}

/// The checkpoints of `count` elements, `interval` bytes apart, from byte 0 on: at most `max`
/// states of `LIBCOPY_NIC_STATE_WORDS` words each; `*length` is how many there are. Null `states`
/// only ask for that.
#[c_api]
pub fn libcopy_nic_checkpoints(
    datatype: &libcopy_type_t,
    count: u64,
    interval: u32,
    #[len(max)] states: Room<[u32; LIBCOPY_NIC_STATE_WORDS]>,
    max: usize,
    length: Out<usize>,
) -> Result {
    if interval == 0 {
        return Err(invalid("an interval of 0 bytes: at least 1"));
    }
    let layout = datatype.layout(count)?;
    let n = layout.size().div_ceil(interval.into()) as usize;
    length.put(n)?;
    if states.is_null() {
        return Ok(());
    }
    let states = states.first(n)?;
    let image = layout.image()?;
    let made = checkpoints(Image::trusted(&image), interval);
    for (to, state) in states.iter_mut().zip(made) {
        // SAFETY: a state is that number of words without padding (`repr(C)`).
        *to = unsafe { std::mem::transmute::<Segment, [u32; LIBCOPY_NIC_STATE_WORDS]>(state) };
    }
    Ok(())
}
