// SPDX-License-Identifier: MIT OR Apache-2.0
//
// What the parts of the double share.

#ifndef LIBCOPY_UMR_DOUBLE_H
#define LIBCOPY_UMR_DOUBLE_H

// The rest is hidden (-fvisibility=hidden).
#pragma GCC visibility push(default)
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <stdint.h>

// For tests: replaces what LIBCOPY_UMR_FAULTS says, and counts calls from now on.
void libcopy_umr_faults(const char *text);
// For tests: the keys of this process, and how many of them are mapped.
void libcopy_umr_keys(uint32_t *all, uint32_t *mapped);
// For tests: entries of all requests of this process that were to map a key.
uint64_t libcopy_umr_entries(void);
// For tests: records of queue pairs of this process.
uint64_t libcopy_umr_records(void);
#pragma GCC visibility pop

#include "table.h"

// Requests between wr_start and wr_complete, and entries of a WRITE's list.
#define MAX_OPS 16
#define MAX_SGES 32

enum kind { MAP, INVALIDATE, WRITE };

struct op {
    enum kind kind;
    uint64_t wr_id;
    unsigned flags;
    // The key that is mapped or invalidated, or the remote key of a WRITE.
    uint32_t key;
    uint64_t remote;
    uint32_t access;
    bool is_interleaved;
    // What the key is mapped to, or the list of a WRITE.
    uint32_t count;
    struct piece pieces[MAX_PIECES];
};

// A completion that no request of the device stands behind.
struct completion {
    struct completion *next;
    uint64_t wr_id;
    // WRITEs that were posted before and come first.
    uint64_t after;
    enum ibv_wc_status status;
    enum ibv_wc_opcode opcode;
    // A key whose mapping is finished by this; 0 for none.
    uint32_t key;
};

struct request;

struct double_qp {
    struct double_qp *next;
    struct ibv_qp_ex *ex;
    struct mlx5dv_qp_ex mlx5;
    struct ibv_cq *cq;
    // A number of its own in all processes.
    uint64_t id;
    uint64_t pd;
    uint32_t max_sge;
    uint32_t inline_entries;
    // WRITEs that were posted, and those that have completed.
    uint64_t posted, completed;
    struct completion *first, **last;
    // Those that have not completed.
    struct request *requests;
    // What is being built.
    int error;
    unsigned count;
    struct op ops[MAX_OPS];
};

// A WRITE whose pieces are under way: the wr_id of each is TAG | address of this | 1 unless it is
// the last.
struct request {
    struct double_qp *qp;
    struct request *next, **before;
    uint64_t wr_id;
    bool is_signalled;
    bool is_reported;
};

#define TAG 0xdb15000000000000ull
#define TAG_MASK 0xffff000000000000ull

// work.c: the functions of an extended queue pair.
void set_functions(struct double_qp *qp, uint64_t verbs_flags, uint64_t mlx5_flags);
// Brings a queue pair into the state of error, as a request that fails does.
void fail_pair(struct double_qp *qp);

// completion.c: has completions of this context's queues go through the double.
void watch_completions(struct ibv_context *context);
void add_pair(struct double_qp *qp);
struct double_qp *find_pair(struct ibv_qp_ex *ex);
void complete(struct double_qp *qp, const struct op *op, enum ibv_wc_status status);
struct request *new_request(struct double_qp *qp, const struct op *op);
void count_entries(uint32_t entries);

// faults.c: whether this call of a function is to fail.
bool is_faulty(const char *function);

#endif
