/* Functions that are inline in the headers and more than a call. */

static int own_ibv_query_port(struct ibv_context *context, uint8_t port_num, struct ibv_port_attr *attr)
{
	struct verbs_context *vctx = CONTEXT_WITH(context, query_port);

	if (vctx && vctx->query_port)
		return vctx->query_port(context, port_num, attr, sizeof(*attr));
	if (!LIB(ibv_query_port))
		return lacking();
	/* The exported function fills in the older, shorter struct. */
	memset(attr, 0, sizeof(*attr));
	return LIB(ibv_query_port)(context, port_num, (struct _compat_ibv_port_attr *)attr);
}

static int own_ibv_query_gid_ex(struct ibv_context *context, uint32_t port_num, uint32_t gid_index,
				struct ibv_gid_entry *entry, uint32_t flags)
{
	if (!LIB(_ibv_query_gid_ex))
		return lacking();
	return LIB(_ibv_query_gid_ex)(context, port_num, gid_index, entry, flags, sizeof(*entry));
}

static ssize_t own_ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries,
				       size_t max_entries, uint32_t flags)
{
	if (!LIB(_ibv_query_gid_table))
		return lacking();
	return LIB(_ibv_query_gid_table)(context, entries, max_entries, flags, sizeof(*entries));
}

static int own_ibv_query_comp_cntr_caps(struct ibv_context *context, struct ibv_comp_cntr_caps *caps)
{
	if (!LIB(_ibv_query_comp_cntr_caps))
		return lacking();
	return LIB(_ibv_query_comp_cntr_caps)(context, caps, sizeof(*caps));
}

/* The optional access flags, which old kernels do not know, go through a newer
 * function that drops those that the kernel lacks. */

static struct ibv_mr *own_ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	if (access & IB_UVERBS_ACCESS_OPTIONAL_RANGE) {
		if (!LIB(ibv_reg_mr_iova2))
			return null(MISSING);
		return LIB(ibv_reg_mr_iova2)(pd, addr, length, (uintptr_t)addr, (unsigned int)access);
	}
	return LIB(ibv_reg_mr) ? LIB(ibv_reg_mr)(pd, addr, length, access) : null(MISSING);
}

static struct ibv_mr *own_ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access)
{
	if (access & IB_UVERBS_ACCESS_OPTIONAL_RANGE) {
		if (!LIB(ibv_reg_mr_iova2))
			return null(MISSING);
		return LIB(ibv_reg_mr_iova2)(pd, addr, length, iova, (unsigned int)access);
	}
	return LIB(ibv_reg_mr_iova) ? LIB(ibv_reg_mr_iova)(pd, addr, length, iova, access) : null(MISSING);
}

static struct ibv_cq *own_ibv_cq_ex_to_cq(struct ibv_cq_ex *cq)
{
	return (struct ibv_cq *)cq;
}

static int own_ibv_close_xrcd(struct ibv_xrcd *xrcd)
{
	struct verbs_context *vctx = CONTEXT_WITH(xrcd->context, close_xrcd);

	return vctx && vctx->close_xrcd ? vctx->close_xrcd(xrcd) : EOPNOTSUPP;
}

static struct ibv_mw *own_ibv_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
	return pd->context->ops.alloc_mw ? pd->context->ops.alloc_mw(pd, type) : null(EOPNOTSUPP);
}

static int own_ibv_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind)
{
	const struct ibv_mw_bind_info *info = &bind->bind_info;

	if (mw->type != IBV_MW_TYPE_1 || (!info->mr && (info->addr || info->length)))
		return EINVAL;
	if (info->mr && info->mr->pd != mw->pd)
		return EPERM;
	return mw->context->ops.bind_mw ? mw->context->ops.bind_mw(qp, mw, bind) : EOPNOTSUPP;
}

static uint32_t own_ibv_inc_rkey(uint32_t rkey)
{
	return (rkey & 0xffffff00) | ((rkey + 1) & 0xff);
}

static int own_ibv_is_qpt_supported(uint32_t caps, enum ibv_qp_type qpt)
{
	return qpt < 32 && caps & (1u << qpt) ? 1 : 0;
}

static uint16_t own_ibv_flow_label_to_udp_sport(uint32_t label)
{
	uint32_t low = label & 0x3fff, high = (label >> 14) & 0x3f;

	return 0xc000 | (low ^ high);
}

static struct ibv_srq *own_ibv_create_srq_ex(struct ibv_context *context, struct ibv_srq_init_attr_ex *attr)
{
	const uint32_t basic = IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE;
	uint32_t mask = attr->comp_mask;
	struct verbs_context *vctx;

	if (!(mask & ~basic) && mask & IBV_SRQ_INIT_ATTR_PD &&
	    (!(mask & IBV_SRQ_INIT_ATTR_TYPE) || attr->srq_type == IBV_SRQT_BASIC)) {
		if (!LIB(ibv_create_srq))
			return null(MISSING);
		if (!attr->pd)
			return null(EINVAL);
		return LIB(ibv_create_srq)(attr->pd, (struct ibv_srq_init_attr *)attr);
	}
	vctx = CONTEXT_WITH(context, create_srq_ex);
	return vctx && vctx->create_srq_ex ? vctx->create_srq_ex(context, attr) : null(EOPNOTSUPP);
}

static struct ibv_qp *own_ibv_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr)
{
	struct verbs_context *vctx;

	if (attr->comp_mask == IBV_QP_INIT_ATTR_PD) {
		if (!LIB(ibv_create_qp))
			return null(MISSING);
		if (!attr->pd)
			return null(EINVAL);
		return LIB(ibv_create_qp)(attr->pd, (struct ibv_qp_init_attr *)attr);
	}
	vctx = CONTEXT_WITH(context, create_qp_ex);
	return vctx && vctx->create_qp_ex ? vctx->create_qp_ex(context, attr) : null(EOPNOTSUPP);
}

static struct ibv_wq *own_ibv_create_wq(struct ibv_context *context, struct ibv_wq_init_attr *attr)
{
	struct verbs_context *vctx = CONTEXT_WITH(context, create_wq);
	struct ibv_wq *wq;

	if (!vctx || !vctx->create_wq)
		return null(EOPNOTSUPP);
	wq = vctx->create_wq(context, attr);
	if (wq) { /* providers leave these to the caller */
		wq->wq_context = attr->wq_context;
		wq->events_completed = 0;
		pthread_mutex_init(&wq->mutex, NULL);
		pthread_cond_init(&wq->cond, NULL);
	}
	return wq;
}

static int own_ibv_post_srq_ops(struct ibv_srq *srq, struct ibv_ops_wr *op, struct ibv_ops_wr **bad_op)
{
	struct verbs_context *vctx = CONTEXT_WITH(srq->context, post_srq_ops);

	if (vctx && vctx->post_srq_ops)
		return vctx->post_srq_ops(srq, op, bad_op);
	*bad_op = op;
	return EOPNOTSUPP;
}

static int own_ibv_query_device_ex(struct ibv_context *context, const struct ibv_query_device_ex_input *input,
				   struct ibv_device_attr_ex *attr)
{
	struct verbs_context *vctx = CONTEXT_WITH(context, query_device_ex);

	if (input && input->comp_mask)
		return EINVAL;
	if (vctx && vctx->query_device_ex) {
		int ret = vctx->query_device_ex(context, input, attr, sizeof(*attr));

		if (ret != EOPNOTSUPP && ret != ENOSYS)
			return ret;
	}
	if (!LIB(ibv_query_device))
		return lacking();
	memset(attr, 0, sizeof(*attr));
	return LIB(ibv_query_device)(context, &attr->orig_attr);
}

static int own_ib_addr_any(const struct ib_addr *a)
{
	return a->ib_u.uib_addr64[0] == 0 && a->ib_u.uib_addr64[1] == 0;
}

static int own_ib_addr_loopback(const struct ib_addr *a)
{
	static const struct ib_addr loopback = {.ib_u.uib_addr8[15] = 1};

	return memcmp(a, &loopback, sizeof(loopback)) == 0;
}

static void own_ib_addr_set(struct ib_addr *addr, __be32 w1, __be32 w2, __be32 w3, __be32 w4)
{
	__be32 words[] = {w1, w2, w3, w4};

	memcpy(addr, words, sizeof(words));
}

static int own_ib_addr_cmp(const struct ib_addr *a1, const struct ib_addr *a2)
{
	return memcmp(a1, a2, sizeof(*a1));
}
