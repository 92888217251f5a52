/* Part of provider.c: queues, and objects that steer packets to them. */

static struct ibv_comp_channel *do_ibv_create_comp_channel(struct ibv_context *context)
{
	struct ibv_comp_channel *channel = NEW(ibv_comp_channel);

	channel->context = context;
	channel->fd = eventfd(0, EFD_CLOEXEC);
	return channel;
}

static int do_ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
	if (channel->refcnt)
		return EBUSY;
	close(channel->fd);
	return free_object(channel);
}

/* There are only events that Go has planned. The descriptor stays readable
 * until the program has tried to read an event. */
static int no_event(int fd)
{
	eventfd_t count;

	eventfd_read(fd, &count);
	errno = EAGAIN;
	return -1;
}

static int do_ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
{
	return no_event(channel->fd);
}

static struct ibv_cq_ex *do_ibv_create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr)
{
	struct ibv_cq_ex *cq = NEW(ibv_cq_ex);

	cq->context = context;
	cq->channel = attr->channel;
	cq->cq_context = attr->cq_context;
	cq->cqe = (int)attr->cqe;
	cq->handle = new_number();
	set_ibv_cq_ex(cq);
	if (cq->channel)
		cq->channel->refcnt++;
	return cq;
}

static struct ibv_cq *do_ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context,
				       struct ibv_comp_channel *channel, int vector)
{
	struct ibv_cq_init_attr_ex attr = { .cqe = (uint32_t)cqe, .cq_context = cq_context, .channel = channel };

	return (struct ibv_cq *)do_ibv_create_cq_ex(context, &attr);
}

static int do_ibv_resize_cq(struct ibv_cq *cq, int cqe)
{
	cq->cqe = cqe;
	return 0;
}

static int do_ibv_destroy_cq(struct ibv_cq *cq)
{
	if (cq->channel)
		cq->channel->refcnt--;
	return free_object(cq);
}

/* There are no completions. */
static int do_ibv_start_poll(struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *attr)
{
	return ENOENT;
}

static int do_ibv_next_poll(struct ibv_cq_ex *cq)
{
	return ENOENT;
}

static struct ibv_srq *do_ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	struct ibv_srq *srq = NEW(ibv_srq);

	srq->context = pd->context;
	srq->srq_context = attr->srq_context;
	srq->pd = pd;
	srq->handle = new_number();
	return srq;
}

static struct ibv_srq *do_ibv_create_srq_ex(struct ibv_context *context, struct ibv_srq_init_attr_ex *attr)
{
	return do_ibv_create_srq(attr->pd, (struct ibv_srq_init_attr *)attr);
}

static int do_ibv_get_srq_num(struct ibv_srq *srq, uint32_t *number)
{
	*number = srq->handle;
	return 0;
}

/* Every receive with a tag gets a handle of its own. */
static int do_ibv_post_srq_ops(struct ibv_srq *srq, struct ibv_ops_wr *wr, struct ibv_ops_wr **bad)
{
	for (; wr; wr = wr->next) {
		if (wr->opcode == IBV_WR_TAG_ADD)
			wr->tm.handle = new_number();
	}
	return 0;
}

static int do_ibv_destroy_srq(struct ibv_srq *srq)
{
	return free_object(srq);
}

static struct ibv_qp *new_qp(struct ibv_context *context, struct ibv_pd *pd, const struct ibv_qp_init_attr *attr)
{
	struct ibv_qp_ex *qpx = NEW(ibv_qp_ex);
	struct ibv_qp *qp = &qpx->qp_base;

	qp->context = context;
	qp->qp_context = attr->qp_context;
	qp->pd = pd;
	qp->send_cq = attr->send_cq;
	qp->recv_cq = attr->recv_cq;
	qp->srq = attr->srq;
	qp->qp_type = attr->qp_type;
	qp->state = IBV_QPS_RESET;
	qp->handle = new_number();
	qp->qp_num = qp->handle + 0x100;
	set_ibv_qp_ex(qpx);
	return qp;
}

static struct ibv_qp *do_ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	return new_qp(pd->context, pd, attr);
}

static struct ibv_qp *do_ibv_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr)
{
	return new_qp(context, attr->comp_mask & IBV_QP_INIT_ATTR_PD ? attr->pd : NULL,
		      (const struct ibv_qp_init_attr *)attr);
}

static struct ibv_qp *do_ibv_open_qp(struct ibv_context *context, struct ibv_qp_open_attr *attr)
{
	struct ibv_qp_init_attr init = { .qp_context = attr->qp_context, .qp_type = attr->qp_type };
	struct ibv_qp *qp = new_qp(context, NULL, &init);

	qp->qp_num = attr->qp_num;
	return qp;
}

static struct ibv_qp_ex *do_ibv_qp_to_qp_ex(struct ibv_qp *qp)
{
	return (struct ibv_qp_ex *)qp;
}

static int do_ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	if (mask & IBV_QP_STATE)
		qp->state = attr->qp_state;
	return 0;
}

static int do_ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init)
{
	memset(attr, 0, sizeof(*attr));
	memset(init, 0, sizeof(*init));
	attr->qp_state = attr->cur_qp_state = qp->state;
	init->send_cq = qp->send_cq;
	init->recv_cq = qp->recv_cq;
	init->srq = qp->srq;
	init->qp_type = qp->qp_type;
	return 0;
}

static int do_ibv_destroy_qp(struct ibv_qp *qp)
{
	return free_object(qp);
}

static struct ibv_wq *do_ibv_create_wq(struct ibv_context *context, struct ibv_wq_init_attr *attr)
{
	struct ibv_wq *wq = NEW(ibv_wq);

	wq->context = context;
	wq->pd = attr->pd;
	wq->cq = attr->cq;
	wq->wq_type = attr->wq_type;
	wq->state = IBV_WQS_RESET;
	wq->handle = new_number();
	wq->wq_num = wq->handle + 0x200;
	set_ibv_wq(wq);
	return wq;
}

static int do_ibv_modify_wq(struct ibv_wq *wq, struct ibv_wq_attr *attr)
{
	if (attr->attr_mask & IBV_WQ_ATTR_STATE)
		wq->state = attr->wq_state;
	return 0;
}

static int do_ibv_destroy_wq(struct ibv_wq *wq)
{
	return free_object(wq);
}

static struct ibv_rwq_ind_table *do_ibv_create_rwq_ind_table(struct ibv_context *context,
							      struct ibv_rwq_ind_table_init_attr *attr)
{
	struct ibv_rwq_ind_table *table = NEW(ibv_rwq_ind_table);

	table->context = context;
	table->ind_tbl_handle = (int)new_number();
	table->ind_tbl_num = table->ind_tbl_handle + 0x300;
	return table;
}

static int do_ibv_destroy_rwq_ind_table(struct ibv_rwq_ind_table *table)
{
	return free_object(table);
}

static struct ibv_flow *do_ibv_create_flow(struct ibv_qp *qp, struct ibv_flow_attr *attr)
{
	struct ibv_flow *flow = NEW(ibv_flow);

	flow->context = qp->context;
	flow->handle = new_number();
	return flow;
}

static int do_ibv_destroy_flow(struct ibv_flow *flow)
{
	return free_object(flow);
}

static struct ibv_ah *do_ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	struct ibv_ah *ah = NEW(ibv_ah);

	ah->context = pd->context;
	ah->pd = pd;
	ah->handle = new_number();
	return ah;
}

static struct ibv_ah *do_ibv_create_ah_from_wc(struct ibv_pd *pd, struct ibv_wc *wc, struct ibv_grh *grh, uint8_t port)
{
	return do_ibv_create_ah(pd, NULL);
}

static int do_ibv_destroy_ah(struct ibv_ah *ah)
{
	return free_object(ah);
}
