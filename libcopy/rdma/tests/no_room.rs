// SPDX-License-Identifier: MIT OR Apache-2.0

//! Control messages with long lists where memory has no room for them.

#![allow(missing_docs)]

#[path = "../../datatype/tests/no_room/refusing.rs"]
mod refusing;

use std::sync::Arc;

use libcopy_rdma::Error;
use libcopy_rdma::cut::Cuts;
use libcopy_rdma::message::{Control, Offer};

#[test]
fn every_list_of_a_message_may_find_no_room() {
    let lengths = Arc::new(vec![8; 20_000]);
    let offers = [
        Offer::Sge(Cuts::Lengths(lengths.clone())),
        Offer::Umr {
            cuts: Some(Cuts::Lengths(lengths)),
            rkeys: Some(vec![7; 20_000]),
            entry: None,
        },
    ];
    for offer in offers {
        let message = Control::Cts { number: 1, offer };
        let no_room = |error: &Error| match error {
            Error::NoRoom(none) => Some(*none),
            _ => None,
        };
        let passed = || Control::from_bytes(&message.to_bytes()?, 0);
        let refused = refusing::refuse_each("a clear to send", 1, passed, no_room);
        assert!(refused >= 2, "{refused}");
    }
}
