// Domains uses thread domains, parent domains, imports and completion counters, from C. The exit status is 0 if all is well, and 1 after a message.
#define _GNU_SOURCE

#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "common.h"

enum { SIZE = 4096, ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, THREADS = 4, ROUNDS = 1000, WRITES = 3 };

static char memory[2 * SIZE];

static void *add(void *counter)
{
	uint64_t value;

	for (int i = 0; i < ROUNDS; i++)
		CHECK(ibv_inc_err_comp_cntr(counter, 1) == 0 && ibv_read_err_comp_cntr(counter, &value) == 0);
	return NULL;
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context, *importer;
	struct ibv_td_init_attr no_attr = {0};
	struct ibv_comp_cntr_init_attr unit = {.type = IBV_COMP_CNTR_TYPE_BYTES};
	struct ibv_qp_attach_comp_cntr_attr writes = {.op_mask = IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE};
	struct ibv_parent_domain_init_attr attr = {0};
	struct ibv_comp_cntr_caps caps;
	struct ibv_comp_cntr *counter;
	struct ibv_pd *pd, *imported, *parent;
	struct ibv_mr *mr, *same;
	struct ibv_td *td;
	struct ibv_cq *cq;
	struct ibv_qp *qp[2];
	pthread_t thread[THREADS];
	uint64_t value = 0;

	CHECK(list && list[0] && (context = ibv_open_device(list[0])));
	CHECK((pd = ibv_alloc_pd(context)) && (mr = ibv_reg_mr(pd, memory, sizeof(memory), ACCESS)));
	CHECK((importer = ibv_import_device(dup(context->cmd_fd))));
	CHECK(!ibv_import_device(open("/dev/null", O_RDONLY)) && errno == ENODEV);
	CHECK((imported = ibv_import_pd(importer, pd->handle)) && (same = ibv_import_mr(imported, mr->handle)));
	CHECK(!same->addr && same->lkey == mr->lkey && same->rkey == mr->rkey);

	CHECK((td = extended(importer)->alloc_td(importer, &no_attr)));
	attr.pd = imported;
	attr.td = td;
	CHECK((parent = extended(importer)->alloc_parent_domain(importer, &attr)));
	attr.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS;
	CHECK(!extended(importer)->alloc_parent_domain(importer, &attr) && errno == EINVAL); /* no functions */

	CHECK(_ibv_query_comp_cntr_caps(importer, &caps, sizeof(caps)) == 0 && caps.max_counters > 0 && caps.supported_qp_attach_ops & writes.op_mask);
	CHECK((counter = ibv_create_comp_cntr(importer, &unit)));
	CHECK((cq = ibv_create_cq(importer, 16, NULL, NULL, 0)));
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {4, 4, 1, 1, 0}};

		CHECK((qp[i] = ibv_create_qp(parent, &init)));
	}
	CHECK(ibv_qp_attach_comp_cntr(qp[1], counter, &writes) == 0);
	CHECK(ibv_qp_attach_comp_cntr(qp[1], counter, &writes) == EBUSY);
	for (int i = 0; i < 2; i++)
		connect_qp(qp[i], qp[!i]->qp_num, ACCESS);
	CHECK(ibv_qp_attach_comp_cntr(qp[1], counter, &writes) == EINVAL);

	memset(memory + SIZE, 7, SIZE);
	for (int i = 0; i < WRITES; i++) {
		struct ibv_sge sge = {(uintptr_t)memory + SIZE, SIZE, same->lkey};
		struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE}, *bad;

		wr.wr.rdma.remote_addr = (uintptr_t)memory;
		wr.wr.rdma.rkey = mr->rkey;
		CHECK(importer->ops.post_send(qp[0], &wr, &bad) == 0);
	}
	while (value < WRITES * SIZE) /* nothing polls a queue */
		CHECK(ibv_read_comp_cntr(counter, &value) == 0);
	CHECK(value == WRITES * SIZE && memory[0] == 7 && memory[SIZE - 1] == 7);
	CHECK(ibv_set_comp_cntr(counter, -1) == 0 && ibv_inc_comp_cntr(counter, 2) == 0);
	CHECK(ibv_read_comp_cntr(counter, &value) == 0 && value == 1);
	CHECK(ibv_set_err_comp_cntr(counter, 5) == 0);
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_create(&thread[i], NULL, add, counter) == 0);
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_join(thread[i], NULL) == 0);
	CHECK(ibv_read_err_comp_cntr(counter, &value) == 0 && value == 5 + THREADS * ROUNDS);

	CHECK(ibv_destroy_comp_cntr(counter) == EBUSY && ibv_dealloc_pd(parent) == EBUSY && extended(importer)->dealloc_td(td) == EBUSY);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_dereg_mr(same) == EINVAL);
	ibv_unimport_mr(same);
	CHECK(ibv_dealloc_pd(pd) == EBUSY && ibv_destroy_qp(qp[0]) == 0 && ibv_destroy_qp(qp[1]) == 0);
	CHECK(ibv_destroy_comp_cntr(counter) == 0 && ibv_dealloc_pd(parent) == 0 && extended(importer)->dealloc_td(td) == 0);
	ibv_unimport_pd(imported);
	CHECK(ibv_dealloc_pd(pd) == 0 && ibv_destroy_cq(cq) == 0);
	CHECK(ibv_close_device(context) == 0 && ibv_close_device(importer) == 0);
	ibv_free_device_list(list);
	return 0;
}
