// SPDX-License-Identifier: Apache-2.0

/* Allocators makes queues on parent domains with allocators, whose memory it counts, and moves data through these queues. Its threads make and
 * destroy queues at the same time. The exit status is 0 if all is well, and 1 after a message. */
#include "common.h"

#include <pthread.h>
#include <string.h>

enum { SIZE = 4096, ACCESS = IBV_ACCESS_LOCAL_WRITE, THREADS = 4, ROUNDS = 50, SENDS = 20 };
enum { QP, CQ, SRQ, RESOURCES };
enum how { GIVE, DEFAULT, NONE, CROOKED, NONE_THE_SECOND_TIME };

#define USE_DEFAULT ((void *)-1)

static struct ibv_context *context;
static char memory[2 * SIZE];

/* What the program knows about a parent domain. */
struct pool {
	struct ibv_pd *pd; /* the protection domain */
	enum how how;
	int given[RESOURCES]; /* pieces of memory that the device has, of each resource */
	int calls;
};

static void *take(struct ibv_pd *pd, void *arg, size_t size, size_t alignment, uint64_t resource)
{
	struct pool *pool = arg;
	struct ibv_mr *mr;
	char *p;

	pool->calls++;
	CHECK(size > 0 && resource < RESOURCES && pd->context == context && pd != pool->pd);
	if (pool->how == DEFAULT)
		return USE_DEFAULT;
	if (pool->how == NONE || (pool->how == NONE_THE_SECOND_TIME && pool->calls == 2))
		return NULL;
	CHECK(posix_memalign((void **)&p, alignment, size + alignment) == 0);
	memset(p, 0xa5, size);
	CHECK((mr = ibv_reg_mr(pool->pd, p, size, 0)) && ibv_dereg_mr(mr) == 0); /* an allocator may call the device */
	pool->given[resource]++;
	return pool->how == CROOKED ? p + 8 : p;
}

static void give_back(struct ibv_pd *pd, void *arg, void *p, uint64_t resource)
{
	struct pool *pool = arg;
	struct ibv_mr *mr;

	CHECK(p && p != USE_DEFAULT && pd->context == context && --pool->given[resource] >= 0);
	CHECK((mr = ibv_reg_mr(pool->pd, memory, SIZE, 0)) && ibv_dereg_mr(mr) == 0);
	free(pool->how == CROOKED ? (char *)p - 8 : p);
}

static struct ibv_pd *domain(struct pool *pool)
{
	struct ibv_parent_domain_init_attr attr = {
		.pd = pool->pd, .alloc = take, .free = give_back, .pd_context = pool,
		.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT,
	};
	struct ibv_pd *parent;

	CHECK((parent = extended(context)->alloc_parent_domain(context, &attr)));
	return parent;
}

static int has(const struct pool *pool, int qps, int cqs, int srqs)
{
	return pool->given[QP] == qps && pool->given[CQ] == cqs && pool->given[SRQ] == srqs;
}

static struct ibv_cq *new_cq(struct ibv_pd *parent)
{
	struct ibv_cq_init_attr_ex attr = {.cqe = 16, .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD, .parent_domain = parent};

	return (struct ibv_cq *)extended(context)->create_cq_ex(context, &attr);
}

static struct ibv_srq *new_srq(struct ibv_pd *parent)
{
	struct ibv_srq_init_attr attr = {.attr = {.max_wr = 16, .max_sge = 1}};

	return ibv_create_srq(parent, &attr);
}

static struct ibv_qp *new_qp(struct ibv_pd *parent, struct ibv_cq *cq, struct ibv_srq *srq)
{
	struct ibv_qp_init_attr attr = {.send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC, .cap = {4, srq ? 0 : 4, 1, !srq, 0}};

	return ibv_create_qp(parent, &attr);
}

/* Sends n messages from the queue pair to itself. */
static void transfer(struct ibv_qp *qp, struct ibv_mr *mr, int n)
{
	while (n--) {
		struct ibv_sge from = {(uintptr_t)memory, SIZE, mr->lkey}, to = {(uintptr_t)memory + SIZE, SIZE, mr->lkey};
		struct ibv_recv_wr receive = {.sg_list = &to, .num_sge = 1}, *bad_receive;
		struct ibv_send_wr send = {.sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;
		struct ibv_wc wc;

		memset(memory, n + 1, SIZE);
		if (qp->srq)
			CHECK(context->ops.post_srq_recv(qp->srq, &receive, &bad_receive) == 0);
		else
			CHECK(context->ops.post_recv(qp, &receive, &bad_receive) == 0);
		CHECK(context->ops.post_send(qp, &send, &bad) == 0);
		for (int done = 0; done < 2;) {
			int got = context->ops.poll_cq(qp->send_cq, 1, &wc);

			CHECK(got >= 0 && (!got || wc.status == IBV_WC_SUCCESS));
			done += got;
		}
		CHECK(memcmp(memory, memory + SIZE, SIZE) == 0);
	}
}

/* The queues of parent are in the program's memory, and work. */
static void use(enum how how)
{
	struct pool pool = {.pd = ibv_alloc_pd(context), .how = how};
	struct ibv_pd *parent = domain(&pool);
	struct ibv_mr *mr = ibv_reg_mr(pool.pd, memory, sizeof(memory), ACCESS);
	struct ibv_srq_attr more = {.max_wr = 100};
	int n = how == GIVE;
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	struct ibv_qp *qp, *shared;

	CHECK(mr && (cq = new_cq(parent)) && has(&pool, 0, n, 0));
	CHECK((srq = new_srq(parent)) && has(&pool, 0, n, n));
	CHECK((qp = new_qp(parent, cq, NULL)) && has(&pool, 2 * n, n, n));
	CHECK((shared = new_qp(parent, cq, srq)) && has(&pool, 3 * n, n, n)); /* it has no receive queue */
	CHECK(pool.calls == 5);
	connect_qp(qp, qp->qp_num, 0);
	connect_qp(shared, shared->qp_num, 0);
	transfer(qp, mr, SENDS);
	transfer(shared, mr, SENDS);
	CHECK(ibv_resize_cq(cq, 200) == 0 && ibv_modify_srq(srq, &more, IBV_SRQ_MAX_WR) == 0);
	CHECK(has(&pool, 3 * n, n, n) && pool.calls == 7);
	transfer(qp, mr, SENDS);
	transfer(shared, mr, SENDS);
	more.max_wr = 1 << 30;
	CHECK(ibv_resize_cq(cq, 1 << 30) == EINVAL && ibv_modify_srq(srq, &more, IBV_SRQ_MAX_WR) == EINVAL && has(&pool, 3 * n, n, n));

	CHECK(ibv_dealloc_pd(parent) == EBUSY);
	CHECK(ibv_destroy_qp(qp) == 0 && has(&pool, n, n, n));
	CHECK(ibv_destroy_qp(shared) == 0 && has(&pool, 0, n, n));
	CHECK(ibv_destroy_srq(srq) == 0 && has(&pool, 0, n, 0));
	CHECK(ibv_destroy_cq(cq) == 0 && has(&pool, 0, 0, 0));
	CHECK(ibv_dealloc_pd(parent) == 0 && ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pool.pd) == 0);
}

/* Without the memory, or with memory that the device cannot use, no object is made, and no memory stays with the device. */
static void fail(enum how how, int error)
{
	struct pool pool = {.pd = ibv_alloc_pd(context), .how = how};
	struct ibv_pd *parent = domain(&pool);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);

	if (how == NONE_THE_SECOND_TIME) {
		CHECK(!new_qp(parent, cq, NULL) && errno == error && pool.calls == 2);
	} else {
		CHECK(!new_qp(parent, cq, NULL) && errno == error);
		CHECK(!new_srq(parent) && errno == error);
		CHECK(!new_cq(parent) && errno == error);
	}
	CHECK(has(&pool, 0, 0, 0));
	CHECK(ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(parent) == 0 && ibv_dealloc_pd(pool.pd) == 0);
}

/* What was asked for is given back if the object is then refused. */
static void refuse(void)
{
	struct pool pool = {.pd = ibv_alloc_pd(context)};
	struct ibv_pd *parent = domain(&pool);
	struct ibv_context *other = ibv_open_device(context->device);
	struct ibv_cq *foreign = ibv_create_cq(other, 16, NULL, NULL, 0);

	CHECK(!new_qp(parent, foreign, NULL) && errno == EINVAL && has(&pool, 0, 0, 0));
	CHECK(ibv_close_device(other) == 0 && ibv_dealloc_pd(parent) == 0 && ibv_dealloc_pd(pool.pd) == 0);
}

static void *make_often(void *arg)
{
	(void)arg;
	for (int i = 0; i < ROUNDS; i++) {
		struct pool pool = {.pd = ibv_alloc_pd(context)};
		struct ibv_pd *parent = domain(&pool);
		struct ibv_cq *cq;
		struct ibv_srq *srq;
		struct ibv_qp *qp;

		CHECK((cq = new_cq(parent)) && (srq = new_srq(parent)) && (qp = new_qp(parent, cq, srq)));
		CHECK(ibv_resize_cq(cq, 100) == 0);
		CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_srq(srq) == 0 && ibv_destroy_cq(cq) == 0 && has(&pool, 0, 0, 0));
		CHECK(ibv_dealloc_pd(parent) == 0 && ibv_dealloc_pd(pool.pd) == 0);
	}
	return NULL;
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_parent_domain_init_attr attr = {.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS};
	struct pool left = {0};
	pthread_t thread[THREADS];
	struct ibv_pd *parent;
	struct ibv_cq *cq;

	CHECK(list && list[0] && (context = ibv_open_device(list[0])));
	CHECK((attr.pd = ibv_alloc_pd(context)));
	CHECK(!extended(context)->alloc_parent_domain(context, &attr) && errno == EINVAL);
	attr.alloc = take;
	CHECK(!extended(context)->alloc_parent_domain(context, &attr) && errno == EINVAL);
	attr.alloc = NULL;
	attr.free = give_back;
	CHECK(!extended(context)->alloc_parent_domain(context, &attr) && errno == EINVAL);

	use(GIVE);
	use(DEFAULT);
	fail(NONE, ENOMEM);
	fail(NONE_THE_SECOND_TIME, ENOMEM);
	fail(CROOKED, EINVAL);
	refuse();
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_create(&thread[i], NULL, make_often, NULL) == 0);
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_join(thread[i], NULL) == 0);

	/* The close of the device ends the queues, and leaves their memory to the program. */
	left.pd = attr.pd;
	parent = domain(&left);
	CHECK((cq = new_cq(parent)) && new_srq(parent) && new_qp(parent, cq, NULL));
	CHECK(ibv_close_device(context) == 0 && has(&left, 2, 1, 1));
	ibv_free_device_list(list);
	return 0;
}
