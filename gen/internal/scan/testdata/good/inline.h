struct context;
struct operations {
	int (*post)(struct queue *q, int a, void *b);
	void (*start)(struct queue *q);
};
struct context {
	struct operations ops;
	void *abi_compat;
};
struct verbs_context {
	int (*newer)(struct context *c, int a);
	void *(*made)(struct queue *q, int a);
	size_t sz;
	struct context context;
};
struct queue {
	struct context *context;
	void (*start)(struct queue *q);
};

static inline struct verbs_context *verbs_get_ctx(struct context *ctx)
{
	return (struct verbs_context *)((char *)ctx - offsetof(struct verbs_context, context));
}

#define verbs_get_ctx_op(ctx, op) ({ \
	struct verbs_context *__vctx = verbs_get_ctx(ctx); \
	(!__vctx || (__vctx->sz < sizeof(*__vctx) - offsetof(struct verbs_context, op)) || \
	 !__vctx->op) ? NULL : __vctx; })

static inline int ibv_dispatch(struct queue *q, int a, void *b)
{
	return q->context->ops.post(q, a, b);
}

static inline void ibv_dispatch_void(struct queue *q)
{
	q->start(q);
}

/* Guarded, in both ways that the headers write it. */
static inline int ibv_guarded(struct context *c, int a)
{
	struct verbs_context *vctx = verbs_get_ctx_op(c, newer);

	if (!vctx)
		return EOPNOTSUPP;
	return vctx->newer(c, a);
}

static inline void *ibv_guarded_ptr(struct queue *q, int a)
{
	struct verbs_context *vctx;

	vctx = verbs_get_ctx_op(q->context, made);
	if (!vctx) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	return vctx->made(q, a);
}

/* The rest has logic of its own. */
static inline int ibv_unguarded(struct context *c, int a)
{
	struct verbs_context *vctx = verbs_get_ctx_op(c, newer);

	return vctx->newer(c, a);
}

static inline int ibv_own(struct queue *q, int a, void *b)
{
	if (a < 0)
		return EINVAL;
	return q->context->ops.post(q, a, b);
}

static inline int ibv_reordered(struct queue *q, void *b, int a)
{
	return q->context->ops.post(q, a, b);
}

static inline int ibv_dropped(struct queue *q, int a, void *b, int unused)
{
	return q->context->ops.post(q, a, b);
}

static inline int ibv_constant(struct queue *q, int a)
{
	return q->context->ops.post(q, a, NULL);
}

static inline int ibv_two_calls(struct queue *q, int a, void *b)
{
	q->start(q);
	return q->context->ops.post(q, a, b);
}

static inline int ibv_wrong_guard(struct context *c, int a)
{
	struct verbs_context *vctx = verbs_get_ctx_op(c, made);

	if (!vctx)
		return EOPNOTSUPP;
	return vctx->newer(c, a);
}

static inline int ibv_other_refusal(struct context *c, int a)
{
	struct verbs_context *vctx = verbs_get_ctx_op(c, newer);

	if (!vctx)
		return ENOSYS;
	return vctx->newer(c, a);
}

static inline int ibv_direct(struct queue *q, int a, void *b)
{
	return ibv_dispatch(q, a, b);
}
