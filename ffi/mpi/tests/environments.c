// SPDX-License-Identifier: MIT OR Apache-2.0

/* A program in an environment that restricts it: what the kernel refuses on its behalf must cost it
 * neither bytes nor errors nor time. Every rank prints a line: what became of each case ("ok",
 * "wrong", an error's class), and the seconds of MPI_Init and of all cases. Three ranks; some
 * environments are for root alone.
 *
 * usage: environments KIND all|odd [CASE]   the ranks that are restricted, and the case that is run
 *                                           alone
 *
 * A kind whose name ends in "-late" is applied after some calls.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/perf_event.h>
#include <linux/seccomp.h>
#include <mpi.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LARGE = 3 << 19, BLOCK = 24, STRIDE = 40, ROWS = LARGE / STRIDE, HUGE_PAGE = 2 << 20, MOST = 8 };

#ifndef SYS_memfd_secret
#define SYS_memfd_secret 447
#endif

static int rank, size, has_zeros, all_restricted, is_read_only;
static const char *only;
static unsigned char *a, *b;
static const char *skipped;
static MPI_Datatype rows;

/* Seconds for which this thread was ready and others had the processors (proc(5), schedstat). */
static double ready(void)
{
	unsigned long long ran, waited = 0;
	FILE *file = fopen("/proc/self/schedstat", "r");
	if (file == NULL)
		return 0;
	if (fscanf(file, "%llu %llu", &ran, &waited) != 2)
		waited = 0;
	fclose(file);
	return waited * 1e-9;
}

/* Seconds, less those: on a busy machine they are most of them. */
static double now(void)
{
	struct timespec t;
	double before, after = ready();
	do {
		before = after;
		clock_gettime(CLOCK_MONOTONIC, &t);
		after = ready();
	} while (before != after);
	return t.tv_sec + t.tv_nsec * 1e-9 - after;
}

static int is(const char *kind, const char *name)
{
	return strncmp(kind, name, strlen(name)) == 0;
}

/* These system calls fail with this error, in all threads. */
static int refuse(const int *calls, int count, int error)
{
	struct sock_filter filter[16] = { BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)) };
	int n = 1;
	for (int i = 0; i < count; i++) {
		filter[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[i], 0, 1);
		filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error);
	}
	filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	struct sock_fprog program = { n, filter };
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program);
}

static int limit(int what, rlim_t most)
{
	struct rlimit both = { most, most };
	return setrlimit(what, &both);
}

static int write_to(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY), n = fd < 0 ? -1 : (int)write(fd, text, strlen(text));
	close(fd);
	return n < 0 ? -1 : 0;
}

/* Users of our own, among whom we are who we are. */
static int own_users(void)
{
	char users[64], groups[64];
	snprintf(users, sizeof(users), "%d %d 1", geteuid(), geteuid());
	snprintf(groups, sizeof(groups), "%d %d 1", getegid(), getegid());
	if (unshare(CLONE_NEWUSER) || write_to("/proc/self/setgroups", "deny"))
		return -1;
	return write_to("/proc/self/uid_map", users) || write_to("/proc/self/gid_map", groups);
}

/* A /dev/shm of our own. */
static int own_shm(const char *options, unsigned long flags)
{
	if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
		return -1;
	return mount("own", "/dev/shm", "tmpfs", flags, options);
}

/* Files are made and written below /tmp alone. */
static int landlock(void)
{
	struct landlock_ruleset_attr handled = { .handled_access_fs = LANDLOCK_ACCESS_FS_WRITE_FILE |
								      LANDLOCK_ACCESS_FS_MAKE_REG };
	struct landlock_path_beneath_attr below = { .allowed_access = handled.handled_access_fs };
	int set = syscall(SYS_landlock_create_ruleset, &handled, sizeof(handled), 0);
	if (set < 0)
		return -1;
	below.parent_fd = open("/tmp", O_PATH);
	syscall(SYS_landlock_add_rule, set, LANDLOCK_RULE_PATH_BENEATH, &below, 0);
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	return syscall(SYS_landlock_restrict_self, set, 0);
}

static int restrict_this(const char *kind)
{
	static const int memory[] = { SYS_process_vm_readv, SYS_process_vm_writev };
	static const int files[] = { SYS_fallocate, SYS_memfd_create };
	static const int process[] = { SYS_pidfd_open };
	int status;
	if (is(kind, "eperm"))
		return refuse(memory, 2, EPERM);
	if (is(kind, "enosys"))
		return refuse(memory, 2, ENOSYS);
	if (is(kind, "efault"))
		return refuse(memory, 2, EFAULT);
	if (is(kind, "no-fallocate"))
		return refuse(files, 1, ENOSYS);
	if (is(kind, "no-memfd"))
		return refuse(files + 1, 1, ENOSYS);
	if (is(kind, "no-pidfd"))
		return refuse(process, 1, ENOSYS);
	if (is(kind, "user-namespace"))
		return own_users();
	if (is(kind, "pid-namespace")) {
		if (unshare(CLONE_NEWPID))
			return -1;
		pid_t child = fork();
		/* Launchers that end a job do not know it. */
		if (child == 0)
			return prctl(PR_SET_PDEATHSIG, SIGKILL);
		waitpid(child, &status, 0);
		_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
	}
	if (is(kind, "mount-namespace"))
		return unshare(CLONE_NEWNS);
	if (is(kind, "ipc-namespace"))
		return unshare(CLONE_NEWIPC);
	if (is(kind, "private-shm"))
		return own_shm("size=1g", 0);
	if (is(kind, "tiny-shm"))
		return own_shm("size=1m", 0);
	if (is(kind, "read-only-shm"))
		return own_shm("", MS_RDONLY);
	if (is(kind, "limit-file"))
		return limit(RLIMIT_FSIZE, 5 << 20);
	if (is(kind, "limit-descriptors"))
		return limit(RLIMIT_NOFILE, 48);
	if (is(kind, "limit-locked"))
		return limit(RLIMIT_MEMLOCK, 0);
	if (is(kind, "landlock"))
		return landlock();
	return 0;
}

static void *mapped(size_t length, int flags, int fd)
{
	void *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, flags, fd, 0);
	return memory == MAP_FAILED ? NULL : memory;
}

/* Memory to send out of. */
static unsigned char *memory(const char *kind)
{
	void *found = NULL;
	if (is(kind, "secret")) {
		int fd = syscall(SYS_memfd_secret, 0);
		if (fd >= 0 && ftruncate(fd, LARGE) == 0)
			found = mapped(LARGE, MAP_SHARED, fd);
	} else if (is(kind, "device")) {
		/* Pages of the kernel's that are mapped like a device's. */
		struct perf_event_attr event = { .type = PERF_TYPE_SOFTWARE,
						 .config = PERF_COUNT_SW_CPU_CLOCK,
						 .size = sizeof(event),
						 .disabled = 1 };
		long page = sysconf(_SC_PAGESIZE), pages = 1;
		while (pages * page < LARGE)
			pages *= 2;
		int fd = syscall(SYS_perf_event_open, &event, 0, -1, -1, 0);
		char *all = fd < 0 ? NULL : mapped((1 + pages) * page, MAP_SHARED, fd);
		found = all == NULL ? NULL : all + page;
	} else if (is(kind, "huge")) {
		char *all = mapped(LARGE + HUGE_PAGE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
		if (all != NULL) {
			all += HUGE_PAGE - (size_t)all % HUGE_PAGE;
			found = madvise(all, LARGE, MADV_HUGEPAGE) ? NULL : all;
		}
	} else if (is(kind, "read-only") || is(kind, "file")) {
		char name[] = "/tmp/libcopy-environments-XXXXXX";
		int fd = mkstemp(name);
		unlink(name);
		if (fd >= 0 && ftruncate(fd, LARGE) == 0)
			found = mapped(LARGE, MAP_SHARED, fd);
	} else {
		found = malloc(LARGE);
	}
	if (found == NULL) {
		skipped = strerror(errno);
		found = malloc(LARGE);
	}
	return found;
}

/* A rank of which all bytes are zeros: nobody writes them. */
static int is_zero(int from)
{
	return has_zeros && (all_restricted || from % 2);
}

static unsigned char byte(int from, size_t at)
{
	if (is_zero(from))
		return 0;
	return at * 7 + at / 251 + from * 31;
}

/* Whether the bytes from `at` on are those of the rank `from`. */
static int came(size_t at, int from, size_t first, size_t length)
{
	for (size_t i = 0; i < length; i++)
		if (b[at + i] != byte(from, first + i))
			return 0;
	return 1;
}

static int rows_came(int from)
{
	for (size_t i = 0; i < ROWS; i++)
		if (!came(i * STRIDE, from, i * STRIDE, BLOCK))
			return 0;
	return 1;
}

enum { WRONG = -1 };

/* What became of it: 0, WRONG, or an error's code. */
static int dense(int round)
{
	int code = 0, right = 1, from = round % size, to = (from + 1) % size;
	if (rank == from)
		code = MPI_Send(a, LARGE, MPI_BYTE, to, 1, MPI_COMM_WORLD);
	if (rank == to) {
		code = MPI_Recv(b, LARGE, MPI_BYTE, from, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		right = came(0, from, 0, LARGE);
	}
	return code ? code : right ? 0 : WRONG;
}

static int typed(int round)
{
	int code = 0, right = 1, from = round % size, to = (from + 1) % size;
	if (rank == from)
		code = MPI_Send(a, 1, rows, to, 2, MPI_COMM_WORLD);
	if (rank == to) {
		code = MPI_Recv(b, 1, rows, from, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		right = rows_came(from);
	}
	return code ? code : right ? 0 : WRONG;
}

static int nonblocking(int round)
{
	MPI_Request requests[2];
	MPI_Status statuses[2];
	int to = (rank + 1) % size, from = (rank + size - 1) % size, dense = round % 2, code;
	int count = dense ? LARGE : 1;
	MPI_Datatype type = dense ? MPI_BYTE : rows;
	code = MPI_Irecv(b, count, type, from, 3, MPI_COMM_WORLD, &requests[0]);
	code = code ? code : MPI_Isend(a, count, type, to, 3, MPI_COMM_WORLD, &requests[1]);
	code = code ? code : MPI_Waitall(2, requests, statuses);
	return code ? code : (dense ? came(0, from, 0, LARGE) : rows_came(from)) ? 0 : WRONG;
}

static int parts_came(int from_each, int part)
{
	for (int from = 0; from < size; from++)
		if (!came((size_t)from * part, from, from_each ? (size_t)rank * part : 0, part))
			return 0;
	return 1;
}

static int sums_came(int count)
{
	for (int i = 0; i < count; i++) {
		unsigned sum = 0, found;
		for (int from = 0; from < size; from++)
			for (int k = 0; k < 4; k++)
				sum += (unsigned)byte(from, 4 * (size_t)i + k) << 8 * k;
		memcpy(&found, b + 4 * (size_t)i, 4);
		if (found != sum)
			return 0;
	}
	return 1;
}

static int collective(int round)
{
	int part = LARGE / size / 8 * 8, code, right;
	switch (round % 4) {
	case 0:
		code = MPI_Bcast(rank == 1 ? a : b, LARGE, MPI_BYTE, 1, MPI_COMM_WORLD);
		right = rank == 1 || came(0, 1, 0, LARGE);
		break;
	case 1:
		code = MPI_Allgather(a, part, MPI_BYTE, b, part, MPI_BYTE, MPI_COMM_WORLD);
		right = parts_came(0, part);
		break;
	case 2:
		code = MPI_Alltoall(a, part, MPI_BYTE, b, part, MPI_BYTE, MPI_COMM_WORLD);
		right = parts_came(1, part);
		break;
	default:
		code = MPI_Allreduce(a, b, LARGE / 4, MPI_UNSIGNED, MPI_SUM, MPI_COMM_WORLD);
		right = sums_came(LARGE / 4);
	}
	return code ? code : right ? 0 : WRONG;
}

static int nonblocking_collective(int round)
{
	int part = LARGE / size / 8 * 8, code;
	MPI_Request request;
	switch (round % 3) {
	case 0:
		code = MPI_Ibcast(rank == 1 ? a : b, LARGE, MPI_BYTE, 1, MPI_COMM_WORLD, &request);
		break;
	case 1:
		code = MPI_Iallgather(a, part, MPI_BYTE, b, part, MPI_BYTE, MPI_COMM_WORLD, &request);
		break;
	default:
		code = MPI_Iallreduce(a, b, LARGE / 4, MPI_UNSIGNED, MPI_SUM, MPI_COMM_WORLD, &request);
	}
	code = code ? code : MPI_Wait(&request, MPI_STATUS_IGNORE);
	if (code)
		return code;
	switch (round % 3) {
	case 0:
		return rank == 1 || came(0, 1, 0, LARGE) ? 0 : WRONG;
	case 1:
		return parts_came(0, part) ? 0 : WRONG;
	default:
		return sums_came(LARGE / 4) ? 0 : WRONG;
	}
}

/* Each way several times: what was refused once must not be an error the next time. */
static const struct {
	const char *name;
	int (*run)(int);
	int rounds;
} cases[] = { { "dense", dense, 6 },
	      { "typed", typed, 6 },
	      { "nonblocking", nonblocking, 4 },
	      /* The ranks meet for these in a blocking collective that comes after the first. */
	      { "first-icollective", nonblocking_collective, 3 },
	      { "collective", collective, 8 },
	      { "icollective", nonblocking_collective, 6 } };

enum { CASES = sizeof(cases) / sizeof(cases[0]) };

/* Whether what is sent is as it was. Where MPICH 5.0.2 is refused a read, MPI_Ibcast writes into
 * the root's buffer: its bytes are made again, so that the next calls do not send others. */
static int is_kept(void)
{
	int kept = 1;
	for (size_t i = 0; i < LARGE && !is_read_only; i++)
		if (a[i] != byte(rank, i)) {
			a[i] = byte(rank, i);
			kept = 0;
		}
	return kept;
}

static int is_run(int number)
{
	return only == NULL || strcmp(only, cases[number].name) == 0;
}

static void all(int *results)
{
	for (int i = 0; i < CASES; i++) {
		results[i] = 0;
		for (int round = 0; round < cases[i].rounds && is_run(i); round++) {
			memset(b, 0xee, LARGE);
			int result = cases[i].run(round);
			if (!is_kept() && result == 0)
				result = WRONG;
			results[i] = results[i] ? results[i] : result;
		}
	}
}

int main(int argc, char **argv)
{
	static const char *const names[] = { "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK" };
	int results[CASES], expected = 0;
	char line[512];
	for (int i = 2; i >= 0; i--)
		if (getenv(names[i]) != NULL)
			expected = atoi(getenv(names[i]));
	if (argc < 3)
		return 2;
	const char *kind = argv[1];
	only = argc > 3 ? argv[3] : NULL;
	has_zeros = is(kind, "device");
	all_restricted = strcmp(argv[2], "odd") != 0;
	int late = strstr(kind, "-late") != NULL;
	int restricted = all_restricted || expected % 2;
	if (restricted && !late && restrict_this(kind))
		skipped = strerror(errno);
	double begin = now();
	MPI_Init(&argc, &argv);
	double init = now() - begin;
	MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	a = memory(restricted ? kind : "none");
	b = malloc(LARGE);
	for (size_t i = 0; i < LARGE && (skipped || !is_zero(rank)); i++)
		a[i] = byte(rank, i);
	is_read_only = is_zero(rank);
	if (restricted && is(kind, "read-only")) {
		is_read_only = 1;
		if (mprotect(a, LARGE, PROT_READ))
			skipped = strerror(errno);
	}
	MPI_Type_vector(ROWS, BLOCK, STRIDE, MPI_BYTE, &rows);
	MPI_Type_commit(&rows);
	if (late)
		all(results);
	if (restricted && late && restrict_this(kind))
		skipped = strerror(errno);
	begin = now();
	all(results);
	double spent = now() - begin;
	int n = snprintf(line, sizeof(line), "environment: rank %d init %.2f spent %.2f", rank, init, spent);
	for (int i = 0; i < CASES; i++) {
		const char *word = results[i] == WRONG ? "wrong" : "ok";
		int class = 0;
		if (!is_run(i))
			continue;
		n += snprintf(line + n, sizeof(line) - n, " %s ", cases[i].name);
		if (results[i] > 0)
			MPI_Error_class(results[i], &class);
		n += results[i] > 0 ? snprintf(line + n, sizeof(line) - n, "class-%d", class) :
				      snprintf(line + n, sizeof(line) - n, "%s", word);
	}
	if (skipped != NULL)
		n += snprintf(line + n, sizeof(line) - n, " skipped: %s", skipped);
	printf("%s\n", line);
	fflush(stdout);
	MPI_Finalize();
	return 0;
}
