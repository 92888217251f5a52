/* Part of provider.c: memory that a device reaches. */

static struct ibv_mr *new_mr(struct ibv_pd *pd, void *addr, size_t length)
{
	struct ibv_mr *mr = NEW(ibv_mr);

	mr->context = pd->context;
	mr->pd = pd;
	mr->addr = addr;
	mr->length = length;
	mr->handle = new_number();
	mr->lkey = mr->rkey = mr->handle << 8;
	return mr;
}

static struct ibv_mr *do_ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	return new_mr(pd, addr, length);
}

static struct ibv_mr *do_ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access)
{
	return new_mr(pd, addr, length);
}

static struct ibv_mr *do_ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
					  unsigned int access)
{
	return new_mr(pd, addr, length);
}

static struct ibv_mr *do_ibv_reg_mr_ex(struct ibv_pd *pd, struct ibv_mr_init_attr *attr)
{
	return new_mr(pd, attr->addr, attr->length);
}

static struct ibv_mr *do_ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd,
					   int access)
{
	return new_mr(pd, (void *)(uintptr_t)offset, length);
}

static struct ibv_mr *do_ibv_reg_buf_mr(struct ibv_pd *pd, struct ibv_buf *buf, void *addr, size_t length, int access)
{
	return new_mr(pd, addr, length);
}

static struct ibv_mr *do_ibv_reg_dm_mr(struct ibv_pd *pd, struct ibv_dm *dm, uint64_t offset, size_t length,
				       unsigned int access)
{
	return new_mr(pd, NULL, length);
}

static struct ibv_mr *do_ibv_alloc_null_mr(struct ibv_pd *pd)
{
	return new_mr(pd, NULL, SIZE_MAX);
}

static struct ibv_mr *do_ibv_import_mr(struct ibv_pd *pd, uint32_t handle)
{
	struct ibv_mr *mr = new_mr(pd, NULL, 0);

	mr->handle = handle;
	return mr;
}

static int do_ibv_dereg_mr(struct ibv_mr *mr)
{
	return free_object(mr);
}

static void do_ibv_unimport_mr(struct ibv_mr *mr)
{
	free_object(mr);
}

static int do_ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length, int access)
{
	if (flags & IBV_REREG_MR_CHANGE_TRANSLATION) {
		mr->addr = addr;
		mr->length = length;
	}
	if (flags & IBV_REREG_MR_CHANGE_PD)
		mr->pd = pd;
	return 0;
}

static struct ibv_mw *do_ibv_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
	struct ibv_mw *mw = NEW(ibv_mw);

	mw->context = pd->context;
	mw->pd = pd;
	mw->type = type;
	mw->handle = new_number();
	mw->rkey = mw->handle << 8;
	return mw;
}

static int do_ibv_dealloc_mw(struct ibv_mw *mw)
{
	return free_object(mw);
}

static struct ibv_dm *do_ibv_alloc_dm(struct ibv_context *context, struct ibv_alloc_dm_attr *attr)
{
	struct ibv_dm *dm = NEW(ibv_dm);

	dm->context = context;
	dm->handle = new_number();
	set_ibv_dm(dm);
	return dm;
}

static struct ibv_dm *do_ibv_import_dm(struct ibv_context *context, uint32_t handle)
{
	struct ibv_dm *dm = do_ibv_alloc_dm(context, NULL);

	dm->handle = handle;
	return dm;
}

static int do_ibv_free_dm(struct ibv_dm *dm)
{
	return free_object(dm);
}

static void do_ibv_unimport_dm(struct ibv_dm *dm)
{
	free_object(dm);
}

/* The struct ibv_buf is in the first page of the allocation. */
static void *do_ibv_alloc_buf(struct ibv_pd *pd, size_t size, struct ibv_buf **buf)
{
	*buf = new_object(4096 + size);
	return *buf ? (char *)*buf + 4096 : NULL;
}

static void do_ibv_free_buf(struct ibv_buf *buf)
{
	free_object(buf);
}
