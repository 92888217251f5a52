/* Functions that are inline in the headers and more than a call. */

#define UDP_QKEY 0x01234567

static struct sockaddr *own_rdma_get_local_addr(struct rdma_cm_id *id)
{
	return &id->route.addr.src_addr;
}

static struct sockaddr *own_rdma_get_peer_addr(struct rdma_cm_id *id)
{
	return &id->route.addr.dst_addr;
}

/* A verb's code as -1 with errno, which is negative where the code is. */
static int with_errno(int code)
{
	if (!code)
		return 0;
	errno = code;
	return -1;
}

static struct ibv_mr *reg_mr(struct rdma_cm_id *id, void *addr, size_t length, int access)
{
	if (!LIB(ibv_reg_mr))
		return null(MISSING);
	if (!id->pd)
		return null(EINVAL);
	return LIB(ibv_reg_mr)(id->pd, addr, length, access);
}

static struct ibv_mr *own_rdma_reg_msgs(struct rdma_cm_id *id, void *addr, size_t length)
{
	return reg_mr(id, addr, length, IBV_ACCESS_LOCAL_WRITE);
}

static struct ibv_mr *own_rdma_reg_read(struct rdma_cm_id *id, void *addr, size_t length)
{
	return reg_mr(id, addr, length, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
}

static struct ibv_mr *own_rdma_reg_write(struct rdma_cm_id *id, void *addr, size_t length)
{
	return reg_mr(id, addr, length, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
}

static int own_rdma_dereg_mr(struct ibv_mr *mr)
{
	return with_errno(LIB(ibv_dereg_mr) ? LIB(ibv_dereg_mr)(mr) : MISSING);
}

static int post_send(struct rdma_cm_id *id, struct ibv_send_wr *wr)
{
	struct ibv_qp *qp = id->qp;
	struct ibv_send_wr *bad;

	if (!qp)
		return with_errno(EINVAL);
	if (!qp->context->ops.post_send)
		return with_errno(EOPNOTSUPP);
	return with_errno(qp->context->ops.post_send(qp, wr, &bad));
}

static int own_rdma_post_recvv(struct rdma_cm_id *id, void *context, struct ibv_sge *sgl, int nsge)
{
	struct ibv_recv_wr wr = {.wr_id = (uintptr_t)context, .sg_list = sgl, .num_sge = nsge}, *bad;
	struct ibv_context_ops *ops;

	if (id->srq) {
		ops = &id->srq->context->ops;
		return with_errno(ops->post_srq_recv ? ops->post_srq_recv(id->srq, &wr, &bad) : EOPNOTSUPP);
	}
	if (!id->qp)
		return with_errno(EINVAL);
	ops = &id->qp->context->ops;
	return with_errno(ops->post_recv ? ops->post_recv(id->qp, &wr, &bad) : EOPNOTSUPP);
}

static int own_rdma_post_sendv(struct rdma_cm_id *id, void *context, struct ibv_sge *sgl, int nsge, int flags)
{
	struct ibv_send_wr wr = {
		.wr_id = (uintptr_t)context, .sg_list = sgl, .num_sge = nsge,
		.opcode = IBV_WR_SEND, .send_flags = (unsigned int)flags,
	};

	return post_send(id, &wr);
}

static int post_rdma(struct rdma_cm_id *id, enum ibv_wr_opcode opcode, void *context, struct ibv_sge *sgl, int nsge,
		     int flags, uint64_t remote_addr, uint32_t rkey)
{
	struct ibv_send_wr wr = {
		.wr_id = (uintptr_t)context, .sg_list = sgl, .num_sge = nsge,
		.opcode = opcode, .send_flags = (unsigned int)flags,
		.wr.rdma = {.remote_addr = remote_addr, .rkey = rkey},
	};

	return post_send(id, &wr);
}

static int own_rdma_post_readv(struct rdma_cm_id *id, void *context, struct ibv_sge *sgl, int nsge, int flags,
			       uint64_t remote_addr, uint32_t rkey)
{
	return post_rdma(id, IBV_WR_RDMA_READ, context, sgl, nsge, flags, remote_addr, rkey);
}

static int own_rdma_post_writev(struct rdma_cm_id *id, void *context, struct ibv_sge *sgl, int nsge, int flags,
				uint64_t remote_addr, uint32_t rkey)
{
	return post_rdma(id, IBV_WR_RDMA_WRITE, context, sgl, nsge, flags, remote_addr, rkey);
}

static struct ibv_sge one_sge(void *addr, size_t length, struct ibv_mr *mr)
{
	return (struct ibv_sge){.addr = (uintptr_t)addr, .length = (uint32_t)length, .lkey = mr ? mr->lkey : 0};
}

static int own_rdma_post_recv(struct rdma_cm_id *id, void *context, void *addr, size_t length, struct ibv_mr *mr)
{
	struct ibv_sge sge = one_sge(addr, length, mr);
	uintptr_t start = (uintptr_t)addr - (uintptr_t)mr->addr; /* huge if addr is below the region */

	if (start > mr->length || length > mr->length - start)
		return with_errno(EINVAL);
	return own_rdma_post_recvv(id, context, &sge, 1);
}

static int own_rdma_post_send(struct rdma_cm_id *id, void *context, void *addr, size_t length, struct ibv_mr *mr,
			      int flags)
{
	struct ibv_sge sge = one_sge(addr, length, mr);

	return own_rdma_post_sendv(id, context, &sge, 1, flags);
}

static int own_rdma_post_read(struct rdma_cm_id *id, void *context, void *addr, size_t length, struct ibv_mr *mr,
			      int flags, uint64_t remote_addr, uint32_t rkey)
{
	struct ibv_sge sge = one_sge(addr, length, mr);

	return own_rdma_post_readv(id, context, &sge, 1, flags, remote_addr, rkey);
}

static int own_rdma_post_write(struct rdma_cm_id *id, void *context, void *addr, size_t length, struct ibv_mr *mr,
			       int flags, uint64_t remote_addr, uint32_t rkey)
{
	struct ibv_sge sge = one_sge(addr, length, mr);

	return own_rdma_post_writev(id, context, &sge, 1, flags, remote_addr, rkey);
}

static int own_rdma_post_ud_send(struct rdma_cm_id *id, void *context, void *addr, size_t length, struct ibv_mr *mr,
				 int flags, struct ibv_ah *ah, uint32_t remote_qpn)
{
	struct ibv_sge sge = one_sge(addr, length, mr);
	struct ibv_send_wr wr = {
		.wr_id = (uintptr_t)context, .sg_list = &sge, .num_sge = 1,
		.opcode = IBV_WR_SEND, .send_flags = (unsigned int)flags,
		.wr.ud = {.ah = ah, .remote_qpn = remote_qpn, .remote_qkey = UDP_QKEY},
	};

	return post_send(id, &wr);
}

/* Takes one completion from the CQ; 0 if there is none and -1 with errno if
 * polling fails. */
static int poll_one(struct ibv_cq *cq, struct ibv_wc *wc)
{
	int n;

	if (!cq->context->ops.poll_cq)
		return with_errno(EOPNOTSUPP);
	n = cq->context->ops.poll_cq(cq, 1, wc);
	return n < 0 ? with_errno(n) : n;
}

/* Waits until the CQ may have a completion. An event of another CQ or id is
 * acknowledged, or that CQ could never be destroyed, and refused. */
static int wait_for_event(struct rdma_cm_id *id, struct ibv_comp_channel *channel, struct ibv_cq *cq)
{
	struct ibv_cq *from;
	void *context;
	int ret;

	if (!LIB(ibv_get_cq_event) || !LIB(ibv_ack_cq_events))
		return with_errno(MISSING);
	if (!channel)
		return with_errno(EINVAL);
	ret = LIB(ibv_get_cq_event)(channel, &from, &context);
	if (ret)
		return ret;
	LIB(ibv_ack_cq_events)(from, 1);
	return with_errno(from == cq && context == id ? 0 : EINVAL);
}

static int get_comp(struct rdma_cm_id *id, struct ibv_comp_channel *channel, struct ibv_cq *cq, struct ibv_wc *wc)
{
	int ret;

	if (!cq)
		return with_errno(EINVAL);
	do {
		ret = poll_one(cq, wc);
		if (ret)
			return ret;
		if (!cq->context->ops.req_notify_cq)
			return with_errno(EOPNOTSUPP);
		ret = with_errno(cq->context->ops.req_notify_cq(cq, 0));
		if (ret)
			return ret;
		ret = poll_one(cq, wc); /* it may have come before the CQ was armed */
		if (ret)
			return ret;
		ret = wait_for_event(id, channel, cq);
	} while (!ret);
	return ret;
}

static int own_rdma_get_send_comp(struct rdma_cm_id *id, struct ibv_wc *wc)
{
	return get_comp(id, id->send_cq_channel, id->send_cq, wc);
}

static int own_rdma_get_recv_comp(struct rdma_cm_id *id, struct ibv_wc *wc)
{
	return get_comp(id, id->recv_cq_channel, id->recv_cq, wc);
}
