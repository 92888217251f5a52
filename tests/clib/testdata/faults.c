// Faults checks, from C, which side handles SIGSEGV and SIGBUS: the device those of memory that was taken away under its regions, the program
// all others. Its argument says what; the exit status is 0 if all is well, and 1 after a message.
#define _GNU_SOURCE

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common.h"

enum { SIZE = 1 << 16, ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE };

static struct ibv_device **list;
static struct ibv_context *context;
static struct ibv_pd *pd;

static void open_device(void)
{
	list = ibv_get_device_list(NULL);
	CHECK(list && list[0]);
	context = ibv_open_device(list[0]);
	CHECK(context);
	pd = ibv_alloc_pd(context);
	CHECK(pd);
}

/* Writes from one region to another after spoil has done something to the second's memory, and returns the status. */
static enum ibv_wc_status write_to(char *memory, void (*spoil)(char *))
{
	static char from[SIZE];
	struct ibv_mr *source = ibv_reg_mr(pd, from, SIZE, ACCESS), *target = ibv_reg_mr(pd, memory, SIZE, ACCESS);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_sge sge;
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE}, *bad;
	struct ibv_qp *qp[2];
	union ibv_gid gid;
	struct ibv_wc wc;
	int n;

	CHECK(source && target && cq);
	CHECK(ibv_query_gid(context, 1, 0, &gid) == 0);
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {4, 4, 1, 1, 0}, .sq_sig_all = 1};

		qp[i] = ibv_create_qp(pd, &init);
		CHECK(qp[i]);
	}
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_attr a = {
			.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ACCESS, .path_mtu = IBV_MTU_1024, .dest_qp_num = qp[!i]->qp_num,
			.max_dest_rd_atomic = 1, .min_rnr_timer = 12, .timeout = 10, .retry_cnt = 3, .rnr_retry = 3, .max_rd_atomic = 1,
			.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .hop_limit = 64}},
		};

		CHECK(!ibv_modify_qp(qp[i], &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
		a.qp_state = IBV_QPS_RTR;
		CHECK(!ibv_modify_qp(qp[i], &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
		a.qp_state = IBV_QPS_RTS;
		CHECK(!ibv_modify_qp(qp[i], &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				     IBV_QP_MAX_QP_RD_ATOMIC));
	}
	if (spoil)
		spoil(memory);
	sge = (struct ibv_sge){(uintptr_t)from, SIZE, source->lkey};
	wr.wr.rdma.remote_addr = (uintptr_t)memory;
	wr.wr.rdma.rkey = target->rkey;
	CHECK(context->ops.post_send(qp[0], &wr, &bad) == 0);
	while ((n = context->ops.poll_cq(cq, 1, &wc)) == 0)
		;
	CHECK(n == 1);
	for (int i = 0; i < 2; i++)
		CHECK(ibv_destroy_qp(qp[i]) == 0);
	CHECK(ibv_destroy_cq(cq) == 0 && ibv_dereg_mr(source) == 0 && ibv_dereg_mr(target) == 0);
	return wc.status;
}

/* Maps memory where the kernel puts none by itself: another thread would soon get what a test unmaps. */
static char *map(int fd)
{
	static uintptr_t place = (uintptr_t)1 << 32;
	char *m = mmap((void *)(place += SIZE), SIZE, PROT_READ | PROT_WRITE, fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, fd, 0);

	CHECK(m != MAP_FAILED);
	return m;
}

static int file;

static void unmap(char *memory) { CHECK(munmap(memory, SIZE) == 0); }
static void protect(char *memory) { CHECK(mprotect(memory, SIZE, PROT_READ) == 0); }
static void truncate_file(char *memory) { CHECK(ftruncate(file, 0) == 0); }

/* Takes memory away in each way. */
static void take_away(void)
{
	CHECK(write_to(map(-1), NULL) == IBV_WC_SUCCESS);
	CHECK(write_to(map(-1), unmap) == IBV_WC_REM_ACCESS_ERR);
	CHECK(write_to(map(-1), protect) == IBV_WC_REM_ACCESS_ERR);
	file = memfd_create("file", 0);
	CHECK(file >= 0 && ftruncate(file, SIZE) == 0);
	CHECK(write_to(map(file), truncate_file) == IBV_WC_REM_ACCESS_ERR);
	close(file);
}

static volatile sig_atomic_t calls, last_code;
static void *volatile last_addr;
static sigjmp_buf again;
static char *nowhere;

static void note(int sig, siginfo_t *info, void *context)
{
	calls++;
	last_code = info->si_code;
	last_addr = info->si_addr;
}

static void leap(int sig, siginfo_t *info, void *context)
{
	note(sig, info, context);
	siglongjmp(again, 1);
}

static void mend(int sig)
{
	calls++;
	CHECK(mprotect(nowhere, SIZE, PROT_READ | PROT_WRITE) == 0);
}

/* Writes to nowhere, from where leap or mend return. */
static void stumble(void)
{
	if (sigsetjmp(again, 1) == 0)
		*(volatile char *)nowhere = 1;
}

static void handle(int sig, void (*handler)(int, siginfo_t *, void *), int flags)
{
	struct sigaction a = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | flags};

	sigaddset(&a.sa_mask, SIGUSR1);
	CHECK(sigaction(sig, &a, NULL) == 0);
}

static void forbid(void)
{
	nowhere = mmap(NULL, SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(nowhere != MAP_FAILED);
}

/* The device's faults stay its own whenever the program has installed handlers. */
static void handlers(void)
{
	for (int early = 1; early >= 0; early--) {
		handle(SIGSEGV, note, 0);
		handle(SIGBUS, note, SA_ONSTACK);
		if (early)
			open_device();
		take_away();
	}
	CHECK(signal(SIGBUS, SIG_DFL) != SIG_ERR && signal(SIGSEGV, SIG_IGN) != SIG_ERR);
	take_away();
	CHECK(calls == 0);
}

/* The program's faults are its own, on each thread and however its handlers go on. */
static void *stumble_often(void *times)
{
	for (int i = 0; i < *(int *)times; i++) {
		if (i % 10 == 0)
			CHECK(raise(SIGSEGV) == 0);
	}
	return NULL;
}

static void own(void)
{
	struct sigaction a;
	int times = 300;
	pthread_t thread;

	open_device();
	forbid();
	for (int i = 1; i <= 300; i++) {
		handle(SIGSEGV, leap, 0);
		stumble();
		CHECK(calls == i && last_addr == nowhere && last_code == 2 /* SEGV_ACCERR */);
	}
	CHECK(sigaction(SIGSEGV, NULL, &a) == 0);
	CHECK(a.sa_sigaction == leap && a.sa_flags == SA_SIGINFO && sigismember(&a.sa_mask, SIGUSR1) && !sigismember(&a.sa_mask, SIGUSR2));
	take_away();
	CHECK(calls == 300);

	CHECK(signal(SIGSEGV, mend) != SIG_ERR);
	CHECK(signal(SIGSEGV, mend) == mend);
	*(volatile char *)nowhere = 1; /* goes on when it is mended */
	CHECK(calls == 301);

	/* What is sent is not a fault, but the program's as well. */
	handle(SIGSEGV, note, 0);
	handle(SIGBUS, note, 0);
	CHECK(raise(SIGSEGV) == 0 && calls == 302 && last_code == SI_TKILL);
	CHECK(kill(getpid(), SIGBUS) == 0 && calls == 303 && last_code == SI_USER);
	CHECK(pthread_create(&thread, NULL, stumble_often, &times) == 0);
	for (int i = 0; i < 10; i++)
		take_away();
	CHECK(pthread_join(thread, NULL) == 0 && calls == 303 + 30);
}

static int blocked_in_handler[4];

static void look(int sig)
{
	sigset_t now;

	CHECK(pthread_sigmask(SIG_BLOCK, NULL, &now) == 0);
	for (int i = 0; i < 4; i++)
		blocked_in_handler[i] = sigismember(&now, (int[]){SIGSEGV, SIGUSR1, SIGUSR2, SIGTERM}[i]);
	mend(sig);
}

/* A handler runs with the mask that was asked for, and as often. */
static void masks(void)
{
	struct sigaction a = {.sa_handler = look};
	sigset_t term, now;

	open_device();
	sigaddset(&a.sa_mask, SIGUSR1);
	sigemptyset(&term);
	sigaddset(&term, SIGTERM);
	CHECK(pthread_sigmask(SIG_BLOCK, &term, NULL) == 0);
	for (int flags = 0; flags < 2; flags++) {
		a.sa_flags = flags ? SA_NODEFER | SA_RESETHAND : 0;
		CHECK(sigaction(SIGSEGV, &a, NULL) == 0);
		forbid();
		*(volatile char *)nowhere = 1;
		CHECK(calls == flags + 1);
		CHECK(blocked_in_handler[0] == !flags && blocked_in_handler[1] && !blocked_in_handler[2] && blocked_in_handler[3]);
		CHECK(pthread_sigmask(SIG_BLOCK, NULL, &now) == 0);
		CHECK(!sigismember(&now, SIGSEGV) && !sigismember(&now, SIGUSR1) && sigismember(&now, SIGTERM));
	}
	CHECK(sigaction(SIGSEGV, NULL, &a) == 0 && a.sa_handler == SIG_DFL);
	take_away();
}

/* A signal that is ignored does nothing if it was sent. */
static void ignored(void)
{
	open_device();
	CHECK(signal(SIGSEGV, SIG_IGN) == SIG_DFL);
	CHECK(raise(SIGSEGV) == 0 && kill(getpid(), SIGSEGV) == 0);
	take_away();
}

/* These end the process. */

static void fault(void)
{
	open_device();
	forbid();
	stumble();
}

static void fault_again(void)
{
	open_device();
	handle(SIGSEGV, leap, SA_RESETHAND);
	forbid();
	stumble();
	stumble();
}

static void fault_ignored(void)
{
	open_device();
	CHECK(signal(SIGSEGV, SIG_IGN) == SIG_DFL);
	forbid();
	stumble();
}

static void sent(void)
{
	open_device();
	raise(SIGSEGV);
}

static void give_up(int sig)
{
	signal(sig, SIG_DFL);
	raise(sig);
}

static void given_up(void)
{
	open_device();
	CHECK(signal(SIGSEGV, give_up) == SIG_DFL);
	forbid();
	stumble();
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*test)(void);
	} tests[] = {
		{"handlers", handlers}, {"own", own}, {"masks", masks}, {"ignored", ignored}, {"fault", fault},
		{"fault_again", fault_again}, {"fault_ignored", fault_ignored}, {"sent", sent}, {"given_up", given_up},
	};

	for (size_t i = 0; argc == 2 && i < sizeof(tests) / sizeof(tests[0]); i++) {
		if (strcmp(tests[i].name, argv[1]) == 0) {
			tests[i].test();
			return 0;
		}
	}
	fprintf(stderr, "no such test\n");
	return 2;
}
