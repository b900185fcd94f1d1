/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the engines need of C: dmaengine, whose interface is inline functions and types that the
 * kernel's Rust bindings do not have, the DMA API, and bus notifications. dmaengine.rs makes them
 * safe.
 */
#ifndef LIBCOPY_DMA_H
#define LIBCOPY_DMA_H

#include <linux/types.h>

struct dma_chan;
struct dmaengine_result;
struct device;

/* One channel that could be had. */
struct libcopy_dma_info {
	u64 engine;		/* the same for the channels of one device */
	u64 channel;		/* unlike that of every other channel */
	u64 max_transfer;	/* bytes per descriptor */
	u32 alignment;		/* of addresses and lengths, in bytes */
	s32 node;		/* NUMA node, -1: none */
	char driver[24];
	char device[32];
};

/* Offers every free channel until one is accepted; that one is acquired. */
struct dma_chan *libcopy_dma_request(bool (*accept)(void *data, const struct libcopy_dma_info *),
				     void *data);
void libcopy_dma_release(struct dma_chan *chan);
int libcopy_dma_terminate(struct dma_chan *chan);
struct device *libcopy_dma_device(struct dma_chan *chan);
bool libcopy_dma_unordered(struct dma_chan *chan);
bool libcopy_dma_part_of(struct device *dev, struct device *whole);
int libcopy_dma_submit(struct dma_chan *chan, dma_addr_t to, dma_addr_t from, size_t len,
		       bool interrupt,
		       void (*done)(void *param, const struct dmaengine_result *result),
		       void *param);
void libcopy_dma_issue(struct dma_chan *chan);
bool libcopy_dma_succeeded(const struct dmaengine_result *result);
bool libcopy_dma_callback_sleeps(void);

size_t libcopy_dma_max_mapping(struct device *dev);
bool libcopy_dma_map(struct device *dev, void *addr, size_t len, bool write, dma_addr_t *out);
void libcopy_dma_unmap(struct device *dev, dma_addr_t addr, size_t len, bool write);
void libcopy_dma_sync_for_device(struct device *dev, dma_addr_t addr, size_t len, bool write);
void libcopy_dma_sync_for_cpu(struct device *dev, dma_addr_t addr, size_t len, bool write);

int libcopy_dma_watch_start(void (*leaves)(struct device *dev, bool gone),
			    void (*sleeps)(bool sleeps));
int libcopy_dma_watch(struct device *dev);
void libcopy_dma_watch_stop(void);

#endif
