// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Fault injection. LIBCOPY_UMR_FAULTS has functions and which of their calls fail: "create_mkey:3"
// the third, "wr_mr_list:2-" all from the second on; several are separated by commas. Functions:
// create_mkey, wr_mr_list, wr_mr_interleaved, wr_local_inv, wr_rdma_write.

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "double.h"

#define MAX_FAULTS 8

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool is_read;
static int count;
static struct {
    char function[32];
    unsigned long first, last, calls;
} faults[MAX_FAULTS];

static void parse(const char *text) {
    count = 0;
    while (text && *text) {
        char function[32], rest = 0;
        unsigned long first;
        int fields = sscanf(text, "%31[a-z_0-9]:%lu%c", function, &first, &rest);
        if (fields < 2 || count == MAX_FAULTS || first == 0) {
            fprintf(stderr, "libmlx5 double: '%s' is not FUNCTION:CALL or FUNCTION:CALL-\n", text);
            abort();
        }
        strcpy(faults[count].function, function);
        faults[count].first = first;
        faults[count].last = rest == '-' ? ~0ul : first;
        faults[count++].calls = 0;
        text = strchr(text, ',');
        text += text != NULL;
    }
}

void libcopy_umr_faults(const char *text) {
    pthread_mutex_lock(&lock);
    is_read = true;
    parse(text);
    pthread_mutex_unlock(&lock);
}

bool is_faulty(const char *function) {
    bool result = false;
    pthread_mutex_lock(&lock);
    if (!is_read)
        parse(getenv("LIBCOPY_UMR_FAULTS"));
    is_read = true;
    for (int index = 0; index < count; index++) {
        if (strcmp(faults[index].function, function))
            continue;
        unsigned long call = ++faults[index].calls;
        result |= call >= faults[index].first && call <= faults[index].last;
    }
    pthread_mutex_unlock(&lock);
    return result;
}
