// SPDX-License-Identifier: MIT OR Apache-2.0

#include "table.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

// flock(2) excludes other processes, the mutex other threads of this one. A process that is killed
// loses its lock.
static pthread_mutex_t threads = PTHREAD_MUTEX_INITIALIZER;
static struct table *shared;
static int file = -1;

static void open_table(void) {
    const char *name = getenv("LIBCOPY_UMR_TABLE");
    file = shm_open(name ? name : "/libcopy-umr", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0)
        return;
    // New bytes are zero: every slot is unused.
    if (ftruncate(file, sizeof(struct table)) == 0) {
        void *memory = mmap(NULL, sizeof(struct table), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (memory != MAP_FAILED)
            shared = memory;
    }
}

struct table *table_lock(void) {
    pthread_mutex_lock(&threads);
    if (!shared)
        open_table();
    if (!shared) {
        pthread_mutex_unlock(&threads);
        return NULL;
    }
    while (flock(file, LOCK_EX) && errno == EINTR)
        ;
    return shared;
}

void table_unlock(void) {
    flock(file, LOCK_UN);
    pthread_mutex_unlock(&threads);
}

static uint32_t number(uint32_t index, uint8_t variant) {
    return 0xe0000000u | index << 8 | variant;
}

struct key *table_find(struct table *table, uint32_t its) {
    uint32_t index = (its & 0x0fffffff) >> 8;
    if (!is_indirect(its) || index >= MAX_KEYS)
        return NULL;
    struct key *key = &table->keys[index];
    return key->state != UNUSED && key->variant == (its & 0xff) ? key : NULL;
}

static uint32_t take(struct table *table, uint32_t index, uint64_t pd, uint16_t max_entries) {
    struct key *key = &table->keys[index];
    uint8_t variant = key->variant + 1;
    memset(key, 0, sizeof *key);
    key->state = UNMAPPED;
    key->variant = variant;
    key->pid = getpid();
    key->pd = pd;
    key->max_entries = max_entries;
    table->next_key = index + 1;
    return number(index, variant);
}

uint32_t table_create(struct table *table, uint64_t pd, uint16_t max_entries) {
    for (uint32_t step = 0; step < MAX_KEYS; step++) {
        uint32_t index = (table->next_key + step) % MAX_KEYS;
        if (table->keys[index].state == UNUSED)
            return take(table, index, pd, max_entries);
    }
    // A process that ended without destroying its keys: of a card's keys the kernel would have done
    // that.
    for (uint32_t index = 0; index < MAX_KEYS; index++)
        if (kill(table->keys[index].pid, 0) && errno == ESRCH)
            return take(table, index, pd, max_entries);
    return 0;
}

void table_add_pair(struct table *table, const struct pair *pair) {
    table->pairs[table->next_pair++ % MAX_PAIRS] = *pair;
}

uint64_t table_pair_pd(const struct table *table, uint32_t qp_num, const uint8_t *gid) {
    for (uint32_t age = 1; age <= MAX_PAIRS; age++) {
        const struct pair *pair = &table->pairs[(table->next_pair - age) % MAX_PAIRS];
        if (!pair->pd || pair->qp_num != qp_num)
            continue;
        for (int index = 0; index < MAX_GIDS; index++)
            if (!memcmp(pair->gids[index], gid, 16))
                return pair->pd;
    }
    return 0;
}
