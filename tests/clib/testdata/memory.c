// Memory uses device memory, null regions and on-demand paging, from C. The exit status is 0 if all is well, and 1 after a message.
#define _GNU_SOURCE

#include <string.h>
#include <sys/mman.h>

#include "common.h"

enum { SIZE = 4096, ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };

static struct ibv_cq *cq;
static struct ibv_qp *qp[2];

/* Executes an operation on the local memory at addr, and returns the status. */
static enum ibv_wc_status run(enum ibv_wr_opcode opcode, uint64_t addr, uint32_t lkey, uint64_t remote, uint32_t rkey)
{
	struct ibv_sge sge = {addr, SIZE, lkey};
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED}, *bad;
	struct ibv_wc wc;
	int n;

	wr.wr.rdma.remote_addr = remote;
	wr.wr.rdma.rkey = rkey;
	CHECK(cq->context->ops.post_send(qp[0], &wr, &bad) == 0);
	while ((n = cq->context->ops.poll_cq(cq, 1, &wc)) == 0)
		;
	CHECK(n == 1);
	return wc.status;
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_alloc_dm_attr size = {.length = SIZE};
	struct verbs_context *more;
	struct ibv_context *context;
	struct ibv_mr *of_dm, *null, *all;
	struct ibv_dm *dm;
	struct ibv_pd *pd;
	char *memory = mmap(NULL, 2 * SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t from = (uintptr_t)memory, to = from + SIZE;
	struct ibv_sge advised = {from, SIZE, 0};

	CHECK(list && list[0] && (context = ibv_open_device(list[0])) && (pd = ibv_alloc_pd(context)));
	more = extended(context);
	CHECK((dm = more->alloc_dm(context, &size)));
	CHECK((of_dm = more->reg_dm_mr(pd, dm, 0, SIZE, ACCESS | IBV_ACCESS_ZERO_BASED)));
	CHECK(!more->reg_dm_mr(pd, dm, 4, SIZE, ACCESS | IBV_ACCESS_ZERO_BASED) && errno == EINVAL);
	CHECK(more->free_dm(dm) == EBUSY);
	CHECK((null = more->alloc_null_mr(pd)) && !null->rkey);
	CHECK((all = ibv_reg_mr(pd, NULL, SIZE_MAX, ACCESS | IBV_ACCESS_ON_DEMAND)));
	advised.lkey = all->lkey;
	CHECK(more->advise_mr(pd, IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE, IB_UVERBS_ADVISE_MR_FLAG_FLUSH, &advised, 1) == 0);

	CHECK((cq = ibv_create_cq(context, 16, NULL, NULL, 0)));
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {4, 4, 1, 1, 0}};

		CHECK((qp[i] = ibv_create_qp(pd, &init)));
	}
	for (int i = 0; i < 2; i++)
		connect_qp(qp[i], qp[!i]->qp_num, ACCESS);

	memset(memory, 7, SIZE);
	CHECK(dm->memcpy_to_dm(dm, 0, memory, SIZE) == 0 && dm->memcpy_to_dm(dm, 4, memory, SIZE) == EFAULT);
	CHECK(run(IBV_WR_RDMA_READ, to, all->lkey, 0, of_dm->rkey) == IBV_WC_SUCCESS && !memcmp(memory, memory + SIZE, SIZE));
	CHECK(run(IBV_WR_RDMA_WRITE, 12345, null->lkey, 0, of_dm->rkey) == IBV_WC_SUCCESS);
	CHECK(dm->memcpy_from_dm(memory, dm, 0, SIZE) == 0 && !memory[0] && !memory[SIZE - 1] && memory[SIZE] == 7);
	CHECK(run(IBV_WR_RDMA_READ, 0, null->lkey, to, all->rkey) == IBV_WC_SUCCESS);

	CHECK(munmap(memory + SIZE, SIZE) == 0);
	advised.addr = to;
	CHECK(more->advise_mr(pd, IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH, IB_UVERBS_ADVISE_MR_FLAG_FLUSH, &advised, 1) == EFAULT);
	CHECK(run(IBV_WR_RDMA_READ, from, all->lkey, to, all->rkey) == IBV_WC_REM_ACCESS_ERR);

	CHECK(ibv_destroy_qp(qp[0]) == 0 && ibv_destroy_qp(qp[1]) == 0 && ibv_destroy_cq(cq) == 0);
	CHECK(ibv_dereg_mr(of_dm) == 0 && ibv_dereg_mr(null) == 0 && ibv_dereg_mr(all) == 0 && more->free_dm(dm) == 0);
	CHECK(ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	ibv_free_device_list(list);
	return 0;
}
