// SPDX-License-Identifier: GPL-2.0
/*
 * Thin C around dmaengine, the DMA API, kernel threads and run-time parameters; see dma.h. What is
 * done with them is decided in Rust.
 */
#include <linux/crc32.h>
#include <linux/device.h>
#include <linux/device/bus.h>
#include <linux/dma-map-ops.h>
#include <linux/dma-mapping.h>
#include <linux/dmaengine.h>
#include <linux/kthread.h>
#include <linux/list.h>
#include <linux/moduleparam.h>
#include <linux/mutex.h>
#include <linux/nodemask.h>
#include <linux/notifier.h>
#include <linux/pci.h>
#include <linux/preempt.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/string.h>
#include <linux/topology.h>

#include "dma.h"

/* Rust's module parameters are read-only at run time and numbers only; these are neither. */

static const char *const engine_names[] = { "auto", "kthread", "off" };
static int engine;

static int engine_set(const char *text, const struct kernel_param *param)
{
	int index = sysfs_match_string(engine_names, text);

	if (index < 0)
		return index;
	WRITE_ONCE(engine, index);
	return 0;
}

static int engine_get(char *text, const struct kernel_param *param)
{
	return sysfs_emit(text, "%s\n", engine_names[READ_ONCE(engine)]);
}

static const struct kernel_param_ops engine_ops = { .set = engine_set, .get = engine_get };
module_param_cb(engine, &engine_ops, NULL, 0644);
MODULE_PARM_DESC(engine, "Who works on requests: auto (DMA engines, the default), kthread (kernel threads, one per NUMA node), off");
__MODULE_PARM_TYPE(engine, "string");

static unsigned int engine_depth = 2;
module_param(engine_depth, uint, 0644);
MODULE_PARM_DESC(engine_depth, "Fragments that a channel has in work at a time, 1 to 16 (default 2)");

static unsigned int engine_deadline_ms = 1000;
module_param(engine_deadline_ms, uint, 0644);
MODULE_PARM_DESC(engine_deadline_ms, "Milliseconds after which a silent engine is given up, at least 10 (default 1000)");

static unsigned int fragment_pages = 1;
module_param(fragment_pages, uint, 0644);
MODULE_PARM_DESC(fragment_pages, "Pages per fragment of a request that does not say, 1 to 4096 (default 1)");

static unsigned int max_user_requests = 32768;
module_param(max_user_requests, uint, 0644);
MODULE_PARM_DESC(max_user_requests, "Requests that the processes of one user may have at a time (default 32768)");

int libcopy_param_engine(void)
{
	return READ_ONCE(engine);
}

unsigned int libcopy_param_depth(void)
{
	return READ_ONCE(engine_depth);
}

unsigned int libcopy_param_deadline_ms(void)
{
	return READ_ONCE(engine_deadline_ms);
}

unsigned int libcopy_param_fragment_pages(void)
{
	return READ_ONCE(fragment_pages);
}

unsigned int libcopy_param_max_user_requests(void)
{
	return READ_ONCE(max_user_requests);
}

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

/* A bus whose devices are heard when they lose their driver. */
struct watched {
	struct list_head node;
	const struct bus_type *bus;
	struct notifier_block notifier;
};

static LIST_HEAD(watched);
static DEFINE_MUTEX(watched_lock);
static void (*device_leaves)(struct device *dev, bool gone);

static int notified(struct notifier_block *notifier, unsigned long action, void *data)
{
	if (action == BUS_NOTIFY_UNBIND_DRIVER || action == BUS_NOTIFY_UNBOUND_DRIVER)
		device_leaves(data, action == BUS_NOTIFY_UNBOUND_DRIVER);
	return NOTIFY_OK;
}

static int watch_bus(const struct bus_type *bus)
{
	struct watched *known;
	int ret = 0;

	mutex_lock(&watched_lock);
	list_for_each_entry(known, &watched, node)
		if (known->bus == bus)
			goto out;
	known = kzalloc_obj(*known);
	if (!known) {
		ret = -ENOMEM;
		goto out;
	}
	known->bus = bus;
	known->notifier.notifier_call = notified;
	ret = bus_register_notifier(bus, &known->notifier);
	if (ret)
		kfree(known);
	else
		list_add_tail(&known->node, &watched);
out:
	mutex_unlock(&watched_lock);
	return ret;
}

int libcopy_dma_watch_start(void (*leaves)(struct device *dev, bool gone))
{
	device_leaves = leaves;
#ifdef CONFIG_PCI
	return watch_bus(&pci_bus_type);
#else
	return 0;
#endif
}

static int watch_child(struct device *dev, void *data)
{
	return dev->bus ? watch_bus(dev->bus) : 0;
}

/*
 * Hears when the device goes, or a part of it on another bus (an idxd work queue). Called without
 * locks, because the notifier may wait for ours.
 */
int libcopy_dma_watch(struct device *dev)
{
	int ret = watch_child(dev, NULL);

	return ret ? ret : device_for_each_child(dev, NULL, watch_child);
}

void libcopy_dma_watch_stop(void)
{
	struct watched *known, *next;

	mutex_lock(&watched_lock);
	list_for_each_entry_safe(known, next, &watched, node) {
		bus_unregister_notifier(known->bus, &known->notifier);
		list_del(&known->node);
		kfree(known);
	}
	mutex_unlock(&watched_lock);
}

struct task_struct *libcopy_thread_run(int (*body)(void *data), void *data, int node,
				       const char *name)
{
	struct task_struct *task = kthread_create_on_node(body, data, node, "%s", name);

	if (IS_ERR(task))
		return NULL;
	if (node >= 0 && !cpumask_empty(cpumask_of_node(node)))
		set_cpus_allowed_ptr(task, cpumask_of_node(node));
	get_task_struct(task);
	wake_up_process(task);
	return task;
}

void libcopy_thread_stop(struct task_struct *task)
{
	kthread_stop_put(task);
}

int libcopy_next_node(int after)
{
	int node = after < 0 ? first_online_node : next_online_node(after);

	return node < MAX_NUMNODES ? node : -1;
}

int libcopy_current_node(void)
{
	return numa_node_id();
}

unsigned long libcopy_lock_irqsave(spinlock_t *lock)
{
	unsigned long flags;

	spin_lock_irqsave(lock, flags);
	return flags;
}

void libcopy_unlock_irqrestore(spinlock_t *lock, unsigned long flags)
{
	spin_unlock_irqrestore(lock, flags);
}

u32 libcopy_crc32c(u32 crc, const void *data, size_t len)
{
	return crc32c(crc, data, len);
}
