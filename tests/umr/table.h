// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Indirect memory keys and queue pairs of all processes that use the double of libmlx5, in shared
// memory: the sender's double has to know which pieces the receiver's key points to.

#ifndef LIBCOPY_UMR_TABLE_H
#define LIBCOPY_UMR_TABLE_H

#include <stdbool.h>
#include <stdint.h>

// The pieces of a key, and the keys of a machine.
#define MAX_PIECES 256
#define MAX_KEYS 8192
#define MAX_PAIRS 1024
#define MAX_GIDS 8

struct piece {
    uint64_t addr;
    uint64_t len;
    uint32_t key;
};

enum state { UNUSED, UNMAPPED, MAPPED };

struct key {
    enum state state;
    // Counts how often the slot has been used: the low byte of the key's number.
    uint8_t variant;
    int pid;
    uint64_t pd;
    uint32_t access;
    uint16_t max_entries;
    // The queue pair whose request maps the key and has not completed; 0 if it has. Until then only
    // that queue pair sees the mapping.
    uint64_t pending;
    uint32_t count;
    struct piece pieces[MAX_PIECES];
};

struct pair {
    uint64_t pd;
    uint32_t qp_num;
    uint8_t gids[MAX_GIDS][16];
};

struct table {
    struct key keys[MAX_KEYS];
    // Where to look for an unused slot first.
    uint32_t next_key;
    // A ring: the newest of a number is the one that exists.
    struct pair pairs[MAX_PAIRS];
    uint32_t next_pair;
};

// Maps the table at the first call, and locks it against all threads and processes. NULL if there
// is no shared memory.
struct table *table_lock(void);
void table_unlock(void);

// Keys of the double have numbers that rdma_rxe does not give: its own end at 2^28.
static inline bool is_indirect(uint32_t number) { return number >> 28 == 0xe; }

// The key of a number; NULL if there is none, or none any more. With the lock.
struct key *table_find(struct table *table, uint32_t number);

// Takes an unused slot and gives its number; 0 if there is none. With the lock.
uint32_t table_create(struct table *table, uint64_t pd, uint16_t max_entries);

// Notes a queue pair of this process. With the lock.
void table_add_pair(struct table *table, const struct pair *pair);

// The protection domain of the queue pair with this number at a device with this address; 0 if
// nobody knows it. With the lock.
uint64_t table_pair_pd(const struct table *table, uint32_t qp_num, const uint8_t *gid);

#endif
