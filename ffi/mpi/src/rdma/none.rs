// SPDX-License-Identifier: MIT OR Apache-2.0

//! The folder `rdma` without the feature `rdma`: nothing goes over RDMA.

pub fn finish(_get_on: impl Fn()) {}

pub fn progress() {}
