// SPDX-License-Identifier: MIT OR Apache-2.0

//! The structures of `<infiniband/verbs.h>` and `<infiniband/mlx5dv.h>` (rdma-core, from version 28
//! on) that are read or filled here. `tests/headers.rs` compares sizes and offsets with the
//! headers.

#![allow(missing_docs)]

use std::ffi::{c_char, c_int, c_uint, c_void};

/// `ENUM_IBV_*` and the other constants that are used.
pub mod constant {
    pub const QPT_RC: u32 = 2;
    pub const QPS_INIT: u32 = 1;
    pub const QPS_RTR: u32 = 2;
    pub const QPS_RTS: u32 = 3;
    pub const QPS_ERR: u32 = 6;
    pub const ACCESS_LOCAL_WRITE: u32 = 1;
    pub const ACCESS_REMOTE_WRITE: u32 = 2;
    pub const WR_RDMA_WRITE: u32 = 0;
    pub const WR_SEND: u32 = 2;
    pub const SEND_SIGNALED: u32 = 2;
    pub const SEND_FENCE: u32 = 1;
    pub const QP_STATE: c32 = 1;
    pub const QP_ACCESS_FLAGS: c32 = 1 << 3;
    pub const QP_PKEY_INDEX: c32 = 1 << 4;
    pub const QP_PORT: c32 = 1 << 5;
    pub const QP_AV: c32 = 1 << 7;
    pub const QP_PATH_MTU: c32 = 1 << 8;
    pub const QP_TIMEOUT: c32 = 1 << 9;
    pub const QP_RETRY_CNT: c32 = 1 << 10;
    pub const QP_RNR_RETRY: c32 = 1 << 11;
    pub const QP_RQ_PSN: c32 = 1 << 12;
    pub const QP_MAX_QP_RD_ATOMIC: c32 = 1 << 13;
    pub const QP_MIN_RNR_TIMER: c32 = 1 << 15;
    pub const QP_SQ_PSN: c32 = 1 << 16;
    pub const QP_MAX_DEST_RD_ATOMIC: c32 = 1 << 17;
    pub const QP_DEST_QPN: c32 = 1 << 20;
    pub const PORT_ACTIVE: u32 = 4;
    pub const LINK_LAYER_ETHERNET: u8 = 2;
    pub const GID_TYPE_ROCE_V2: u32 = 2;
    pub const QP_INIT_ATTR_PD: u32 = 1;
    pub const QP_INIT_ATTR_SEND_OPS_FLAGS: u32 = 1 << 6;
    pub const QP_EX_WITH_RDMA_WRITE: u64 = 1;
    pub const QP_EX_WITH_SEND: u64 = 1 << 2;
    pub const QP_EX_WITH_LOCAL_INV: u64 = 1 << 7;
    pub const MLX5_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS: u64 = 1 << 2;
    pub const MLX5_QP_EX_WITH_MR_INTERLEAVED: u64 = 1 << 0;
    pub const MLX5_QP_EX_WITH_MR_LIST: u64 = 1 << 1;
    pub const MLX5_MKEY_INIT_ATTR_FLAGS_INDIRECT: u32 = 1;
    #[allow(non_camel_case_types)]
    type c32 = std::ffi::c_int;
}

/// `struct ibv_device`, `ibv_pd`, `ibv_cq`, whose fields are not needed.
pub type Opaque = *mut c_void;

#[repr(C)]
pub struct ContextOps {
    pub compat_1: [*mut c_void; 11],
    pub poll_cq: Option<unsafe extern "C" fn(Opaque, c_int, *mut Wc) -> c_int>,
    pub req_notify_cq: Option<unsafe extern "C" fn(Opaque, c_int) -> c_int>,
    pub compat_2: [*mut c_void; 7],
    pub post_srq_recv: *mut c_void,
    pub compat_3: [*mut c_void; 4],
    pub post_send: Option<unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int>,
    pub post_recv: Option<unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
    pub compat_4: [*mut c_void; 5],
}

#[repr(C)]
pub struct Context {
    pub device: Opaque,
    pub ops: ContextOps,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

#[repr(C)]
pub struct SendWr {
    pub wr_id: u64,
    pub next: *mut SendWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
    pub opcode: c_uint,
    pub send_flags: c_uint,
    pub imm_data: u32,
    pub remote_addr: u64,
    pub rkey: u32,
    pub wr_rest: [u32; 5],
    pub qp_type: u64,
    pub bind_mw: [u64; 6],
}

#[repr(C)]
pub struct RecvWr {
    pub wr_id: u64,
    pub next: *mut RecvWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Wc {
    pub wr_id: u64,
    pub status: c_uint,
    pub opcode: c_uint,
    pub vendor_err: u32,
    pub byte_len: u32,
    pub imm_data: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: c_uint,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

#[repr(C)]
pub struct Mr {
    pub context: *mut Context,
    pub pd: Opaque,
    pub addr: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

#[repr(C)]
pub struct Qp {
    pub context: *mut Context,
    pub qp_context: *mut c_void,
    pub pd: Opaque,
    pub send_cq: Opaque,
    pub recv_cq: Opaque,
    pub srq: Opaque,
    pub handle: u32,
    pub qp_num: u32,
    pub state: c_uint,
    pub qp_type: c_uint,
    pub mutex: libc::pthread_mutex_t,
    pub cond: libc::pthread_cond_t,
    pub events_completed: u32,
}

#[repr(C)]
pub struct CompChannel {
    pub context: *mut Context,
    pub fd: c_int,
    pub refcnt: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct QpCap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

#[repr(C)]
pub struct QpInitAttr {
    pub qp_context: *mut c_void,
    pub send_cq: Opaque,
    pub recv_cq: Opaque,
    pub srq: Opaque,
    pub cap: QpCap,
    pub qp_type: c_uint,
    pub sq_sig_all: c_int,
}

#[repr(C)]
pub struct QpInitAttrEx {
    pub qp_context: *mut c_void,
    pub send_cq: Opaque,
    pub recv_cq: Opaque,
    pub srq: Opaque,
    pub cap: QpCap,
    pub qp_type: c_uint,
    pub sq_sig_all: c_int,
    pub comp_mask: u32,
    pub pd: Opaque,
    pub xrcd: Opaque,
    pub create_flags: u32,
    pub max_tso_header: u16,
    pub rwq_ind_tbl: Opaque,
    /// `struct ibv_rx_hash_conf`: two bytes, a pointer, a number.
    pub rx_hash_conf: [u64; 3],
    pub source_qpn: u32,
    pub send_ops_flags: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct GlobalRoute {
    pub dgid: [u64; 2],
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct AhAttr {
    pub grh: GlobalRoute,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct QpAttr {
    pub qp_state: c_uint,
    pub cur_qp_state: c_uint,
    pub path_mtu: c_uint,
    pub path_mig_state: c_uint,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: c_uint,
    pub cap: QpCap,
    pub ah_attr: AhAttr,
    pub alt_ah_attr: AhAttr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct DeviceAttr {
    pub fw_ver: [c_char; 64],
    pub node_guid: u64,
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: c_int,
    pub max_qp_wr: c_int,
    pub device_cap_flags: c_uint,
    pub max_sge: c_int,
    pub max_sge_rd: c_int,
    pub max_cq: c_int,
    pub max_cqe: c_int,
    pub max_mr: c_int,
    /// From `max_pd` on.
    pub rest: [u32; 22],
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct PortAttr {
    pub state: c_uint,
    pub max_mtu: c_uint,
    pub active_mtu: c_uint,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct GidEntry {
    pub gid: [u64; 2],
    pub gid_index: u32,
    pub port_num: u32,
    pub gid_type: u32,
    pub ndev_ifindex: u32,
}

/// `struct ibv_qp_ex`; functions that are not called are pointers without a type.
#[repr(C)]
pub struct QpEx {
    pub qp_base: Qp,
    pub comp_mask: u64,
    pub wr_id: u64,
    pub wr_flags: c_uint,
    pub wr_atomic_cmp_swp: *mut c_void,
    pub wr_atomic_fetch_add: *mut c_void,
    pub wr_bind_mw: *mut c_void,
    pub wr_local_inv: Option<unsafe extern "C" fn(*mut QpEx, u32)>,
    pub wr_rdma_read: *mut c_void,
    pub wr_rdma_write: Option<unsafe extern "C" fn(*mut QpEx, u32, u64)>,
    pub wr_rdma_write_imm: *mut c_void,
    pub wr_send: *mut c_void,
    pub wr_send_imm: *mut c_void,
    pub wr_send_inv: *mut c_void,
    pub wr_send_tso: *mut c_void,
    pub wr_set_ud_addr: *mut c_void,
    pub wr_set_xrc_srqn: *mut c_void,
    pub wr_set_inline_data: *mut c_void,
    pub wr_set_inline_data_list: *mut c_void,
    pub wr_set_sge: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u32)>,
    pub wr_set_sge_list: *mut c_void,
    pub wr_start: Option<unsafe extern "C" fn(*mut QpEx)>,
    pub wr_complete: Option<unsafe extern "C" fn(*mut QpEx) -> c_int>,
    pub wr_abort: Option<unsafe extern "C" fn(*mut QpEx)>,
}

#[repr(C)]
pub struct Mlx5QpEx {
    pub comp_mask: u64,
    pub wr_set_dc_addr: *mut c_void,
    pub wr_mr_interleaved: Option<
        unsafe extern "C" fn(*mut Mlx5QpEx, *mut Mlx5Mkey, u32, u32, u16, *mut Mlx5Interleaved),
    >,
    pub wr_mr_list: Option<unsafe extern "C" fn(*mut Mlx5QpEx, *mut Mlx5Mkey, u32, u16, *mut Sge)>,
}

/// `struct mlx5dv_mr_interleaved`: a block of the part of memory that is repeated.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mlx5Interleaved {
    pub addr: u64,
    pub bytes_count: u32,
    pub bytes_skip: u32,
    pub lkey: u32,
}

#[repr(C)]
pub struct Mlx5QpInitAttr {
    pub comp_mask: u64,
    pub create_flags: u32,
    pub padding: u32,
    /// `struct mlx5dv_dc_init_attr`, which begins at a multiple of 8.
    pub dc_type: c_uint,
    pub dct_access_key: u64,
    pub send_ops_flags: u64,
}

#[repr(C)]
pub struct Mlx5MkeyInitAttr {
    pub pd: Opaque,
    pub create_flags: u32,
    pub max_entries: u16,
}

#[repr(C)]
pub struct Mlx5Mkey {
    pub lkey: u32,
    pub rkey: u32,
}
