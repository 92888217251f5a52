// SPDX-License-Identifier: Apache-2.0

/* Closing opens contexts in several threads, which share a protection domain, a region and an XRC queue pair, makes an object of each kind in
 * each, and closes the contexts with all that, while a queue pair writes to the memory. The device has few objects of each kind, so that none may
 * be left. The exit status is 0 if all is well, and 1 after a message. */
#include "common.h"

#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

enum { SIZE = 4096, ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, THREADS = 4, ROUNDS = 100 };

static char memory[2 * SIZE];
static struct ibv_context *exporter;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static union ibv_gid gid;
static uint32_t shared; /* number of the XRC queue pair */
static int file;	/* of its domain */
static int running = THREADS;

static struct ibv_xrcd *domain(struct ibv_context *context)
{
	struct ibv_xrcd_init_attr attr = {IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, file, O_CREAT};
	struct ibv_xrcd *xrcd;

	CHECK((xrcd = extended(context)->open_xrcd(context, &attr)));
	return xrcd;
}

/* Makes objects of a context that is new. counted is an operation that no other thread counts. */
static void make(struct ibv_context *context, uint32_t counted)
{
	struct ibv_xrcd *xrcd = domain(context);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, channel, 0);
	struct ibv_pd *imported = ibv_import_pd(context, pd->handle);
	struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {4, 4, 1, 1, 0}};
	struct ibv_srq_init_attr receives = {.attr = {.max_wr = 4, .max_sge = 1}};
	struct ibv_srq_init_attr_ex targets = {
		.attr = {.max_wr = 4, .max_sge = 1}, .srq_type = IBV_SRQT_XRC, .pd = imported, .xrcd = xrcd, .cq = cq,
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
	};
	struct ibv_qp_open_attr open = {
		.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE, .qp_num = shared, .xrcd = xrcd,
		.qp_type = IBV_QPT_XRC_RECV,
	};
	struct ibv_ah_attr to = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .hop_limit = 64}};
	struct ibv_comp_cntr_init_attr unit = {0};
	struct ibv_qp_attach_comp_cntr_attr attach = {.op_mask = counted};
	struct ibv_parent_domain_init_attr parent = {.pd = imported};
	struct ibv_td_init_attr none = {0};
	struct ibv_alloc_dm_attr length = {.length = 64};
	struct ibv_comp_cntr *counter;
	struct ibv_qp *qp;
	struct ibv_dm *dm;

	CHECK(channel && cq && imported && ibv_create_qp(imported, &init) && ibv_create_srq(imported, &receives));
	CHECK(extended(context)->create_srq_ex(context, &targets));
	CHECK((qp = extended(context)->open_qp(context, &open)));
	CHECK((counter = ibv_create_comp_cntr(context, &unit)) && ibv_qp_attach_comp_cntr(qp, counter, &attach) == 0);
	CHECK(ibv_import_mr(imported, mr->handle) && ibv_reg_mr(imported, memory, SIZE, ACCESS) && ibv_alloc_pd(context));
	CHECK((parent.td = extended(context)->alloc_td(context, &none)) && extended(context)->alloc_parent_domain(context, &parent));
	CHECK((dm = extended(context)->alloc_dm(context, &length)));
	CHECK(extended(context)->reg_dm_mr(imported, dm, 0, 64, IBV_ACCESS_ZERO_BASED));
	CHECK(ibv_create_ah(imported, &to));
}

static void *close_often(void *thread)
{
	for (int i = 0; i < ROUNDS; i++) {
		struct ibv_context *context = ibv_import_device(dup(exporter->cmd_fd));

		CHECK(context);
		make(context, 1 << (uintptr_t)thread);
		CHECK(ibv_close_device(context) == 0);
	}
	__atomic_sub_fetch(&running, 1, __ATOMIC_SEQ_CST);
	return NULL;
}

/* Connects a queue pair with itself, and writes to the memory while threads run. */
static void write_meanwhile(void)
{
	struct ibv_cq *cq = ibv_create_cq(exporter, 4, NULL, NULL, 0);
	struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {4, 4, 1, 1, 0}};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	connect_qp(qp, qp->qp_num, ACCESS);
	while (__atomic_load_n(&running, __ATOMIC_SEQ_CST) > 0) {
		struct ibv_sge sge = {(uintptr_t)memory + SIZE, SIZE, mr->lkey};
		struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED}, *bad;
		struct ibv_wc wc;
		int n;

		wr.wr.rdma.remote_addr = (uintptr_t)memory;
		wr.wr.rdma.rkey = mr->rkey;
		CHECK(exporter->ops.post_send(qp, &wr, &bad) == 0);
		while (!(n = exporter->ops.poll_cq(cq, 1, &wc)))
			;
		CHECK(n == 1 && wc.status == IBV_WC_SUCCESS);
	}
}

int main(int argc, char **argv)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_qp_init_attr_ex target = {.qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD};
	struct ibv_qp *qp;
	pthread_t thread[THREADS];

	CHECK(argc == 2 && (file = open(argv[1], O_RDWR | O_CREAT, 0600)) >= 0);
	CHECK(list && list[0] && (exporter = ibv_open_device(list[0])) && ibv_query_gid(exporter, 1, 0, &gid) == 0);
	CHECK((pd = ibv_alloc_pd(exporter)) && (mr = ibv_reg_mr(pd, memory, sizeof(memory), ACCESS)));
	target.xrcd = domain(exporter);
	CHECK((qp = extended(exporter)->create_qp_ex(exporter, &target)));
	shared = qp->qp_num;
	for (uintptr_t i = 0; i < THREADS; i++)
		CHECK(pthread_create(&thread[i], NULL, close_often, (void *)i) == 0);
	write_meanwhile();
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_join(thread[i], NULL) == 0);
	CHECK(ibv_close_device(exporter) == 0);
	ibv_free_device_list(list);
	return 0;
}
