// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Completions. A WRITE to indirect keys is several WRITEs of rdma_rxe and completes once; mapping
// and invalidating a key is no request of rdma_rxe at all. So ibv_poll_cq goes through here.
// Completion events are rdma_rxe's own: a request that maps or invalidates announces none.

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "double.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct double_qp *pairs;
// Of the provider of rdma_rxe: the same for all its contexts.
static int (*device_poll)(struct ibv_cq *, int, struct ibv_wc *);

struct request *new_request(struct double_qp *qp, const struct op *op) {
    struct request *request = calloc(1, sizeof *request);
    if (!request)
        abort();
    request->qp = qp;
    request->wr_id = op->wr_id;
    request->is_signalled = op->flags & IBV_SEND_SIGNALED;
    pthread_mutex_lock(&lock);
    request->before = &qp->requests;
    request->next = qp->requests;
    if (request->next)
        request->next->before = &request->next;
    qp->requests = request;
    qp->posted++;
    pthread_mutex_unlock(&lock);
    return request;
}

// With the lock.
static void free_request(struct request *request) {
    *request->before = request->next;
    if (request->next)
        request->next->before = request->before;
    free(request);
}

static uint64_t records;
static uint64_t mapped_entries;

// With the lock.
static void free_pair(struct double_qp *qp) {
    while (qp->first) {
        struct completion *one = qp->first;
        qp->first = one->next;
        free(one);
    }
    while (qp->requests)
        free_request(qp->requests);
    free(qp);
    records--;
}

// ibv_destroy_qp(3) does not come here. A queue pair with the address of this one, or with its
// completion queue, which each has for itself, was destroyed: its record goes, with the completions
// that nobody has polled.
void add_pair(struct double_qp *qp) {
    qp->last = &qp->first;
    pthread_mutex_lock(&lock);
    struct double_qp **its = &pairs;
    while (*its) {
        struct double_qp *old = *its;
        if (old->ex != qp->ex && old->cq != qp->cq) {
            its = &old->next;
            continue;
        }
        *its = old->next;
        free_pair(old);
    }
    qp->next = pairs;
    pairs = qp;
    records++;
    pthread_mutex_unlock(&lock);
}

__attribute__((destructor)) static void free_pairs(void) {
    pthread_mutex_lock(&lock);
    while (pairs) {
        struct double_qp *qp = pairs;
        pairs = qp->next;
        free_pair(qp);
    }
    pthread_mutex_unlock(&lock);
}

uint64_t libcopy_umr_records(void) {
    pthread_mutex_lock(&lock);
    uint64_t count = records;
    pthread_mutex_unlock(&lock);
    return count;
}

void count_entries(uint32_t entries) {
    pthread_mutex_lock(&lock);
    mapped_entries += entries;
    pthread_mutex_unlock(&lock);
}

uint64_t libcopy_umr_entries(void) {
    pthread_mutex_lock(&lock);
    uint64_t count = mapped_entries;
    pthread_mutex_unlock(&lock);
    return count;
}

struct double_qp *find_pair(struct ibv_qp_ex *ex) {
    pthread_mutex_lock(&lock);
    struct double_qp *qp = pairs;
    while (qp && qp->ex != ex)
        qp = qp->next;
    pthread_mutex_unlock(&lock);
    return qp;
}

void complete(struct double_qp *qp, const struct op *op, enum ibv_wc_status status) {
    bool is_mapping = op->kind == MAP && status == IBV_WC_SUCCESS;
    struct completion *one = calloc(1, sizeof *one);
    if (!one)
        abort();
    // Of a request that is not signalled, only the mapping has to be finished: at once, as nobody
    // waits for it.
    bool is_seen = op->flags & IBV_SEND_SIGNALED || status != IBV_WC_SUCCESS;
    one->wr_id = op->wr_id;
    one->status = status;
    one->opcode = op->kind == MAP ? IBV_WC_DRIVER1 : op->kind == WRITE ? IBV_WC_RDMA_WRITE : IBV_WC_LOCAL_INV;
    one->key = is_mapping ? op->key : 0;
    if (!is_seen) {
        if (one->key) {
            struct table *table = table_lock();
            struct key *key = table ? table_find(table, one->key) : NULL;
            if (key)
                key->pending = 0;
            if (table)
                table_unlock();
        }
        free(one);
        return;
    }
    pthread_mutex_lock(&lock);
    one->after = qp->posted;
    *qp->last = one;
    qp->last = &one->next;
    pthread_mutex_unlock(&lock);
}

// The next completion that no request of the device stands behind. With the lock.
static bool take(struct ibv_cq *cq, struct ibv_wc *wc) {
    for (struct double_qp *qp = pairs; qp; qp = qp->next) {
        struct completion *one = qp->first;
        if (qp->cq != cq || !one || one->after > qp->completed)
            continue;
        qp->first = one->next;
        if (!qp->first)
            qp->last = &qp->first;
        memset(wc, 0, sizeof *wc);
        wc->wr_id = one->wr_id;
        wc->status = one->status;
        wc->opcode = one->opcode;
        wc->qp_num = qp->ex->qp_base.qp_num;
        struct table *table = one->key ? table_lock() : NULL;
        if (table) {
            struct key *key = table_find(table, one->key);
            if (key && key->pending == qp->id)
                key->pending = 0;
            table_unlock();
        }
        free(one);
        return true;
    }
    return false;
}

// Whether a completion of the device is one to report: of a WRITE in pieces, the first error or
// else the last piece. With the lock.
static bool translate(struct ibv_wc *wc) {
    if ((wc->wr_id & TAG_MASK) != TAG)
        return true;
    bool is_last = !(wc->wr_id & 1);
    struct request *request = (struct request *)(uintptr_t)(wc->wr_id & ~(TAG_MASK | 1));
    bool is_error = wc->status != IBV_WC_SUCCESS;
    bool is_seen = !request->is_reported && (is_error || (is_last && request->is_signalled));
    wc->wr_id = request->wr_id;
    request->is_reported |= is_seen;
    if (is_last) {
        request->qp->completed++;
        free_request(request);
    }
    return is_seen;
}

static int poll(struct ibv_cq *cq, int room, struct ibv_wc *wc) {
    int found = 0;
    pthread_mutex_lock(&lock);
    // One at a time, so that the two kinds stay in order.
    while (found < room) {
        if (take(cq, &wc[found])) {
            found++;
            continue;
        }
        int code = device_poll(cq, 1, &wc[found]);
        if (code < 0 && !found)
            found = code;
        if (code <= 0)
            break;
        found += translate(&wc[found]);
    }
    pthread_mutex_unlock(&lock);
    return found;
}

void watch_completions(struct ibv_context *context) {
    pthread_mutex_lock(&lock);
    if (context->ops.poll_cq != poll) {
        device_poll = context->ops.poll_cq;
        context->ops.poll_cq = poll;
    }
    pthread_mutex_unlock(&lock);
}
