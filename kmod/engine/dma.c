// SPDX-License-Identifier: GPL-2.0
/*
 * Thin C around dmaengine and the DMA API; see dma.h. What is done with them is decided in Rust,
 * but for three things: only channels of coherent devices are offered (libcopy_dma_request), the
 * functions of one PCI slot are one engine (describe), and what is writable is mapped in both
 * directions (direction).
 */
#include <linux/device.h>
#include <linux/dma-map-ops.h>
#include <linux/dma-mapping.h>
#include <linux/dmaengine.h>
#include <linux/pci.h>
#include <linux/preempt.h>
#include <linux/string.h>
#include <linux/topology.h>

#include "dma.h"

struct offer {
	bool (*accept)(void *data, const struct libcopy_dma_info *info);
	void *data;
};

static void describe(struct dma_chan *chan, struct libcopy_dma_info *info)
{
	struct dma_device *device = chan->device;
	struct device *dev = device->dev;

	memset(info, 0, sizeof(*info));
	info->engine = (u64)(uintptr_t)dev;
	if (dev_is_pci(dev)) {
		struct pci_dev *pci = to_pci_dev(dev);

		/* The functions of one slot are channels of one engine (I/OAT). */
		info->engine = (u64)pci_domain_nr(pci->bus) << 32 | pci->bus->number << 8 |
			       PCI_SLOT(pci->devfn);
	}
	info->channel = (u64)device->dev_id << 32 | chan->chan_id;
	info->max_transfer = dma_get_max_seg_size(dev);
	info->alignment = 1u << device->copy_align;
	info->node = dev_to_node(dev);
	strscpy(info->driver, dev_driver_string(dev));
	strscpy(info->device, dev_name(dev));
}

/* Called by dmaengine for every free channel, with the list of devices locked. */
static bool offered(struct dma_chan *chan, void *param)
{
	struct libcopy_dma_info info;
	struct offer *offer = param;

	/* Peers write next to what an engine writes; caches must not come in between. */
	if (!dev_is_dma_coherent(chan->device->dev))
		return false;
	describe(chan, &info);
	return offer->accept(offer->data, &info);
}

struct dma_chan *libcopy_dma_request(bool (*accept)(void *data, const struct libcopy_dma_info *),
				     void *data)
{
	struct offer offer = { .accept = accept, .data = data };
	dma_cap_mask_t mask;

	dma_cap_zero(mask);
	dma_cap_set(DMA_MEMCPY, mask);
	return dma_request_channel(mask, offered, &offer);
}

void libcopy_dma_release(struct dma_chan *chan)
{
	dma_release_channel(chan);
}

int libcopy_dma_terminate(struct dma_chan *chan)
{
	return dmaengine_terminate_sync(chan);
}

struct device *libcopy_dma_device(struct dma_chan *chan)
{
	return chan->device->dev;
}

bool libcopy_dma_unordered(struct dma_chan *chan)
{
	return dma_has_cap(DMA_COMPLETION_NO_ORDER, chan->device->cap_mask);
}

/* Whether dev is the other device or part of it. */
bool libcopy_dma_part_of(struct device *dev, struct device *whole)
{
	for (; dev; dev = dev->parent)
		if (dev == whole)
			return true;
	return false;
}

/*
 * Some drivers hold a lock from prep to submit, so that nothing may come in between.
 *
 * -EAGAIN: the driver took no descriptor, so that no callback comes. Anything else: it had one and
 * did not accept it; idxd then calls back or not, depending on how far it came.
 */
int libcopy_dma_submit(struct dma_chan *chan, dma_addr_t to, dma_addr_t from, size_t len,
		       bool interrupt,
		       void (*done)(void *param, const struct dmaengine_result *result),
		       void *param)
{
	struct dma_async_tx_descriptor *tx;
	dma_cookie_t cookie;

	tx = dmaengine_prep_dma_memcpy(chan, to, from, len,
				       DMA_CTRL_ACK | (interrupt ? DMA_PREP_INTERRUPT : 0));
	if (!tx)
		return -EAGAIN;
	tx->callback = NULL;
	tx->callback_result = done;
	tx->callback_param = param;
	cookie = dmaengine_submit(tx);
	return dma_submit_error(cookie) ? -EIO : 0;
}

void libcopy_dma_issue(struct dma_chan *chan)
{
	dma_async_issue_pending(chan);
}

bool libcopy_dma_succeeded(const struct dmaengine_result *result)
{
	return !result || result->result == DMA_TRANS_NOERROR;
}

/* Whether a callback, which calls this, is one in a thread of the driver's. */
bool libcopy_dma_callback_sleeps(void)
{
	return in_task();
}

static enum dma_data_direction direction(bool write)
{
	/* Memory that peers may write may also be a source. */
	return write ? DMA_BIDIRECTIONAL : DMA_TO_DEVICE;
}

size_t libcopy_dma_max_mapping(struct device *dev)
{
	size_t most = dma_max_mapping_size(dev);

	/* dma-debug looks no farther back for the mapping of what is synchronised. */
	if (IS_ENABLED(CONFIG_DMA_API_DEBUG))
		most = min_t(size_t, most, dma_get_max_seg_size(dev));
	return most;
}

/*
 * The memory is in use by CPUs while it is mapped, so that only what is about to move, or has
 * moved, is synchronised: bouncing whole mappings would put old bytes over new ones. A page may
 * belong to any number of regions; dma-debug counts seven, and is told not to where it can be.
 */
#ifdef DMA_ATTR_DEBUGGING_IGNORE_CACHELINES
#define ATTRIBUTES (DMA_ATTR_SKIP_CPU_SYNC | DMA_ATTR_DEBUGGING_IGNORE_CACHELINES)
#else
#define ATTRIBUTES DMA_ATTR_SKIP_CPU_SYNC
#endif

bool libcopy_dma_map(struct device *dev, void *addr, size_t len, bool write, dma_addr_t *out)
{
	*out = dma_map_page_attrs(dev, virt_to_page(addr), offset_in_page(addr), len,
				  direction(write), ATTRIBUTES);
	return !dma_mapping_error(dev, *out);
}

void libcopy_dma_unmap(struct device *dev, dma_addr_t addr, size_t len, bool write)
{
	dma_unmap_page_attrs(dev, addr, len, direction(write), ATTRIBUTES);
}

/*
 * Where nothing is to be done nothing is called, either: dma-debug does not find the mapping of a
 * part of a page that is mapped several times, and complains.
 */
void libcopy_dma_sync_for_device(struct device *dev, dma_addr_t addr, size_t len, bool write)
{
	if (dma_need_sync(dev, addr))
		dma_sync_single_for_device(dev, addr, len, direction(write));
}

void libcopy_dma_sync_for_cpu(struct device *dev, dma_addr_t addr, size_t len, bool write)
{
	if (dma_need_sync(dev, addr))
		dma_sync_single_for_cpu(dev, addr, len, direction(write));
}
