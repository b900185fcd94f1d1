// SPDX-License-Identifier: GPL-2.0
/*
 * Notifications: who hears that a device loses its driver, or that the machine sleeps; see dma.h.
 * Buses come under watch when a channel of one of their devices is acquired, the PCI bus from the
 * start.
 */
#include <linux/device.h>
#include <linux/device/bus.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/notifier.h>
#include <linux/pci.h>
#include <linux/slab.h>
#include <linux/suspend.h>

#include "dma.h"

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

static void (*machine_sleeps)(bool sleeps);

static int pm_notified(struct notifier_block *notifier, unsigned long action, void *data)
{
	switch (action) {
	case PM_HIBERNATION_PREPARE:
	case PM_SUSPEND_PREPARE:
	case PM_RESTORE_PREPARE:
		machine_sleeps(true);
		break;
	case PM_POST_HIBERNATION:
	case PM_POST_SUSPEND:
	case PM_POST_RESTORE:
		machine_sleeps(false);
		break;
	}
	return NOTIFY_OK;
}

static struct notifier_block pm_notifier = { .notifier_call = pm_notified };

int libcopy_dma_watch_start(void (*leaves)(struct device *dev, bool gone),
			    void (*sleeps)(bool sleeps))
{
	int ret;

	device_leaves = leaves;
	machine_sleeps = sleeps;
	ret = register_pm_notifier(&pm_notifier);
	if (ret)
		return ret;
#ifdef CONFIG_PCI
	ret = watch_bus(&pci_bus_type);
	if (ret)
		unregister_pm_notifier(&pm_notifier);
#endif
	return ret;
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

	unregister_pm_notifier(&pm_notifier);
	mutex_lock(&watched_lock);
	list_for_each_entry_safe(known, next, &watched, node) {
		bus_unregister_notifier(known->bus, &known->notifier);
		list_del(&known->node);
		kfree(known);
	}
	mutex_unlock(&watched_lock);
}
