// SPDX-License-Identifier: GPL-2.0
/*
 * Thin C around kernel macros and inline functions; see shim.h. No policy lives here, but that a
 * thread runs on the CPUs of its node.
 */
#include <linux/capability.h>
#include <linux/crc32.h>
#include <linux/cred.h>
#include <linux/freezer.h>
#include <linux/hmm.h>
#include <linux/kthread.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/nodemask.h>
#include <linux/ratelimit.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>
#include <linux/sched/user.h>
#include <linux/sched/vhost_task.h>
#include <linux/shrinker.h>
#include <linux/spinlock.h>
#include <linux/topology.h>
#include <linux/uaccess.h>
#include <linux/uio.h>
#include <linux/user_namespace.h>
#include <linux/workqueue.h>

#include "shim.h"

/* Region memory is in the direct map of the kernel, and sizes of user space are 64 bits wide. */
#if defined(CONFIG_HIGHMEM) || !defined(CONFIG_64BIT)
#error "libcopy needs a 64-bit kernel, whose direct map covers all memory"
#endif

void *libcopy_page_address(struct page *page)
{
	return page_address(page);
}

unsigned long libcopy_page_to_pfn(struct page *page)
{
	return page_to_pfn(page);
}

/* How many of @pages from the first on follow each other in physical memory. */
size_t libcopy_contiguous_pages(struct page *const *pages, size_t count)
{
	unsigned long first = page_to_pfn(pages[0]);
	size_t many = 1;

	while (many < count && page_to_pfn(pages[many]) == first + many)
		many++;
	return many;
}

/*
 * How many pages from @start on are those expected, as the page tables have it: nothing is faulted
 * in and no page referenced, which is several times as fast as pinning. What it does not count may
 * be the same all the same. The address space is alive; there is @room for @count words.
 */
size_t libcopy_same_pages(struct mm_struct *mm, unsigned long start, struct page *const *expected,
			  unsigned long *room, size_t count)
{
	size_t same = 0;
#ifdef CONFIG_HMM_MIRROR
	/*
	 * hmm_range_fault() takes the address space and a sequence number from it, and gives up
	 * when that has changed. Ours never does: changes are told by the mmu_notifier, see
	 * watch.rs.
	 */
	struct mmu_interval_notifier still = { .mm = mm };
	struct hmm_range range = {
		.notifier = &still,
		.start = start,
		.end = start + count * PAGE_SIZE,
		.hmm_pfns = room,
	};

	memset(room, 0, count * sizeof(*room));
	if (mmap_read_lock_killable(mm))
		return 0;
	if (hmm_range_fault(&range))
		count = 0;
	mmap_read_unlock(mm);
	while (same < count && (room[same] & HMM_PFN_VALID) &&
	       hmm_pfn_to_page(room[same]) == expected[same])
		same++;
#endif
	return same;
}

struct mmu_notifier *libcopy_notifier_get(const struct mmu_notifier_ops *ops, struct mm_struct *mm)
{
	struct mmu_notifier *notifier;

	if (mmap_write_lock_killable(mm))
		return ERR_PTR(-EINTR);
	notifier = mmu_notifier_get_locked(ops, mm);
	mmap_write_unlock(mm);
	return notifier;
}

/*
 * Pins pages of another process, which are brought in if they are absent. That may be up to
 * somebody who never answers (userfaultfd, FUSE): the wait is without the lock and ends with a
 * signal.
 */
long libcopy_pin_remote(struct mm_struct *mm, unsigned long start, size_t count,
			unsigned int flags, struct page **pages)
{
	int locked = 1;
	long got;

	if (mmap_read_lock_killable(mm))
		return -EINTR;
	got = pin_user_pages_remote(mm, start, count, flags, pages, &locked);
	if (locked)
		mmap_read_unlock(mm);
	return got;
}

/*
 * An address of the caller without what its architecture ignores (LAM, TBI). The mask of the
 * address space is looked at under its lock, as everywhere outside uaccess; ordinary addresses do
 * not need it.
 */
unsigned long libcopy_untagged_addr(unsigned long address)
{
	if (address < TASK_SIZE_MAX)
		return address;
	mmap_read_lock(current->mm);
	address = untagged_addr_remote(current->mm, address);
	mmap_read_unlock(current->mm);
	return address;
}

/*
 * Whether the caller may wait for a process: it is one itself, and not in an interrupt. A user
 * worker is waited for by whoever waits for the end of its process.
 */
bool libcopy_may_wait(void)
{
	return !(current->flags & (PF_KTHREAD | PF_USER_WORKER)) && !in_interrupt() &&
	       !irqs_disabled();
}

bool libcopy_may_lock_any(void)
{
	return ns_capable_noaudit(&init_user_ns, CAP_IPC_LOCK);
}

unsigned long libcopy_total_pages(void)
{
	return totalram_pages();
}

/* Counts pages as pinned by @mm, within the caller's limit together with @other ones. */
bool libcopy_charge_mm(struct mm_struct *mm, unsigned long pages, unsigned long other,
		       bool unlimited)
{
	unsigned long limit = rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT;
	unsigned long pinned = atomic64_add_return(pages, &mm->pinned_vm);

	if (unlimited || pinned + READ_ONCE(mm->locked_vm) + other <= limit)
		return true;
	atomic64_sub(pages, &mm->pinned_vm);
	return false;
}

void libcopy_uncharge_mm(struct mm_struct *mm, unsigned long pages)
{
	atomic64_sub(pages, &mm->pinned_vm);
}

struct user_struct *libcopy_get_current_user(void)
{
	return get_uid(current_user());
}

void libcopy_put_user(struct user_struct *user)
{
	free_uid(user);
}

/* Counts pages as locked by @user, within the caller's limit. */
bool libcopy_charge_user(struct user_struct *user, unsigned long pages)
{
	unsigned long limit = rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT;
	long locked = atomic_long_read(&user->locked_vm);

	do {
		if (locked + pages > limit)
			return false;
	} while (!atomic_long_try_cmpxchg(&user->locked_vm, &locked, locked + pages));
	return true;
}

void libcopy_add_to_user(struct user_struct *user, long pages)
{
	atomic_long_add(pages, &user->locked_vm);
}

struct user_namespace *libcopy_get_current_user_ns(void)
{
	return get_user_ns(current_user_ns());
}

void libcopy_put_user_ns(struct user_namespace *ns)
{
	put_user_ns(ns);
}

struct workqueue_struct *libcopy_workqueue_create(const char *name)
{
	return alloc_workqueue("%s", WQ_UNBOUND | WQ_MEM_RECLAIM, 0, name);
}

struct shrinker *libcopy_shrinker_alloc(const char *name)
{
	struct shrinker *shrinker = shrinker_alloc(0, "%s", name);

	if (shrinker)
		shrinker->seeks = DEFAULT_SEEKS;
	return shrinker;
}

void libcopy_vm_flags_mod(struct vm_area_struct *vma, unsigned long set, unsigned long clear)
{
	vm_flags_mod(vma, set, clear);
}

/* Gives way to others, then says whether a signal wants the caller back in user space. */
bool libcopy_cond_resched_interrupted(void)
{
	cond_resched();
	return signal_pending(current);
}

/* Process whose exit is running, if the caller is one; 0 otherwise. */
int libcopy_exiting_process(void)
{
	return current->flags & PF_EXITING ? task_tgid_nr(current) : 0;
}

int libcopy_current_process(void)
{
	return task_tgid_nr(current);
}

/* Whether there were not too many warnings of late. */
bool libcopy_may_warn(void)
{
	static DEFINE_RATELIMIT_STATE(state, DEFAULT_RATELIMIT_INTERVAL, DEFAULT_RATELIMIT_BURST);

	return __ratelimit(&state);
}

bool libcopy_fatal_signal_pending(void)
{
	return fatal_signal_pending(current);
}

/* Without user workers the other three are not called. */
struct vhost_task *libcopy_worker_create(bool (*body)(void *data), void (*killed)(void *data),
					 void *data, const char *name)
{
	if (!IS_ENABLED(CONFIG_VHOST_TASK))
		return ERR_PTR(-EOPNOTSUPP);
	return vhost_task_create(body, killed, data, name);
}

void libcopy_worker_start(struct vhost_task *worker)
{
	if (IS_ENABLED(CONFIG_VHOST_TASK))
		vhost_task_start(worker);
}

void libcopy_worker_wake(struct vhost_task *worker)
{
	if (IS_ENABLED(CONFIG_VHOST_TASK))
		vhost_task_wake(worker);
}

void libcopy_worker_stop(struct vhost_task *worker)
{
	if (IS_ENABLED(CONFIG_VHOST_TASK))
		vhost_task_stop(worker);
}

void libcopy_set_running(void)
{
	__set_current_state(TASK_RUNNING);
}

void libcopy_set_freezable(void)
{
	set_freezable();
}

void libcopy_try_to_freeze(void)
{
	try_to_freeze();
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

bool libcopy_trylock_irqsave(spinlock_t *lock, unsigned long *flags)
{
	unsigned long saved;
	bool taken = spin_trylock_irqsave(lock, saved);

	*flags = saved;
	return taken;
}

void libcopy_unlock_irqrestore(spinlock_t *lock, unsigned long flags)
{
	spin_unlock_irqrestore(lock, flags);
}

/* Where the bytes overlap, memory that cannot be read is no shortfall but a machine check. */
size_t libcopy_move(void *to, const void *from, size_t len)
{
	unsigned long to_addr = (unsigned long)to, from_addr = (unsigned long)from;

	if (to_addr - from_addr < len || from_addr - to_addr < len) {
		memmove(to, from, len);
		return len;
	}
	return len - copy_mc_to_kernel(to, from, len);
}

u32 libcopy_crc32c(u32 crc, const void *data, size_t len)
{
	return crc32c(crc, data, len);
}

/* Word @i of what is copied; and going on behind @n bytes. */
#define put_word(i) unsafe_put_user(((const u64 *)from)[i], (u64 __user *)at + (i), fault)
#define go_on(n) (from += (n), at += (n), len -= (n))

/*
 * Copies @count short pieces of kernel memory, @total bytes together, to where @to is, and moves it
 * behind them. Access to user memory is opened once for all of them, and no byte is copied twice.
 * Returns @total; or 0 if @to is not one range of user memory, or not all of it can be written:
 * then @to is where it was.
 */
size_t libcopy_copy_pieces_to_iter(const struct kvec *pieces, size_t count, size_t total,
				   struct iov_iter *to)
{
	const bool words = IS_ENABLED(CONFIG_HAVE_EFFICIENT_UNALIGNED_ACCESS);
	char __user *at;
	size_t i;

	if (!iter_is_ubuf(to) || iov_iter_count(to) < total)
		return 0;
	at = (char __user *)to->ubuf + to->iov_offset;
	if (!user_write_access_begin(at, total))
		return 0;
	for (i = 0; i < count; i++) {
		const char *from = pieces[i].iov_base;
		size_t len = pieces[i].iov_len;

		/* Without a test for each word. */
		if (words) {
			for (; len >= 64; go_on(64)) {
				put_word(0);
				put_word(1);
				put_word(2);
				put_word(3);
				put_word(4);
				put_word(5);
				put_word(6);
				put_word(7);
			}
			if (len >= 32) {
				put_word(0);
				put_word(1);
				put_word(2);
				put_word(3);
				go_on(32);
			}
			if (len >= 16) {
				put_word(0);
				put_word(1);
				go_on(16);
			}
		}
		if (!len)
			continue;
		unsafe_copy_to_user(at, from, len, fault);
		at += len;
	}
	user_write_access_end();
	iov_iter_advance(to, total);
	return total;
fault:
	user_write_access_end();
	return 0;
}
