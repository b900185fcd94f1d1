// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the feature `rdma` has here, without it: no message goes to another machine past the MPI
//! library.

/// What [`remote`](super::remote) has with the feature.
pub mod remote {
    use std::ffi::{c_int, c_void};

    use crate::comm::communicator::Comm;
    use crate::comm::processes::World;
    use crate::library::abi::{Abi, Word};
    use crate::library::status::Status;
    use crate::messages::arguments::{Address, Elements, Mode};
    use crate::messages::truncation::Failed;
    use libcopy::p2p::View;

    /// Functions with the same answer to everything.
    macro_rules! constant {
        ($($name:ident($($argument:ident: $kind:ty),*) $(-> $result:ty = $answer:expr)?;)*) => { $(
            pub fn $name($($argument: $kind),*) $(-> $result)? {
                $($answer)?
            }
        )* };
    }

    constant! {
        is_header(_slot: usize) -> bool = false;
        wanted() -> u8 = 0;
        is_possible() -> bool = false;
        is_joint() -> bool = false;
        forget();
        start(_abi: &'static Abi);
        meet(_abi: &'static Abi, _comm: Word, _known: &Comm) -> Option<Word> = None;
        is_own(_world: &World, _slot: usize, _to: Address) -> bool = false;
        choose(_world: &World, _what: Elements, _to: Address) -> Option<Chosen> = None;
        sender(
            _world: &World, _slot: usize, _known: &Comm, _comm: Word, _source: c_int
        ) -> Option<c_int> = None;
        receive(
            _world: &World, _rank: c_int, _view: &View, _capacity: u64
        ) -> Option<Result<u64, Failed>> = None;
        true_length(_world: &World, _comm: Word, _status: Status) -> Option<u64> = None;
        matched(_world: &World, _comm: Word, _header: (u64, Status));
        cut_short(_world: &World, _comm: Word, _status: Status) -> bool = false;
        give_back(_view: &View, _capacity: u64);
    }

    /// A message over RDMA, of which there is none.
    pub enum Chosen {}

    impl Chosen {
        pub unsafe fn send(self, _world: &World, _mode: Mode) -> c_int {
            match self {}
        }

        pub unsafe fn isend(self, _world: &World, _mode: Mode, _request: *mut c_void) -> c_int {
            match self {}
        }
    }
}

/// What intercepts alltoalls of several types.
pub mod rdma_alltoallw {
    pub use crate::collectives::irregular::alltoallw;
    pub use crate::collectives::neighbours::neighbor_alltoallw;
}
