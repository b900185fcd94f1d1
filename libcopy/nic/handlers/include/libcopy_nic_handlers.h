/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * Handlers that a network card runs for each packet of a message with an MPI datatype. See
 * docs/design/nic.md, and "Network-Accelerated Non-Contiguous Memory Transfers" (SC'19).
 *
 * All functions may run at the same time on different cores, except with the same `state`. None
 * blocks or allocates.
 */
#ifndef LIBCOPY_NIC_HANDLERS_H
#define LIBCOPY_NIC_HANDLERS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A position in the packed stream: a segment, or a checkpoint. The host makes it; handlers change
 * it. */
struct libcopy_nic_state {
    uint32_t words[27];
};

/* What a handler gets. */
struct libcopy_nic_call {
    /* The image of the datatype, and its number of words. */
    const uint32_t *image;
    uint32_t words;
    /* Bytes of the message before the packet, and bytes of the packet. */
    uint32_t position;
    uint32_t len;
    /* RO-CP: bytes between two checkpoints. */
    uint32_t interval;
    /* HPU-local: the segment of the virtual HPU. RW-CP: the checkpoint that the virtual HPU
     * owns. */
    struct libcopy_nic_state *state;
    /* RO-CP: all checkpoints. RW-CP: the master copy of the one checkpoint. */
    const struct libcopy_nic_state *checkpoints;
    /* RO-CP: how many checkpoints there are. */
    uint32_t count;
};

/* The commands of a card. They return at once, and the card carries them out in order. */
struct libcopy_nic_device {
    void *context;
    /* Writes bytes of the packet, from byte `packet` on, to `host` bytes from the origin of the
     * receive buffer; no event. */
    void (*dma_to_host)(void *context, int32_t host, uint32_t packet, uint32_t len);
    /* Writes 0 bytes with an event. */
    void (*dma_event)(void *context);
    /* Sends bytes of the send buffer as those of the message from `position` on; `is_end` is 1 with
     * the last ones. */
    void (*stream_put)(void *context, int32_t host, uint32_t position, uint32_t len, uint32_t is_end);
};

/* The same as registers. The store to `command` issues it: the number of bytes and one of the kinds
 * below. */
struct libcopy_nic_port {
    volatile int32_t host;
    volatile uint32_t position;
    volatile uint32_t command;
};

#define LIBCOPY_NIC_EVENT (UINT32_C(1) << 31)
#define LIBCOPY_NIC_STREAM_PUT (UINT32_C(1) << 30)
#define LIBCOPY_NIC_END (UINT32_C(1) << 29)

#define LIBCOPY_NIC_HANDLER(name)                                                                           \
    void libcopy_nic_##name(const struct libcopy_nic_call *, const struct libcopy_nic_device *);            \
    void libcopy_nic_port_##name(const struct libcopy_nic_call *, struct libcopy_nic_port *)

/* Payload handlers for one kind of datatype. With another kind they write nothing. */
LIBCOPY_NIC_HANDLER(contiguous);
LIBCOPY_NIC_HANDLER(vector);
LIBCOPY_NIC_HANDLER(indexed_block);
LIBCOPY_NIC_HANDLER(indexed);
LIBCOPY_NIC_HANDLER(struct);

/* Payload handlers for any datatype. */
LIBCOPY_NIC_HANDLER(local);
LIBCOPY_NIC_HANDLER(ro_cp);
LIBCOPY_NIC_HANDLER(rw_cp);
LIBCOPY_NIC_HANDLER(seek);

/* After all packets of a message. */
LIBCOPY_NIC_HANDLER(completion);

/* For each outgoing packet of a process-put. */
LIBCOPY_NIC_HANDLER(process_put);

#undef LIBCOPY_NIC_HANDLER

#ifdef __cplusplus
}
#endif

#endif
