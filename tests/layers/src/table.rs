// SPDX-License-Identifier: MIT OR Apache-2.0

//! The one table of orders: which crate, and which file of a crate, stands above which.
//!
//! An order is written from the bottom to the top, `<` between layers. A word names a file or a
//! directory, without `.rs` and relative to the crate's root file; the longest word that fits a
//! file decides. So in `shm/segment < shm < team` the other files of `shm` stand above
//! `shm/segment`. Files of one layer may use each other, but not in a circle. The root file stands
//! above all others.

/// The order of one crate.
#[derive(Debug)]
pub struct Layers {
    pub name: &'static str,
    /// The root file, relative to the top of the repository.
    pub root: &'static str,
    pub order: &'static str,
}

/// The crates of the workspace. Crates of one layer do not depend on each other.
pub const CRATES: &str = "
    libcopy-uapi libcopy-walk libcopy-interpose libcopy-report
    < libcopy-datatype libcopy-nic-handlers
    < libcopy-gpu libcopy-nic libcopy-rdma
    < libcopy
    < libcopy-ffi-macros libcopy-measure libcopy-model
    < libcopy-bench
    < libcopy-ffi libcopy-async libcopy-mpi libcopy-cli libcopy-lab
    < ioat-model libcopy-layers libcopy-manual libcopy-xtask
    < libcopy-tests";

/// Crates whose files are all in folders, each of which uses only folders before it; and their
/// files that are beside them.
pub const ROOMS: [(&str, &[&str]); 2] = [("libcopy-mpi", &[]), ("kmod", &["uapi"])];

pub const TABLE: &[Layers] = &[
    Layers {
        name: "libcopy",
        root: "libcopy/src/lib.rs",
        order: "
            transport/kind
            < error op lock lru refusal scratch
            < mapping
            < process
            < topology/cpus
            < topology/tree
            < config topology memcpy
            < plan/tree plan/call plan/stage
            < plan/held plan/signal plan/costs plan/executor
            < plan/alike plan/exchange
            < plan/combine plan/blocks plan/scan plan/check plan/price
            < plan/plans
            < plan/choose
            < plan/planner
            < plan
            < policy/executor policy/bands policy/oversubscription policy/backoff policy/governor policy/contention
            < policy/thresholds policy/monitor
            < policy/words policy/table policy/profile
            < policy/load
            < policy
            < device/ioctl device/key device/region_id
            < device/domain
            < device/region
            < device/owned_region
            < device/copy device/attachment device/request device/watcher
            < device
            < team/key
            < shm/sync
            < shm/claims shm/doorbell shm/ring shm/puts shm/reports shm/turns shm/anonymous shm/meeting
            < shm/barrier shm/board shm/contribution shm/leading shm/writes
            < shm/segment
            < shm/cause shm/message_segment
            < shm/wait
            < shm/mailbox
            < shm
            < offload/vma offload/signal offload/stack
            < offload/guard
            < offload/pending
            < offload/transfers
            < offload
            < transport/remote_key
            < transport/one_sided transport/process_memory transport/mapped
            < transport/cma transport/kmod transport/stream
            < transport/machine
            < transport
            < p2p/header p2p/path p2p/protocol p2p/registration p2p/view p2p/events p2p/matching
            < p2p/segment p2p/buffer
            < p2p/context
            < p2p/outgoing
            < p2p/incoming
            < p2p/messenger
            < team/decision team/launch team/places team/probe team/resumption team/usage
            < team/membership
            < team
            < collective/division
            < collective/nonblocking/agreement
            < collective/nonblocking/engine collective/nonblocking/table
            < collective/nonblocking/operation
            < collective/nonblocking
            < collective/cooperative collective/planned
            < collective/direct
            < collective/exchange collective/chunked
            < collective/offloaded
            < collective/allgather collective/alltoall collective/bcast collective/gather collective/scatter
            < collective/reduce
            < collective/calls
            < collective
            < p2p/calls
            < p2p
            < tune/fit tune/forked tune/neighbours
            < tune/contention
            < calibration tune",
    },
    Layers {
        name: "libcopy-walk",
        root: "libcopy/walk/src/lib.rs",
        order: "
            word
            < tree
            < image state
            < check
            < builder",
    },
    Layers {
        name: "libcopy-nic-handlers",
        root: "libcopy/nic/handlers/src/lib.rs",
        order: "
            device segment
            < specialised general send
            < abi",
    },
    Layers {
        name: "libcopy-datatype",
        root: "libcopy/datatype/src/lib.rs",
        order: "
            room nearest memcpy
            < error offsets comparison
            < kernel/caches kernel/loop_nest kernel/prefetch kernel/profile kernel/pattern kernel/instructions
            < kernel/far
            < kernel/x86/piece kernel/x86/short kernel/x86/long_blocks kernel/x86/periodic
            < kernel/short_blocks kernel/long_blocks kernel/periodic
            < kernel/tiles
            < kernel/x86
            < kernel/transpose kernel/piece
            < kernel/sorted
            < kernel/order
            < kernel/indexed kernel/block_writer kernel/select
            < kernel
            < named signature steps
            < form
            < datatype tree
            < construct overlap
            < elements expr/parse expr/write flat
            < expr
            < plan describe
            < normalize/lists normalize/peel
            < normalize/arena
            < normalize/rewrite
            < normalize/long normalize/joined
            < normalize/members
            < normalize
            < layout
            < pack cursor external32 image reduce serialize
            < typed_copy/buffer typed_copy/thresholds
            < typed_copy/regular typed_copy/walk
            < typed_copy/bounce typed_copy/fill typed_copy/joint typed_copy/stage typed_copy/zip
            < typed_copy/weave
            < typed_copy/pairs
            < typed_copy/select
            < typed_copy",
    },
    Layers {
        name: "libcopy-gpu",
        root: "libcopy/gpu/src/lib.rs",
        order: "
            error job plan
            < driver launch
            < mapping memory ptx
            < device
            < context
            < model pending
            < buffer
            < gpu
            < baseline engine peer
            < measure",
    },
    Layers {
        name: "libcopy-nic",
        root: "libcopy/nic/src/lib.rs",
        order: "
            iss/timing iss/instruction iss/compressed
            < iss/memory
            < iss/trap
            < iss/hart
            < iss
            < card/events card/handlers card/matching card/memory card/parameters card/random
            < card/network card/pcie
            < card/iovec card/model card/outbound
            < card
            < run/program
            < run/commands
            < run/native run/core
            < run/costs run/message
            < run
            < plan
            < simulate",
    },
    Layers {
        name: "libcopy-rdma",
        root: "libcopy/rdma/src/lib.rs",
        order: "
            error
            < channel iov
            < cut pool
            < cache card choice
            < endpoint keys message report workloads
            < emulated
            < verbs/sys
            < verbs/library
            < verbs/device
            < verbs/mkey
            < verbs/connection
            < verbs/endpoint
            < verbs
            < gather registrations
            < wire
            < sending
            < receiving
            < transfer
            < ranks tune
            < counts",
    },
    Layers {
        name: "libcopy-measure",
        root: "libcopy/measure/src/lib.rs",
        order: "
            buffer gpu_owner interval layouts machine pattern peer_process progress sample sizes threads
            < rank report ratio_plot shared
            < typed
            < heat_map plot
            < output",
    },
    Layers {
        name: "libcopy-bench",
        root: "libcopy/bench/src/lib.rs",
        order: "
            types/results
            < commit comparison contention layout_rows plans stages
            < coll device one_type types
            < many
            < command",
    },
    Layers {
        name: "libcopy-model",
        root: "libcopy/model/src/lib.rs",
        order: "
            flow/error
            < flow/activities
            < flow/classes
            < flow/sharing
            < flow/simulate
            < flow
            < describe machines peers simulate",
    },
    Layers {
        name: "libcopy-lab",
        root: "libcopy/lab/src/main.rs",
        order: "
            gpu/cell gpu/program
            < gpu/setup
            < gpu/contention gpu/experiments gpu/messages
            < gpu/command
            < gpu
            < pairs paper_claims
            < simulated
            < applications
            < scale speedup
            < offload/experiment offload/model offload/player
            < offload/engines offload/fragments offload/programs
            < offload/command
            < offload
            < nic/host nic/loggops
            < nic/figures/claim nic/figures/study
            < nic/figures/applications nic/figures/micro
            < nic/figures/evaluation
            < nic/figures
            < nic/chart nic/memory
            < nic/receive nic/reproduce
            < nic/command
            < nic
            < rdma/model
            < rdma/command
            < rdma
            < command",
    },
    Layers {
        name: "libcopy-cli",
        root: "libcopy/cli/src/lib.rs",
        order: "
            cli/mpi/child cli/mpi/program cli/mpi/report
            < cli/mpi/launcher
            < cli/mpi/library cli/mpi/prepare
            < cli/ranks
            < cli/mpi/start
            < cli/mpi/run cli/mpi/compare cli/mpi/profile cli/doctor/finding
            < cli/doctor/machine cli/doctor/mpi
            < cli/datatype cli/doctor cli/gpu cli/info cli/mpi cli/plan cli/rdma cli/run
            < cli/tune
            < cli",
    },
    Layers {
        name: "libcopy-mpi",
        root: "ffi/mpi/src/lib.rs",
        order: "
            library/loaded library/abi library/tools library/stats library/count library/functions library/buffers library/relocations library/panics library/unwinder library/failure library/forked library/per_thread library/requests library/unusual
            library/times
            < library/pmpi/functions
            < library/attributes library/neighbourhood library/predefined library/world_model
            < library/async_guard
            < library/pmpi library/threads
            < library/profile
            < library/progress
            < library/errors
            < library/status
            < library/fallback library
            < bootstrap/own_collectives
            < bootstrap/launcher bootstrap/table
            < bootstrap/rendezvous bootstrap/world
            < bootstrap/agreement
            < bootstrap
            < decide/environment decide/threshold decide/worth
            < decide/prior decide/classes decide/price
            < decide/waits
            < decide/active decide
            < types/fortran_names types/type_size types/trial
            < types/datatype
            < types/earned
            < types/buffer
            < types/parts types
            < gpu/watch gpu/method gpu/staging gpu/upcalls
            < gpu/report
            < gpu/elements
            < gpu/delayed gpu/landing
            < gpu/waiting_functions
            < gpu/call gpu/peer
            < gpu/requests
            < gpu/collective gpu/packing gpu/external
            < gpu
            < comm/hierarchy
            < comm/peers
            < comm/processes
            < comm/order
            < comm/group comm/teams
            < comm/nonblocking_group
            < comm/communicator
            < comm/reach comm/dispatch comm
            < rdma/mode rdma/counts rdma/header rdma/wire
            < rdma/control rdma/link
            < rdma/memory rdma/peer
            < rdma/state
            < rdma/incoming rdma/outgoing
            < rdma/engine
            < rdma/finish
            < rdma/meet
            < rdma
            < collectives/governor collectives/nonblocking/meet collectives/small_calls
            < collectives/repeated
            < collectives/intercept
            < collectives/regular collectives/reductions collectives/irregular collectives/neighbours collectives/barrier
            < collectives/nonblocking
            < collectives/persistent collectives
            < packing/governor
            < packing/pack packing/external32 packing
            < messages/pack_memory messages/view
            < messages
            < exports/rights exports/fortran_arguments
            < exports/collectives
            < exports/fortran exports",
    },
    Layers {
        name: "libcopy-ffi",
        root: "ffi/src/lib.rs",
        order: "
            error
            < arguments
            < datatype/constants datatype/handle
            < datatype/construct datatype/inspect datatype/transfer
            < datatype/gpu
            < datatype wrappers
            < team
            < exchange nic offload messages",
    },
    Layers {
        name: "libcopy-ffi-macros",
        root: "ffi/macros/src/lib.rs",
        order: "expand",
    },
    Layers {
        name: "libcopy-async",
        root: "ffi/async/src/lib.rs",
        order: "",
    },
    Layers {
        name: "libcopy-interpose",
        root: "ffi/interpose/src/lib.rs",
        order: "",
    },
    Layers {
        name: "kmod",
        root: "kmod/libcopy_main.rs",
        order: "
            uapi
            < abstractions/errno abstractions/declarations
            < abstractions/shim
            < abstractions/iov_iter abstractions/irqlock abstractions/miscdevice abstractions/vm_operations abstractions
            < base/few base/params base/stats base/workqueue base
            < memory/changed memory/changes memory/user_account memory/user_namespace
            < memory/shrinker memory/spans memory/address_space memory/user
            < memory/watch
            < memory/pin memory/account
            < memory/mapping
            < memory/idle memory
            < domain/group
            < domain/member
            < domain/region
            < domain/regions domain/copy domain
            < attach/attachment
            < attach/fault
            < attach/vma attach
            < requests/atomic requests/lost
            < requests/fragments
            < requests/job requests/status
            < requests/copier requests/slots
            < requests/request
            < requests/copiers
            < requests/workers requests
            < engine/dmaengine engine/thread
            < engine/device
            < engine/dma_map engine/trial engine/leaving
            < engine/dma_device
            < engine/facts engine/supervisor engine/queue engine/hardware
            < engine/slot
            < engine/channel
            < engine/engines engine
            < file/domains
            < file/process
            < file/handle file/argument
            < file/ioctl
            < file/operations file",
    },
];

impl Layers {
    /// The word that decides where `file` stands, for example `shm` for `shm/ring` and `shm/mod`.
    pub fn entry(&self, file: &str) -> Option<&'static str> {
        let fits = |word: &&str| {
            file.strip_prefix(*word)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        self.words().filter(fits).max_by_key(|word| word.len())
    }

    /// The layer of `file`, counted from the bottom.
    pub fn rank(&self, file: &str) -> Option<usize> {
        let word = self.entry(file)?;
        rank(self.order, word)
    }

    /// The folder of `file`: what is before the first `/`.
    fn folder(file: &str) -> &str {
        file.split('/').next().unwrap_or(file)
    }

    /// Folders that stand in more than one place of the order, so that files of another one come
    /// between theirs.
    pub fn split_folders(&self) -> Vec<&'static str> {
        let (mut done, mut split) = (Vec::new(), Vec::new());
        let mut current = None;
        for layer in self.order.split('<') {
            for word in layer.split_whitespace() {
                let folder = Self::folder(word);
                if current != Some(folder) {
                    if done.contains(&folder) {
                        split.push(folder);
                    }
                    done.push(folder);
                    current = Some(folder);
                }
            }
        }
        split
    }

    pub fn words(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.order.split_whitespace().filter(|word| *word != "<")
    }
}

/// The layer of `word` in an order.
pub fn rank(order: &str, word: &str) -> Option<usize> {
    order
        .split('<')
        .position(|layer| layer.split_whitespace().any(|other| other == word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_word_decides() {
        let layers = Layers {
            name: "made-up",
            root: "lib.rs",
            order: "error < shm/segment < shm < team",
        };
        assert_eq!(layers.rank("error"), Some(0));
        assert_eq!(layers.rank("shm/segment"), Some(1));
        assert_eq!(layers.rank("shm/ring"), Some(2));
        assert_eq!(layers.rank("shm/mod"), Some(2));
        assert_eq!(layers.rank("team"), Some(3));
        assert_eq!(layers.rank("teams"), None);
    }

    #[test]
    fn a_folder_is_split_by_files_of_another() {
        let layers = |order| Layers {
            name: "made-up",
            root: "lib.rs",
            order,
        };
        assert_eq!(layers("a/x < a/y a < b/z b").split_folders(), [""; 0]);
        assert_eq!(layers("a/x < b/z b < a/y a").split_folders(), ["a"]);
        assert_eq!(layers("a/x b/z < a/y < b").split_folders(), ["a", "b"]);
    }

    #[test]
    fn no_word_stands_twice() {
        for layers in TABLE {
            let mut words: Vec<_> = layers.words().collect();
            let all = words.len();
            words.sort_unstable();
            words.dedup();
            assert_eq!(words.len(), all, "{}", layers.name);
        }
    }
}
