// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Work requests of extended queue pairs (ibv_wr_post(3), mlx5dv_wr_post(3)), with the rules of the
// card:
//
// - a key has at most max_entries pieces, and a list in a request at most what max_inline_data has
//   room for: ENOMEM from wr_complete;
// - a key is mapped only while it is not: LOCAL_INV comes before another mapping; its protection
//   domain is that of the queue pair: IBV_WC_MW_BIND_ERR;
// - byte counts and strides of the interleaved form have 16 bits, what is above is cut off;
// - keys are zero-based: addresses in a WRITE count from the first byte of the first piece;
// - another queue pair, and peers, see a mapping when its request has completed;
// - a peer needs IBV_ACCESS_REMOTE_WRITE and the protection domain of the queue pair that it writes
//   to.
//
// A WRITE is cut where a piece of either key ends, and each part is a WRITE of rdma_rxe. It checks
// the regions below: a region that is gone, or not registered for peers to write into, is refused
// by the kernel. rdma_rxe gives a region that peers may write into one number as lkey and rkey, so
// the lkeys of a list are rkeys for the peer.

#include <errno.h>
#include <sched.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "double.h"

static struct op *add(struct double_qp *qp, enum kind kind) {
    if (qp->count == MAX_OPS) {
        qp->error = ENOMEM;
        return NULL;
    }
    struct op *op = &qp->ops[qp->count++];
    memset(op, 0, offsetof(struct op, pieces));
    op->kind = kind;
    op->wr_id = qp->ex->wr_id;
    op->flags = qp->ex->wr_flags;
    return op;
}

static void wr_start(struct ibv_qp_ex *ex) {
    struct double_qp *qp = find_pair(ex);
    qp->count = 0;
    qp->error = 0;
}

static void wr_abort(struct ibv_qp_ex *ex) { find_pair(ex)->count = 0; }

static void wr_rdma_write(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote) {
    struct op *op = add(find_pair(ex), WRITE);
    if (op) {
        op->key = rkey;
        op->remote = remote;
    }
}

static void wr_set_sge_list(struct ibv_qp_ex *ex, size_t count, const struct ibv_sge *list) {
    struct double_qp *qp = find_pair(ex);
    if (!qp->count || qp->ops[qp->count - 1].kind != WRITE || count > MAX_SGES || count > qp->max_sge) {
        qp->error = EINVAL;
        return;
    }
    struct op *op = &qp->ops[qp->count - 1];
    op->count = count;
    for (size_t index = 0; index < count; index++)
        op->pieces[index] = (struct piece){list[index].addr, list[index].length, list[index].lkey};
}

static void wr_set_sge(struct ibv_qp_ex *ex, uint32_t lkey, uint64_t addr, uint32_t length) {
    struct ibv_sge sge = {.addr = addr, .length = length, .lkey = lkey};
    wr_set_sge_list(ex, 1, &sge);
}

static void wr_local_inv(struct ibv_qp_ex *ex, uint32_t key) {
    struct op *op = add(find_pair(ex), INVALIDATE);
    if (op)
        op->key = key;
}

static struct double_qp *of_mlx5(struct mlx5dv_qp_ex *mlx5) {
    return (struct double_qp *)((char *)mlx5 - offsetof(struct double_qp, mlx5));
}

// Checks what is checked when a request is built; `entries` of the request's list are used.
static struct op *add_map(struct mlx5dv_qp_ex *mlx5, struct mlx5dv_mkey *mkey, uint32_t access, uint32_t entries) {
    struct double_qp *qp = of_mlx5(mlx5);
    const uint32_t known = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                           IBV_ACCESS_REMOTE_ATOMIC;
    struct table *table = table_lock();
    struct key *key = table ? table_find(table, mkey->lkey) : NULL;
    uint32_t max = key ? key->max_entries : 0;
    if (table)
        table_unlock();
    if (access & ~known)
        qp->error = EINVAL;
    else if (entries > max || entries > qp->inline_entries)
        qp->error = ENOMEM;
    if (qp->error)
        return NULL;
    struct op *op = add(qp, MAP);
    if (op) {
        op->key = mkey->lkey;
        op->access = access;
        count_entries(entries);
    }
    return op;
}

static void wr_mr_list(struct mlx5dv_qp_ex *mlx5, struct mlx5dv_mkey *mkey, uint32_t access, uint16_t count,
                       struct ibv_sge *list) {
    struct op *op = add_map(mlx5, mkey, access, count);
    if (!op)
        return;
    op->count = count;
    for (uint16_t index = 0; index < count; index++)
        op->pieces[index] = (struct piece){list[index].addr, list[index].length, list[index].lkey};
}

static void wr_mr_interleaved(struct mlx5dv_qp_ex *mlx5, struct mlx5dv_mkey *mkey, uint32_t access, uint32_t repeat,
                              uint16_t count, struct mlx5dv_mr_interleaved *data) {
    // One entry is the header of the repeated block.
    struct op *op = add_map(mlx5, mkey, access, count + 1u);
    if (!op)
        return;
    if ((uint64_t)repeat * count > MAX_PIECES) {
        of_mlx5(mlx5)->error = ENOMEM;
        return;
    }
    op->is_interleaved = true;
    for (uint32_t round = 0; round < repeat; round++)
        for (uint16_t index = 0; index < count; index++) {
            uint16_t bytes = data[index].bytes_count;
            uint16_t stride = data[index].bytes_count + data[index].bytes_skip;
            uint64_t addr = data[index].addr + (uint64_t)round * stride;
            op->pieces[op->count++] = (struct piece){addr, bytes, data[index].lkey};
        }
}

static uint64_t total(const struct piece *pieces, uint32_t count) {
    uint64_t sum = 0;
    for (uint32_t index = 0; index < count; index++)
        sum += pieces[index].len;
    return sum;
}

// Appends the bytes start..start + len of a key to a list of at most MAX_PIECES; false if it has
// fewer bytes.
static bool append(struct piece *list, uint32_t *count, const struct key *key, uint64_t start, uint64_t len) {
    for (uint32_t index = 0; index < key->count && len; index++) {
        struct piece piece = key->pieces[index];
        if (start >= piece.len) {
            start -= piece.len;
            continue;
        }
        piece.addr += start;
        piece.len -= start;
        start = 0;
        if (piece.len > len)
            piece.len = len;
        len -= piece.len;
        if (*count == MAX_PIECES)
            return false;
        list[(*count)++] = piece;
    }
    return len == 0;
}

// What a WRITE reads; false if a key is not this queue pair's to use.
static bool local_pieces(struct double_qp *qp, const struct op *op, struct piece *list, uint32_t *count) {
    struct table *table = table_lock();
    bool is_right = table;
    for (uint32_t index = 0; is_right && index < op->count; index++) {
        const struct piece *sge = &op->pieces[index];
        if (!is_indirect(sge->key)) {
            is_right = *count < MAX_PIECES;
            if (is_right)
                list[(*count)++] = *sge;
            continue;
        }
        const struct key *key = table_find(table, sge->key);
        is_right = key && key->state == MAPPED && key->pd == qp->pd && (!key->pending || key->pending == qp->id) &&
                   append(list, count, key, sge->addr, sge->len);
    }
    if (table)
        table_unlock();
    return is_right;
}

// What a WRITE of `len` bytes writes to; false if the peer may not.
static bool remote_pieces(struct double_qp *qp, const struct op *op, uint64_t len, struct piece *list,
                          uint32_t *count) {
    if (!is_indirect(op->key)) {
        list[(*count)++] = (struct piece){op->remote, len, op->key};
        return true;
    }
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    if (ibv_query_qp(&qp->ex->qp_base, &attr, IBV_QP_DEST_QPN | IBV_QP_AV, &init))
        return false;
    struct table *table = table_lock();
    if (!table)
        return false;
    uint64_t pd = table_pair_pd(table, attr.dest_qp_num, attr.ah_attr.grh.dgid.raw);
    const struct key *key = table_find(table, op->key);
    bool is_right = key && key->state == MAPPED && !key->pending && key->access & IBV_ACCESS_REMOTE_WRITE &&
                    key->pd == pd && append(list, count, key, op->remote, len);
    table_unlock();
    return is_right;
}

// Posts a WRITE of rdma_rxe, and waits if the queue is full: the device makes room without anybody
// polling.
static void post(struct double_qp *qp, struct request *request, struct ibv_sge *list, int count, struct piece to,
                 unsigned flags, bool is_last) {
    struct ibv_send_wr wr = {
        .wr_id = TAG | (uintptr_t)request | !is_last,
        .sg_list = list,
        .num_sge = count,
        .opcode = IBV_WR_RDMA_WRITE,
        .send_flags = (flags & IBV_SEND_FENCE) | (is_last ? IBV_SEND_SIGNALED : 0),
        .wr.rdma = {.remote_addr = to.addr, .rkey = to.key},
    };
    struct ibv_send_wr *bad;
    while (ibv_post_send(&qp->ex->qp_base, &wr, &bad) == ENOMEM)
        sched_yield();
}

// A WRITE that the peer's card refuses: one byte to a key that rdma_rxe does not have, which its
// responder refuses.
static void post_refused(struct double_qp *qp, const struct op *op, const struct piece *from) {
    struct ibv_sge sge = {.addr = from->addr, .length = 1, .lkey = from->key};
    post(qp, new_request(qp, op), &sge, 1, (struct piece){0, 1, 0xeffffff0u}, op->flags, true);
}

static void write_pieces(struct double_qp *qp, const struct op *op) {
    struct piece from[MAX_PIECES], to[MAX_PIECES];
    uint32_t from_count = 0, to_count = 0;
    if (!local_pieces(qp, op, from, &from_count)) {
        complete(qp, op, IBV_WC_LOC_PROT_ERR);
        fail_pair(qp);
        return;
    }
    uint64_t len = total(from, from_count);
    if (!len) {
        post(qp, new_request(qp, op), NULL, 0, (struct piece){op->remote, 0, 0}, op->flags, true);
        return;
    }
    if (!remote_pieces(qp, op, len, to, &to_count) || is_faulty("wr_rdma_write")) {
        post_refused(qp, op, from);
        return;
    }
    struct request *request = new_request(qp, op);
    uint32_t source = 0;
    for (uint32_t target = 0; target < to_count; target++) {
        // The list of what goes into one piece, or as much of it as a request has entries for.
        while (to[target].len) {
            struct ibv_sge list[MAX_SGES];
            struct piece part = to[target];
            uint32_t entries = 0;
            while (to[target].len && entries < qp->max_sge && entries < MAX_SGES) {
                uint64_t bytes = from[source].len < to[target].len ? from[source].len : to[target].len;
                list[entries++] = (struct ibv_sge){from[source].addr, bytes, from[source].key};
                from[source].addr += bytes;
                from[source].len -= bytes;
                source += !from[source].len;
                to[target].addr += bytes;
                to[target].len -= bytes;
                len -= bytes;
            }
            post(qp, request, list, entries, part, op->flags, !len);
        }
    }
}

static bool is_dead(struct double_qp *qp) {
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    return ibv_query_qp(&qp->ex->qp_base, &attr, IBV_QP_STATE, &init) || attr.qp_state == IBV_QPS_ERR;
}

void fail_pair(struct double_qp *qp) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    ibv_modify_qp(&qp->ex->qp_base, &attr, IBV_QP_STATE);
}

static enum ibv_wc_status change_key(struct double_qp *qp, const struct op *op) {
    if (is_dead(qp))
        return IBV_WC_WR_FLUSH_ERR;
    if (is_faulty(op->kind == INVALIDATE ? "wr_local_inv" : op->is_interleaved ? "wr_mr_interleaved" : "wr_mr_list"))
        return IBV_WC_MW_BIND_ERR;
    struct table *table = table_lock();
    if (!table)
        return IBV_WC_FATAL_ERR;
    struct key *key = table_find(table, op->key);
    enum state wanted = op->kind == MAP ? UNMAPPED : MAPPED;
    bool is_right = key && key->pd == qp->pd && key->state == wanted;
    if (is_right && op->kind == MAP) {
        key->state = MAPPED;
        key->access = op->access;
        key->pending = qp->id;
        key->count = op->count;
        memcpy(key->pieces, op->pieces, op->count * sizeof *op->pieces);
    } else if (is_right) {
        key->state = UNMAPPED;
        key->pending = 0;
        key->count = 0;
    }
    table_unlock();
    return is_right ? IBV_WC_SUCCESS : IBV_WC_MW_BIND_ERR;
}

static int wr_complete(struct ibv_qp_ex *ex) {
    struct double_qp *qp = find_pair(ex);
    if (qp->error)
        return qp->error;
    for (unsigned index = 0; index < qp->count; index++) {
        const struct op *op = &qp->ops[index];
        if (op->kind == WRITE) {
            write_pieces(qp, op);
            continue;
        }
        enum ibv_wc_status status = change_key(qp, op);
        complete(qp, op, status);
        if (status != IBV_WC_SUCCESS)
            fail_pair(qp);
    }
    qp->count = 0;
    return 0;
}

void set_functions(struct double_qp *qp, uint64_t verbs_flags, uint64_t mlx5_flags) {
    struct ibv_qp_ex *ex = qp->ex;
    // Nothing of rdma_rxe's own may be mixed with these.
    size_t begin = offsetof(struct ibv_qp_ex, wr_atomic_cmp_swp);
    size_t end = offsetof(struct ibv_qp_ex, wr_abort) + sizeof ex->wr_abort;
    memset((char *)ex + begin, 0, end - begin);
    ex->wr_start = wr_start;
    ex->wr_complete = wr_complete;
    ex->wr_abort = wr_abort;
    ex->wr_set_sge = wr_set_sge;
    ex->wr_set_sge_list = wr_set_sge_list;
    if (verbs_flags & IBV_QP_EX_WITH_RDMA_WRITE)
        ex->wr_rdma_write = wr_rdma_write;
    if (verbs_flags & IBV_QP_EX_WITH_LOCAL_INV)
        ex->wr_local_inv = wr_local_inv;
    if (mlx5_flags & MLX5DV_QP_EX_WITH_MR_LIST)
        qp->mlx5.wr_mr_list = wr_mr_list;
    if (mlx5_flags & MLX5DV_QP_EX_WITH_MR_INTERLEAVED)
        qp->mlx5.wr_mr_interleaved = wr_mr_interleaved;
}
