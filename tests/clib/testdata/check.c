// SPDX-License-Identifier: Apache-2.0

/* Check makes mistakes, from C, with memory of requests, or none. Its arguments are the program and
 * the kind of memory. The exit status is 0 unless something fails. */

#include "common.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SIZE = 4096, ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };

static struct ibv_context *context;
static struct ibv_qp *qp[2];
static struct ibv_cq *cq[2];
static struct ibv_mr *from, *to, *peer; /* peers have access to the last one alone */
static char *sent, *received;

static char *new_memory(const char *kind)
{
	char *m;

	if (!strcmp(kind, "static")) {
		static char memory[2][SIZE];
		static int used;

		return memory[used++];
	}
	if (!strcmp(kind, "malloc"))
		return calloc(1, SIZE);
	m = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(m != MAP_FAILED);
	return m;
}

static void set_up(const char *kind)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	static char memory[SIZE];
	struct ibv_pd *pd;

	CHECK(list && list[0] && (context = ibv_open_device(list[0])) && (pd = ibv_alloc_pd(context)));
	sent = new_memory(kind);
	received = new_memory(kind);
	CHECK((from = ibv_reg_mr(pd, sent, SIZE, 0)) && (to = ibv_reg_mr(pd, received, SIZE, IBV_ACCESS_LOCAL_WRITE)) &&
	      (peer = ibv_reg_mr(pd, memory, SIZE, ACCESS)));
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .cap = {8, 8, 1, 1, 0}};

		CHECK(cq[i] = ibv_create_cq(context, 16, NULL, NULL, 0));
		init.send_cq = init.recv_cq = cq[i];
		CHECK(qp[i] = ibv_create_qp(pd, &init));
	}
	for (int i = 0; i < 2; i++)
		connect_qp(qp[i], qp[!i]->qp_num, ACCESS);
}

static __attribute__((noinline)) void post(enum ibv_wr_opcode opcode, struct ibv_mr *mr, int at, int length, int flags)
{
	struct ibv_sge sge = {(uintptr_t)mr->addr + at, length, mr->lkey};
	struct ibv_send_wr wr = {.wr_id = 7, .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = flags}, *bad;

	wr.wr.rdma.remote_addr = (uintptr_t)peer->addr;
	wr.wr.rdma.rkey = peer->rkey;
	CHECK(context->ops.post_send(qp[0], &wr, &bad) == 0);
}

static __attribute__((noinline)) void post_receive(int at, int length)
{
	struct ibv_sge sge = {(uintptr_t)received + at, length, to->lkey};
	struct ibv_recv_wr wr = {.wr_id = 8, .sg_list = &sge, .num_sge = 1}, *bad;

	CHECK(context->ops.post_recv(qp[1], &wr, &bad) == 0);
}

static void complete(int i)
{
	struct ibv_wc wc;
	int n;

	while ((n = context->ops.poll_cq(cq[i], 1, &wc)) == 0)
		;
	CHECK(n == 1 && wc.status == IBV_WC_SUCCESS);
}

static void changed_send(void)
{
	post_receive(0, 64);
	post(IBV_WR_SEND, from, 0, 64, IBV_SEND_SIGNALED);
	sent[5]++;
	complete(0);
	complete(1);
}

static void changed_unsignaled(void)
{
	post_receive(0, 64);
	post_receive(64, 64);
	post(IBV_WR_SEND, from, 0, 64, 0);
	complete(1);
	sent[63]++;
	post(IBV_WR_SEND, from, 64, 64, IBV_SEND_SIGNALED);
	complete(0);
}

static void changed_write(void)
{
	post(IBV_WR_RDMA_WRITE, from, 100, 1000, IBV_SEND_SIGNALED);
	sent[1099]++;
	complete(0);
}

static void changed_receive(void)
{
	post_receive(0, 64);
	received[10] = 1;
	post(IBV_WR_SEND, from, 0, 64, IBV_SEND_SIGNALED);
	complete(1);
	complete(0);
}

static void changed_read(void)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_SQD};

	CHECK(!ibv_modify_qp(qp[0], &a, IBV_QP_STATE));
	post(IBV_WR_RDMA_READ, to, 0, 64, IBV_SEND_SIGNALED);
	received[10] = 1;
	a.qp_state = IBV_QPS_RTS;
	CHECK(!ibv_modify_qp(qp[0], &a, IBV_QP_STATE));
	complete(0);
}

static void early_read(void)
{
	post_receive(0, 64);
	fwrite(received, 1, 64, stdout);
	post(IBV_WR_SEND, from, 0, 64, IBV_SEND_SIGNALED);
	complete(1);
	complete(0);
}

static void none(void)
{
	memset(received, 'r', SIZE);
	for (int round = 0; round < 100; round++) {
		memset(sent, round, SIZE);
		for (int i = 0; i < 4; i++)
			post_receive(i * 128 + 3, 128);
		for (int i = 0; i < 4; i++)
			post(IBV_WR_SEND, from, i, 64, i == 3 ? IBV_SEND_SIGNALED : 0);
		complete(0);
		for (int i = 0; i < 4; i++) {
			complete(1);
			for (int at = 0; at < 128; at++)
				CHECK(received[i * 128 + 3 + at] == (at < 64 ? (char)round : 'r'));
			memset(received + i * 128 + 3, 'r', 64);
		}
		post(IBV_WR_RDMA_WRITE, from, 0, SIZE, 0);
		post(IBV_WR_RDMA_READ, to, 0, SIZE, IBV_SEND_SIGNALED);
		complete(0);
		for (int at = 0; at < SIZE; at++)
			CHECK(received[at] == (char)round);
		memset(received, 'r', SIZE);
	}
}

/* The memory was taken away when the check looks at it. */
static void unmapped(void)
{
	char *m = mmap((void *)((uintptr_t)1 << 32), SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_wc wc;

	CHECK(m != MAP_FAILED && (to = ibv_reg_mr(from->pd, m, SIZE, IBV_ACCESS_LOCAL_WRITE)));
	received = m;
	post_receive(0, 64);
	post(IBV_WR_RDMA_READ, to, 64, 64, IBV_SEND_SIGNALED);
	CHECK(munmap(m, SIZE) == 0);
	post_receive(0, 64);
	post(IBV_WR_SEND, to, 0, 64, IBV_SEND_SIGNALED);
	while (context->ops.poll_cq(cq[0], 1, &wc) == 0)
		;
	for (int i = 0; i < 2; i++)
		CHECK(ibv_destroy_qp(qp[i]) == 0);
	CHECK(ibv_dereg_mr(to) == 0);
}

static int has(const char *m, int length, char value)
{
	for (int i = 0; i < length; i++)
		if (m[i] != value)
			return 0;
	return 1;
}

/* Registers new memory, in which receives are posted. */
static char *map_received(size_t size)
{
	char *m = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(m != MAP_FAILED && (to = ibv_reg_mr(from->pd, m, size, IBV_ACCESS_LOCAL_WRITE)));
	memset(m, 'r', size);
	return received = m;
}

/* The memory was made read-only when the check ends, as another request uses it. */
static void read_only(void)
{
	char *m = map_received(SIZE);

	post_receive(0, 64);
	CHECK(mprotect(m, SIZE, PROT_READ) == 0);
	post_receive(8, 64);
	CHECK(mprotect(m, SIZE, PROT_READ | PROT_WRITE) == 0);
	CHECK(ibv_destroy_qp(qp[1]) == 0);
	CHECK(has(m + 64, SIZE - 64, 'r'));
}

/* A part of the memory is read-only when a receive is posted. */
static void partly_read_only(void)
{
	size_t page = sysconf(_SC_PAGESIZE);
	char *m = map_received(3 * page);

	CHECK(mprotect(m + page, page, PROT_READ) == 0);
	post_receive(8, 3 * page - 8);
	CHECK(has(m, 3 * page, 'r'));
}

/* Peers get access to the memory between the arrival of a message and its completion. */
static void opened(void)
{
	char *m = map_received(SIZE);

	memset(sent, 's', SIZE);
	for (int n = 1; n < 24; n++) {
		struct ibv_mr *open;

		post_receive(16, 64);
		post(IBV_WR_SEND, from, 0, n, IBV_SEND_SIGNALED);
		complete(0);
		CHECK(open = ibv_reg_mr(from->pd, m, SIZE, ACCESS));
		complete(1);
		CHECK(has(m, 16, 'r') && has(m + 16, n, 's') && has(m + 16 + n, SIZE - 16 - n, 'r'));
		CHECK(ibv_dereg_mr(open) == 0);
		memset(m, 'r', SIZE);
	}
}

/* Makes a system call fail with EPERM. */
static void forbid(int call)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = {sizeof(code) / sizeof(code[0]), code};

	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter) == 0);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} programs[] = {
		{"changed_send", changed_send}, {"changed_unsignaled", changed_unsignaled}, {"changed_write", changed_write},
		{"changed_receive", changed_receive}, {"changed_read", changed_read}, {"early_read", early_read}, {"none", none},
		{"unmapped", unmapped}, {"read_only", read_only}, {"partly_read_only", partly_read_only}, {"opened", opened},
		{"no_reads", early_read}, {"no_writes", early_read},
	};

	if (!strcmp(argv[1], "no_reads"))
		forbid(SYS_process_vm_readv);
	if (!strcmp(argv[1], "no_writes"))
		forbid(SYS_process_vm_writev);
	set_up(argv[2]);
	for (size_t i = 0; i < sizeof(programs) / sizeof(programs[0]); i++)
		if (!strcmp(programs[i].name, argv[1])) {
			programs[i].run();
			return 0;
		}
	return 2;
}
