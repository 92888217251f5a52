/* Part of provider.c: what calls do. They fill in objects as providers fill
 * them; there is no network behind them. */

#define NEW(type) new_object(sizeof(struct type))

static void set_verbs_context(struct verbs_context *vctx);
static void set_ibv_context_ops(struct ibv_context_ops *ops);
static void set_ibv_qp_ex(struct ibv_qp_ex *qp);
static void set_ibv_cq_ex(struct ibv_cq_ex *cq);
static void set_ibv_wq(struct ibv_wq *wq);
static void set_ibv_dm(struct ibv_dm *dm);

/* Devices. */

static struct ibv_device device = {
	.node_type = IBV_NODE_CA,
	.transport_type = IBV_TRANSPORT_IB,
	.name = "fake0",
	.dev_name = "uverbs0",
};

static struct ibv_device **do_ibv_get_device_list(int *n)
{
	struct ibv_device **list = new_object(2 * sizeof(*list));

	list[0] = &device;
	*n = 1;
	return list;
}

static void do_ibv_free_device_list(struct ibv_device **list)
{
	free_object(list);
}

static const char *do_ibv_get_device_name(struct ibv_device *d)
{
	return d->name;
}

static __be64 do_ibv_get_device_guid(struct ibv_device *d)
{
	static const unsigned char guid[8] = { 0x02, 0, 0, 0, 0, 0, 0, 0x01 };
	__be64 result;

	memcpy(&result, guid, sizeof(result));
	return result;
}

static struct ibv_context *do_ibv_open_device(struct ibv_device *d)
{
	struct verbs_context *vctx = NEW(verbs_context);

	vctx->sz = sizeof(*vctx);
	vctx->context.abi_compat = (void *)UINTPTR_MAX;
	vctx->context.device = d;
	vctx->context.cmd_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	vctx->context.async_fd = event_file();
	vctx->context.num_comp_vectors = 4;
	set_verbs_context(vctx);
	set_ibv_context_ops(&vctx->context.ops);
	return &vctx->context;
}

static struct ibv_context *do_ibv_import_device(int fd)
{
	return do_ibv_open_device(&device);
}

static int do_ibv_close_device(struct ibv_context *context)
{
	close(context->cmd_fd);
	close(context->async_fd);
	return free_object((char *)context - offsetof(struct verbs_context, context));
}

static int do_ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
	memset(attr, 0, sizeof(*attr));
	strcpy(attr->fw_ver, "1.0");
	attr->node_guid = do_ibv_get_device_guid(context->device);
	attr->phys_port_cnt = 1;
	return 0;
}

static int do_ibv_query_device_ex(struct ibv_context *context, const struct ibv_query_device_ex_input *input,
				  struct ibv_device_attr_ex *attr, size_t size)
{
	memset(attr, 0, size);
	return do_ibv_query_device(context, &attr->orig_attr);
}

static int do____ibv_query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr, size_t size)
{
	memset(attr, 0, size);
	attr->state = IBV_PORT_ACTIVE;
	attr->max_mtu = attr->active_mtu = IBV_MTU_4096;
	attr->gid_tbl_len = attr->pkey_tbl_len = 1;
	attr->link_layer = IBV_LINK_LAYER_ETHERNET;
	return 0;
}

/* Protection domains and similar objects. */

static struct ibv_pd *do_ibv_alloc_pd(struct ibv_context *context)
{
	struct ibv_pd *pd = NEW(ibv_pd);

	pd->context = context;
	pd->handle = new_number();
	return pd;
}

static struct ibv_pd *do_ibv_import_pd(struct ibv_context *context, uint32_t handle)
{
	struct ibv_pd *pd = do_ibv_alloc_pd(context);

	pd->handle = handle;
	return pd;
}

static struct ibv_pd *do_ibv_alloc_parent_domain(struct ibv_context *context, struct ibv_parent_domain_init_attr *attr)
{
	return do_ibv_import_pd(context, attr->pd->handle);
}

static int do_ibv_dealloc_pd(struct ibv_pd *pd)
{
	return free_object(pd);
}

static void do_ibv_unimport_pd(struct ibv_pd *pd)
{
	free_object(pd);
}

/* Objects of which only the context is set. */
#define WITH_CONTEXT(type, create, attributes, destroy) \
	static struct type *create(struct ibv_context *context, struct attributes *attr) \
	{ \
		struct type *object = NEW(type); \
 \
		object->context = context; \
		return object; \
	} \
	static int destroy(struct type *object) \
	{ \
		return free_object(object); \
	}

WITH_CONTEXT(ibv_td, do_ibv_alloc_td, ibv_td_init_attr, do_ibv_dealloc_td)
WITH_CONTEXT(ibv_dmah, do_ibv_alloc_dmah, ibv_dmah_init_attr, do_ibv_dealloc_dmah)
WITH_CONTEXT(ibv_xrcd, do_ibv_open_xrcd, ibv_xrcd_init_attr, do_ibv_close_xrcd)
WITH_CONTEXT(ibv_counters, do_ibv_create_counters, ibv_counters_init_attr, do_ibv_destroy_counters)
WITH_CONTEXT(ibv_flow_action, do_ibv_create_flow_action_esp, ibv_flow_action_esp_attr, do_ibv_destroy_flow_action)

static struct ibv_comp_cntr *do_ibv_create_comp_cntr(struct ibv_context *context, struct ibv_comp_cntr_init_attr *attr)
{
	struct ibv_comp_cntr *counter = NEW(ibv_comp_cntr);

	counter->context = context;
	counter->handle = new_number();
	return counter;
}

static int do_ibv_destroy_comp_cntr(struct ibv_comp_cntr *counter)
{
	return free_object(counter);
}
