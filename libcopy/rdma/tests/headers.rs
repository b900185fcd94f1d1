// SPDX-License-Identifier: MIT OR Apache-2.0

//! The structures of `verbs::sys` have the sizes and offsets that a C compiler gives those of the
//! headers.

use std::fs;
use std::mem::offset_of;
use std::path::Path;
use std::process::Command;

use libcopy_rdma::verbs::sys;

/// The C expression of each size or offset, and what it is here.
macro_rules! facts {
    ($($name:literal $type:ident { $($c:literal $field:ident),* $(,)? } $($size:ident)?;)*) => {
        vec![$(
            $((format!("offsetof(struct {}, {})", $name, $c), offset_of!(sys::$type, $field)),)*
            $(facts!(@$size $name $type),)?
        )*]
    };
    (@size $name:literal $type:ident) => {
        (format!("sizeof(struct {})", $name), size_of::<sys::$type>())
    };
}

fn facts() -> Vec<(String, usize)> {
    facts! {
        "ibv_context" Context { "device" device, "ops" ops, "cmd_fd" cmd_fd, "num_comp_vectors" num_comp_vectors };
        "ibv_context_ops" ContextOps {
            "poll_cq" poll_cq, "req_notify_cq" req_notify_cq, "post_srq_recv" post_srq_recv, "post_send" post_send,
            "post_recv" post_recv
        } size;
        "ibv_sge" Sge { "addr" addr, "length" length, "lkey" lkey } size;
        "ibv_send_wr" SendWr {
            "wr_id" wr_id, "next" next, "sg_list" sg_list, "num_sge" num_sge, "opcode" opcode,
            "send_flags" send_flags, "imm_data" imm_data, "wr.rdma.remote_addr" remote_addr, "wr.rdma.rkey" rkey,
            "qp_type" qp_type, "bind_mw" bind_mw
        } size;
        "ibv_recv_wr" RecvWr { "wr_id" wr_id, "next" next, "sg_list" sg_list, "num_sge" num_sge } size;
        "ibv_wc" Wc {
            "wr_id" wr_id, "status" status, "opcode" opcode, "byte_len" byte_len, "imm_data" imm_data,
            "qp_num" qp_num, "wc_flags" wc_flags, "dlid_path_bits" dlid_path_bits
        } size;
        "ibv_mr" Mr { "addr" addr, "length" length, "lkey" lkey, "rkey" rkey } size;
        "ibv_qp" Qp { "qp_num" qp_num, "state" state, "events_completed" events_completed } size;
        "ibv_comp_channel" CompChannel { "fd" fd, "refcnt" refcnt } size;
        "ibv_qp_init_attr" QpInitAttr {
            "send_cq" send_cq, "recv_cq" recv_cq, "cap" cap, "qp_type" qp_type, "sq_sig_all" sq_sig_all
        } size;
        "ibv_qp_init_attr_ex" QpInitAttrEx {
            "cap" cap, "sq_sig_all" sq_sig_all, "comp_mask" comp_mask, "pd" pd, "send_ops_flags" send_ops_flags
        } size;
        "ibv_ah_attr" AhAttr { "grh" grh, "dlid" dlid, "is_global" is_global, "port_num" port_num } size;
        "ibv_global_route" GlobalRoute {
            "dgid" dgid, "sgid_index" sgid_index, "hop_limit" hop_limit
        } size;
        "ibv_qp_attr" QpAttr {
            "path_mtu" path_mtu, "dest_qp_num" dest_qp_num, "qp_access_flags" qp_access_flags, "ah_attr" ah_attr,
            "pkey_index" pkey_index, "max_rd_atomic" max_rd_atomic, "min_rnr_timer" min_rnr_timer,
            "port_num" port_num, "timeout" timeout, "retry_cnt" retry_cnt, "rnr_retry" rnr_retry
        } size;
        "ibv_device_attr" DeviceAttr { "max_qp_wr" max_qp_wr, "max_sge" max_sge, "max_pd" rest } size;
        "ibv_port_attr" PortAttr {
            "state" state, "active_mtu" active_mtu, "gid_tbl_len" gid_tbl_len, "max_msg_sz" max_msg_sz, "lid" lid,
            "link_layer" link_layer
        } size;
        "ibv_gid_entry" GidEntry { "gid" gid, "gid_type" gid_type, "ndev_ifindex" ndev_ifindex } size;
        "ibv_qp_ex" QpEx {
            "wr_id" wr_id, "wr_flags" wr_flags, "wr_local_inv" wr_local_inv, "wr_rdma_write" wr_rdma_write,
            "wr_set_sge" wr_set_sge, "wr_start" wr_start, "wr_complete" wr_complete, "wr_abort" wr_abort
        };
        "mlx5dv_qp_ex" Mlx5QpEx { "wr_mr_interleaved" wr_mr_interleaved, "wr_mr_list" wr_mr_list };
        "mlx5dv_mr_interleaved" Mlx5Interleaved {
            "addr" addr, "bytes_count" bytes_count, "bytes_skip" bytes_skip, "lkey" lkey
        } size;
        "mlx5dv_qp_init_attr" Mlx5QpInitAttr {
            "create_flags" create_flags, "dc_init_attr" dc_type, "send_ops_flags" send_ops_flags
        } size;
        "mlx5dv_mkey_init_attr" Mlx5MkeyInitAttr {
            "pd" pd, "create_flags" create_flags, "max_entries" max_entries
        } size;
        "mlx5dv_mkey" Mlx5Mkey { "lkey" lkey, "rkey" rkey } size;
    }
}

/// Values of the constants, by their names in C.
fn constants() -> Vec<(&'static str, u64)> {
    use sys::constant as c;
    vec![
        ("IBV_QPT_RC", c::QPT_RC.into()),
        ("IBV_QPS_INIT", c::QPS_INIT.into()),
        ("IBV_QPS_RTR", c::QPS_RTR.into()),
        ("IBV_QPS_RTS", c::QPS_RTS.into()),
        ("IBV_QPS_ERR", c::QPS_ERR.into()),
        ("IBV_ACCESS_LOCAL_WRITE", c::ACCESS_LOCAL_WRITE.into()),
        ("IBV_ACCESS_REMOTE_WRITE", c::ACCESS_REMOTE_WRITE.into()),
        ("IBV_WR_RDMA_WRITE", c::WR_RDMA_WRITE.into()),
        ("IBV_WR_SEND", c::WR_SEND.into()),
        ("IBV_SEND_SIGNALED", c::SEND_SIGNALED.into()),
        ("IBV_SEND_FENCE", c::SEND_FENCE.into()),
        ("IBV_QP_STATE", c::QP_STATE as u64),
        ("IBV_QP_ACCESS_FLAGS", c::QP_ACCESS_FLAGS as u64),
        ("IBV_QP_PKEY_INDEX", c::QP_PKEY_INDEX as u64),
        ("IBV_QP_PORT", c::QP_PORT as u64),
        ("IBV_QP_AV", c::QP_AV as u64),
        ("IBV_QP_PATH_MTU", c::QP_PATH_MTU as u64),
        ("IBV_QP_TIMEOUT", c::QP_TIMEOUT as u64),
        ("IBV_QP_RETRY_CNT", c::QP_RETRY_CNT as u64),
        ("IBV_QP_RNR_RETRY", c::QP_RNR_RETRY as u64),
        ("IBV_QP_RQ_PSN", c::QP_RQ_PSN as u64),
        ("IBV_QP_MAX_QP_RD_ATOMIC", c::QP_MAX_QP_RD_ATOMIC as u64),
        ("IBV_QP_MIN_RNR_TIMER", c::QP_MIN_RNR_TIMER as u64),
        ("IBV_QP_SQ_PSN", c::QP_SQ_PSN as u64),
        ("IBV_QP_MAX_DEST_RD_ATOMIC", c::QP_MAX_DEST_RD_ATOMIC as u64),
        ("IBV_QP_DEST_QPN", c::QP_DEST_QPN as u64),
        ("IBV_PORT_ACTIVE", c::PORT_ACTIVE.into()),
        ("IBV_LINK_LAYER_ETHERNET", c::LINK_LAYER_ETHERNET.into()),
        ("IBV_GID_TYPE_ROCE_V2", c::GID_TYPE_ROCE_V2.into()),
        ("IBV_QP_INIT_ATTR_PD", c::QP_INIT_ATTR_PD.into()),
        (
            "IBV_QP_INIT_ATTR_SEND_OPS_FLAGS",
            c::QP_INIT_ATTR_SEND_OPS_FLAGS.into(),
        ),
        ("IBV_QP_EX_WITH_RDMA_WRITE", c::QP_EX_WITH_RDMA_WRITE),
        ("IBV_QP_EX_WITH_SEND", c::QP_EX_WITH_SEND),
        ("IBV_QP_EX_WITH_LOCAL_INV", c::QP_EX_WITH_LOCAL_INV),
        (
            "MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS",
            c::MLX5_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS,
        ),
        (
            "MLX5DV_QP_EX_WITH_MR_INTERLEAVED",
            c::MLX5_QP_EX_WITH_MR_INTERLEAVED,
        ),
        ("MLX5DV_QP_EX_WITH_MR_LIST", c::MLX5_QP_EX_WITH_MR_LIST),
        (
            "MLX5DV_MKEY_INIT_ATTR_FLAGS_INDIRECT",
            c::MLX5_MKEY_INIT_ATTR_FLAGS_INDIRECT.into(),
        ),
    ]
}

#[test]
fn structures_are_those_of_the_headers() {
    if !Path::new("/usr/include/infiniband/mlx5dv.h").exists() {
        eprintln!("skipped: no headers (Debian: package libibverbs-dev)");
        return;
    }
    let facts: Vec<(String, u64)> = facts()
        .into_iter()
        .map(|(name, value)| (name, value as u64))
        .chain(
            constants()
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value)),
        )
        .collect();
    let mut source = "#include <stddef.h>\n#include <stdio.h>\n#include <infiniband/verbs.h>\n#include <infiniband/mlx5dv.h>\nint main(void) {\n".to_owned();
    for (expression, _) in &facts {
        source += &format!("printf(\"%llu\\n\", (unsigned long long)({expression}));\n");
    }
    source += "return 0; }\n";
    let place = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (file, program) = (place.join("headers.c"), place.join("headers"));
    fs::write(&file, source).unwrap();
    let mut cc = Command::new("cc");
    let status = cc.arg("-o").arg(&program).arg(&file).status().unwrap();
    assert!(status.success());
    let output = Command::new(&program).output().unwrap();
    let values: Vec<u64> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| line.parse().unwrap())
        .collect();
    assert_eq!(values.len(), facts.len());
    for ((name, ours), theirs) in facts.iter().zip(values) {
        assert_eq!(*ours, theirs, "{name}");
    }
}
