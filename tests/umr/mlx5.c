// SPDX-License-Identifier: MIT OR Apache-2.0
//
// A double of libmlx5.so.1 for devices of rdma_rxe: the functions of <infiniband/mlx5dv.h> that
// libcopy/rdma calls, with indirect memory keys in software. What a program does with a ConnectX
// can so be tested without one: its requests, keys and completions, not their time.

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "double.h"

// WRITEs of rdma_rxe that may be queued per queue pair.
#define MAX_WORK_REQUESTS 4096u

bool mlx5dv_is_supported(struct ibv_device *device) {
    (void)device;
    return true;
}

// A number for a protection domain, of which other processes have none of the same.
static uint64_t pd_number(const struct ibv_pd *pd) {
    return (uint64_t)getpid() << 32 | (uint64_t)(pd->context->cmd_fd & 0xffff) << 16 | (pd->handle & 0xffff);
}

struct mlx5dv_mkey *mlx5dv_create_mkey(struct mlx5dv_mkey_init_attr *attr) {
    if (attr->create_flags != MLX5DV_MKEY_INIT_ATTR_FLAGS_INDIRECT || !attr->max_entries) {
        errno = EOPNOTSUPP;
        return NULL;
    }
    // The library rounds up to a multiple of 4.
    uint32_t entries = (attr->max_entries + 3u) & ~3u;
    if (entries > MAX_PIECES || is_faulty("create_mkey")) {
        errno = ENOMEM;
        return NULL;
    }
    struct mlx5dv_mkey *mkey = calloc(1, sizeof *mkey);
    struct table *table = mkey ? table_lock() : NULL;
    if (table) {
        mkey->lkey = mkey->rkey = table_create(table, pd_number(attr->pd), entries);
        table_unlock();
    }
    if (!table || !mkey->lkey) {
        free(mkey);
        errno = ENOMEM;
        return NULL;
    }
    return mkey;
}

int mlx5dv_destroy_mkey(struct mlx5dv_mkey *mkey) {
    struct table *table = table_lock();
    struct key *key = table ? table_find(table, mkey->lkey) : NULL;
    if (key)
        key->state = UNUSED;
    if (table)
        table_unlock();
    if (!key)
        return EINVAL;
    free(mkey);
    return 0;
}

void libcopy_umr_keys(uint32_t *all, uint32_t *mapped) {
    *all = *mapped = 0;
    struct table *table = table_lock();
    for (uint32_t index = 0; table && index < MAX_KEYS; index++) {
        const struct key *key = &table->keys[index];
        if (key->state == UNUSED || key->pid != getpid())
            continue;
        ++*all;
        *mapped += key->state == MAPPED;
    }
    if (table)
        table_unlock();
}

static void publish(struct double_qp *qp) {
    struct ibv_context *context = qp->ex->qp_base.context;
    struct pair pair = {.pd = qp->pd, .qp_num = qp->ex->qp_base.qp_num};
    struct ibv_port_attr port;
    int gids = ibv_query_port(context, 1, &port) ? 0 : port.gid_tbl_len;
    for (int index = 0, found = 0; index < gids && found < MAX_GIDS; index++) {
        union ibv_gid gid, zero = {.raw = {0}};
        if (ibv_query_gid(context, 1, index, &gid) || !memcmp(&gid, &zero, sizeof gid))
            continue;
        memcpy(pair.gids[found++], gid.raw, sizeof gid.raw);
    }
    struct table *table = table_lock();
    if (table) {
        table_add_pair(table, &pair);
        qp->id = (uint64_t)getpid() << 32 | table->next_pair;
        table_unlock();
    }
}

struct ibv_qp *mlx5dv_create_qp(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr,
                                struct mlx5dv_qp_init_attr *mlx5) {
    const uint32_t needed = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    const uint64_t known = MLX5DV_QP_EX_WITH_MR_LIST | MLX5DV_QP_EX_WITH_MR_INTERLEAVED;
    uint64_t mlx5_flags = mlx5->comp_mask & MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS ? mlx5->send_ops_flags : 0;
    if (attr->qp_type != IBV_QPT_RC || (attr->comp_mask & needed) != needed || mlx5_flags & ~known) {
        errno = EOPNOTSUPP;
        return NULL;
    }
    struct double_qp *qp = calloc(1, sizeof *qp);
    struct ibv_device_attr device;
    if (!qp || ibv_query_device(context, &device)) {
        free(qp);
        errno = ENOMEM;
        return NULL;
    }
    // A WRITE becomes one per piece, and each may complete, with an error.
    struct ibv_qp_init_attr_ex its = *attr;
    uint64_t requests = (uint64_t)attr->cap.max_send_wr * 64;
    its.cap.max_send_wr = requests < MAX_WORK_REQUESTS ? requests : MAX_WORK_REQUESTS;
    if (its.cap.max_send_wr > (uint32_t)device.max_qp_wr)
        its.cap.max_send_wr = device.max_qp_wr;
    its.cap.max_inline_data = 0;
    its.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_SEND;
    ibv_resize_cq(attr->send_cq, its.cap.max_send_wr + 1);
    struct ibv_qp *base = ibv_create_qp_ex(context, &its);
    if (!base) {
        free(qp);
        return NULL;
    }
    qp->ex = ibv_qp_to_qp_ex(base);
    if (!qp->ex) {
        ibv_destroy_qp(base);
        free(qp);
        errno = EOPNOTSUPP;
        return NULL;
    }
    qp->cq = attr->send_cq;
    qp->pd = pd_number(attr->pd);
    qp->max_sge = its.cap.max_send_sge < attr->cap.max_send_sge ? its.cap.max_send_sge : attr->cap.max_send_sge;
    // providers/mlx5/qp.c of rdma-core: a list has 16 bytes per entry, and 4 less.
    qp->inline_entries = (attr->cap.max_inline_data + 4) / 16;
    set_functions(qp, attr->send_ops_flags, mlx5_flags);
    add_pair(qp);
    publish(qp);
    watch_completions(context);
    return base;
}

struct mlx5dv_qp_ex *mlx5dv_qp_ex_from_ibv_qp_ex(struct ibv_qp_ex *ex) {
    struct double_qp *qp = find_pair(ex);
    return qp ? &qp->mlx5 : NULL;
}
