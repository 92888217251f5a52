/* Part of provider.c: copies of memory to which arguments point, except for single structs. */

static void copy_ibv_create_rwq_ind_table(struct call *call, struct ibv_context *context,
					  struct ibv_rwq_ind_table_init_attr *attr)
{
	copy(call, attr->ind_tbl, sizeof(*attr->ind_tbl) << attr->log_ind_tbl_size);
}

static void copy_ibv_create_qp_ex(struct call *call, struct ibv_context *context, struct ibv_qp_init_attr_ex *attr)
{
	if (attr->comp_mask & IBV_QP_INIT_ATTR_RX_HASH)
		copy(call, attr->rx_hash_conf.rx_hash_key, attr->rx_hash_conf.rx_hash_key_len);
}

static size_t spec_size(enum ibv_flow_spec_type type)
{
	switch ((int)type & ~IBV_FLOW_SPEC_INNER) {
	case IBV_FLOW_SPEC_ETH:
		return sizeof(struct ibv_flow_spec_eth);
	case IBV_FLOW_SPEC_IPV4:
		return sizeof(struct ibv_flow_spec_ipv4);
	case IBV_FLOW_SPEC_IPV4_EXT:
		return sizeof(struct ibv_flow_spec_ipv4_ext);
	case IBV_FLOW_SPEC_IPV6:
		return sizeof(struct ibv_flow_spec_ipv6);
	case IBV_FLOW_SPEC_ESP:
		return sizeof(struct ibv_flow_spec_esp);
	case IBV_FLOW_SPEC_TCP:
	case IBV_FLOW_SPEC_UDP:
		return sizeof(struct ibv_flow_spec_tcp_udp);
	case IBV_FLOW_SPEC_VXLAN_TUNNEL:
		return sizeof(struct ibv_flow_spec_tunnel);
	case IBV_FLOW_SPEC_GRE:
		return sizeof(struct ibv_flow_spec_gre);
	case IBV_FLOW_SPEC_MPLS:
		return sizeof(struct ibv_flow_spec_mpls);
	case IBV_FLOW_SPEC_ACTION_TAG:
		return sizeof(struct ibv_flow_spec_action_tag);
	case IBV_FLOW_SPEC_ACTION_DROP:
		return sizeof(struct ibv_flow_spec_action_drop);
	case IBV_FLOW_SPEC_ACTION_HANDLE:
		return sizeof(struct ibv_flow_spec_action_handle);
	case IBV_FLOW_SPEC_ACTION_COUNT:
		return sizeof(struct ibv_flow_spec_counter_action);
	}
	fail("flow spec of an unknown type");
	return 0;
}

/* The specs follow the struct, in the same copy. */
static void copy_ibv_create_flow(struct call *call, struct ibv_qp *qp, struct ibv_flow_attr *flow)
{
	const char *at = (const char *)(flow + 1);
	struct ibv_flow_spec spec;
	int i;

	for (i = 0; i < flow->num_of_specs; i++) {
		memcpy(&spec, at, sizeof(spec.hdr)); /* it need not be aligned */
		if (spec.hdr.size != spec_size(spec.hdr.type))
			fail("flow spec of a wrong size");
		at += spec.hdr.size;
	}
	if (at != (const char *)flow + flow->size)
		fail("flow whose size is not that of its specs");
	copy(call, flow, flow->size);
}

static void copy_esp(struct call *call, const struct ibv_flow_action_esp_attr *esp)
{
	copy(call, esp->esp_attr, sizeof(*esp->esp_attr));
	copy(call, esp->keymat_ptr, esp->keymat_len);
	copy(call, esp->replay_ptr, esp->replay_len);
	copy(call, esp->esp_encap, sizeof(*esp->esp_encap));
}

static void copy_ibv_create_flow_action_esp(struct call *call, struct ibv_context *context,
					    struct ibv_flow_action_esp_attr *esp)
{
	copy_esp(call, esp);
}

static void copy_ibv_modify_flow_action_esp(struct call *call, struct ibv_flow_action *action,
					    struct ibv_flow_action_esp_attr *esp)
{
	copy_esp(call, esp);
}

static void copy_recv(struct call *call, const struct ibv_recv_wr *wr)
{
	for (; wr; wr = wr->next) {
		copy(call, wr, sizeof(*wr));
		copy(call, wr->sg_list, wr->num_sge * sizeof(*wr->sg_list));
	}
}

static void copy_ibv_post_recv(struct call *call, struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	copy_recv(call, wr);
}

static void copy_ibv_post_srq_recv(struct call *call, struct ibv_srq *srq, struct ibv_recv_wr *wr,
				   struct ibv_recv_wr **bad)
{
	copy_recv(call, wr);
}

static void copy_ibv_post_wq_recv(struct call *call, struct ibv_wq *wq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	copy_recv(call, wr);
}

static void copy_ibv_post_send(struct call *call, struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	for (; wr; wr = wr->next) {
		copy(call, wr, sizeof(*wr));
		copy(call, wr->sg_list, wr->num_sge * sizeof(*wr->sg_list));
	}
}

static void copy_ibv_post_srq_ops(struct call *call, struct ibv_srq *srq, struct ibv_ops_wr *wr, struct ibv_ops_wr **bad)
{
	for (; wr; wr = wr->next) {
		copy(call, wr, sizeof(*wr));
		if (wr->opcode == IBV_WR_TAG_ADD)
			copy(call, wr->tm.add.sg_list, wr->tm.add.num_sge * sizeof(*wr->tm.add.sg_list));
	}
}

static void copy_ibv_advise_mr(struct call *call, struct ibv_pd *pd, enum ib_uverbs_advise_mr_advice advice,
			       uint32_t flags, struct ibv_sge *list, uint32_t n)
{
	copy(call, list, n * sizeof(*list));
}

static void copy_ibv_wr_set_sge_list(struct call *call, struct ibv_qp_ex *qp, size_t n, const struct ibv_sge *list)
{
	copy(call, list, n * sizeof(*list));
}

static void copy_ibv_wr_set_inline_data_list(struct call *call, struct ibv_qp_ex *qp, size_t n,
					     const struct ibv_data_buf *list)
{
	copy(call, list, n * sizeof(*list));
	while (n--)
		copy(call, list[n].addr, list[n].length);
}

static void copy_ibv_wr_set_inline_data(struct call *call, struct ibv_qp_ex *qp, void *data, size_t size)
{
	copy(call, data, size);
}

static void copy_ibv_wr_atomic_write(struct call *call, struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr,
				     const void *value)
{
	copy(call, value, 8);
}

static void copy_ibv_memcpy_to_dm(struct call *call, struct ibv_dm *dm, uint64_t offset, const void *data, size_t size)
{
	copy(call, data, size);
}
