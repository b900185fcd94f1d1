// SPDX-License-Identifier: MIT OR Apache-2.0

//! A message of a datatype received by the simulated card, from the plan to the bytes.

use crate::card::{
    Card, Context, Entry, Issue, List, Message, Parameters, Policy, Ps, Report, Sender, departures,
    pieces_before,
};
use crate::plan::Plan;
use crate::run::{CoreError, MessageHandlers};
use libcopy_datatype::Layout;

/// Which message, and how its packets arrive.
#[derive(Clone, Copy, Debug, Default)]
pub struct Arrival {
    /// How many places later a packet may have been sent that overtakes another; 0: in order.
    pub window: u64,
    /// The seed of that order.
    pub seed: u64,
    /// Whether the depth of the DMA queue is recorded.
    pub is_recorded: bool,
}

/// What receiving a message came to.
#[derive(Debug)]
pub struct Received {
    /// What happened on the card.
    pub report: Report,
    /// From the message that says that the receiver is ready to the last byte in host memory: what
    /// figure 8 counts.
    pub time: Ps,
    /// From the first packet's begin on the wire to the last byte in host memory: the paper's
    /// message processing time.
    pub processing: Ps,
}

impl Received {
    /// Gbit/s of `bytes` over [`Received::time`].
    pub fn throughput(&self, bytes: u64) -> f64 {
        gigabits(bytes, self.time)
    }
}

/// Gbit/s.
pub fn gigabits(bytes: u64, time: Ps) -> f64 {
    bytes as f64 * 8000.0 / time.max(1) as f64
}

/// The handlers of a plan: they take the cycles of the simulated core.
///
/// # Errors
///
/// [`CoreError::NoHandler`] if the plan is not that of the layout.
pub fn handlers(
    layout: &Layout,
    plan: &Plan,
    parameters: &Parameters,
) -> Result<MessageHandlers, CoreError> {
    let interval = plan.interval.map_or(1, |interval| interval.packets);
    let vhpus = match plan.policy(parameters) {
        Policy::BlockedRoundRobin { vhpus, .. } => vhpus,
        Policy::Default => 1,
    };
    MessageHandlers::new(layout, plan.strategy, parameters.packet, vhpus, interval)
}

/// Receives one message of `layout` by `plan` and gives its DMA requests to `sink`.
///
/// # Errors
///
/// As [`handlers`].
pub fn receive(
    layout: &Layout,
    plan: &Plan,
    parameters: &Parameters,
    arrival: Arrival,
    mut sink: impl FnMut(&Issue),
) -> Result<Received, CoreError> {
    let mut card = Card::new(parameters);
    if arrival.is_recorded {
        card = card.recorded();
    }
    let context = Context {
        handlers: Box::new(handlers(layout, plan, parameters)?),
        policy: plan.policy(parameters),
    };
    card.append(
        List::Priority,
        Entry {
            bits: 1,
            ignore: 0,
            is_persistent: false,
            context: Some(context),
        },
    );
    let message = Message {
        bits: 1,
        bytes: layout.size(),
        // The receiver says that it is ready.
        start: parameters.network_latency,
        interval: 0,
        window: arrival.window,
        seed: arrival.seed,
    };
    let report = card.run(&[message], &mut |_, issue| sink(issue));
    let end = report.outcomes.first().map_or(0, |outcome| outcome.end);
    Ok(Received {
        report,
        time: end,
        processing: end.saturating_sub(2 * parameters.network_latency),
    })
}

/// Receives a message that the card writes to host memory as it is, for the host to unpack: when it
/// is all there, counted as [`Received::time`] is.
pub fn receive_packed(bytes: u64, parameters: &Parameters) -> Ps {
    let report = unprocessed(
        List::Priority,
        parameters.network_latency,
        bytes,
        parameters,
    );
    report.outcomes.first().map_or(0, |outcome| outcome.end)
}

/// Receives a message for which no receive was posted: the sender does not wait for one, the
/// message is found in the overflow list, and is written to host memory as it is. When it is all
/// there, from the begin of sending.
pub fn receive_unexpected(bytes: u64, parameters: &Parameters) -> Ps {
    let report = unprocessed(List::Overflow, 0, bytes, parameters);
    report.outcomes.first().map_or(0, |outcome| outcome.end)
}

fn unprocessed(list: List, start: Ps, bytes: u64, parameters: &Parameters) -> Report {
    let mut card = Card::new(parameters);
    card.append(
        list,
        Entry {
            bits: 1,
            ignore: 0,
            is_persistent: false,
            context: None,
        },
    );
    let message = Message {
        bits: 1,
        bytes,
        start,
        interval: 0,
        window: 0,
        seed: 0,
    };
    card.run(&[message], &mut |_, _| {})
}

/// When the last packet of a message has left the sender's card, by each way to send a datatype
/// (section 3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// The processor packs, then sends.
    pub pack_and_put: Ps,
    /// The processor finds one region after the other and hands each to a streaming put.
    pub streaming_put: Ps,
    /// The card's handlers find the regions.
    pub process_put: Ps,
}

/// Sends a message of `layout`, which a processor packs in `pack`, and whose regions it finds in
/// `find` in all.
///
/// # Errors
///
/// [`CoreError::NoHandler`]: the layout has no image.
pub fn send(
    layout: &Layout,
    parameters: &Parameters,
    pack: Ps,
    find: Ps,
) -> Result<Sent, CoreError> {
    let mut handlers = MessageHandlers::outgoing(layout, parameters.packet)?;
    let pieces = pieces_before(layout, parameters.packet);
    let region = find / pieces.last().copied().unwrap_or(1).max(1);
    let mut last = |sender| {
        let all = departures(parameters, sender, layout.size(), &pieces, &mut handlers);
        all.last().copied().unwrap_or(0)
    };
    Ok(Sent {
        pack_and_put: last(Sender::PackAndPut { pack }),
        streaming_put: last(Sender::StreamingPut { region }),
        process_put: last(Sender::ProcessPut),
    })
}
