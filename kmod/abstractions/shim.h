/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What Rust cannot reach: macros and inline functions of the kernel that have no exported twin.
 * shim.rs makes them safe.
 */
#ifndef LIBCOPY_SHIM_H
#define LIBCOPY_SHIM_H

#include <linux/spinlock_types.h>
#include <linux/types.h>

struct iov_iter;
struct kvec;
struct mm_struct;
struct mmu_notifier;
struct mmu_notifier_ops;
struct page;
struct shrinker;
struct task_struct;
struct user_namespace;
struct user_struct;
struct vhost_task;
struct vm_area_struct;
struct workqueue_struct;

void *libcopy_page_address(struct page *page);
unsigned long libcopy_page_to_pfn(struct page *page);
size_t libcopy_contiguous_pages(struct page *const *pages, size_t count);
size_t libcopy_same_pages(struct mm_struct *mm, unsigned long start, struct page *const *expected,
			  unsigned long *room, size_t count);
struct mmu_notifier *libcopy_notifier_get(const struct mmu_notifier_ops *ops, struct mm_struct *mm);
long libcopy_pin_remote(struct mm_struct *mm, unsigned long start, size_t count,
			unsigned int flags, struct page **pages);
unsigned long libcopy_untagged_addr(unsigned long address);
bool libcopy_may_wait(void);
bool libcopy_may_lock_any(void);
unsigned long libcopy_total_pages(void);
bool libcopy_charge_mm(struct mm_struct *mm, unsigned long pages, unsigned long other,
		       bool unlimited);
void libcopy_uncharge_mm(struct mm_struct *mm, unsigned long pages);
struct user_struct *libcopy_get_current_user(void);
void libcopy_put_user(struct user_struct *user);
bool libcopy_charge_user(struct user_struct *user, unsigned long pages);
void libcopy_add_to_user(struct user_struct *user, long pages);
struct user_namespace *libcopy_get_current_user_ns(void);
void libcopy_put_user_ns(struct user_namespace *ns);
struct workqueue_struct *libcopy_workqueue_create(const char *name);
struct shrinker *libcopy_shrinker_alloc(const char *name);
void libcopy_vm_flags_mod(struct vm_area_struct *vma, unsigned long set, unsigned long clear);
bool libcopy_cond_resched_interrupted(void);
bool libcopy_fatal_signal_pending(void);
int libcopy_exiting_process(void);
int libcopy_current_process(void);
bool libcopy_may_warn(void);

struct vhost_task *libcopy_worker_create(bool (*body)(void *data), void (*killed)(void *data),
					 void *data, const char *name);
void libcopy_worker_start(struct vhost_task *worker);
void libcopy_worker_wake(struct vhost_task *worker);
void libcopy_worker_stop(struct vhost_task *worker);
void libcopy_set_running(void);
void libcopy_set_freezable(void);
void libcopy_try_to_freeze(void);
struct task_struct *libcopy_thread_run(int (*body)(void *data), void *data, int node,
				       const char *name);
void libcopy_thread_stop(struct task_struct *task);
int libcopy_next_node(int after);
int libcopy_current_node(void);

unsigned long libcopy_lock_irqsave(spinlock_t *lock);
bool libcopy_trylock_irqsave(spinlock_t *lock, unsigned long *flags);
void libcopy_unlock_irqrestore(spinlock_t *lock, unsigned long flags);
size_t libcopy_move(void *to, const void *from, size_t len);
u32 libcopy_crc32c(u32 crc, const void *data, size_t len);
size_t libcopy_copy_pieces_to_iter(const struct kvec *pieces, size_t count, size_t total,
				   struct iov_iter *to);

#endif
