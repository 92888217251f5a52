/* Lawful C that rdma-core has nowhere. */
#ifndef IBV_ODD_H
#define IBV_ODD_H
#include <stdio.h>
#include "odd_inner.h"

int ibv_odd_unnamed(struct ibv_context *, const char *, int, uint64_t *, void (*)(int), enum ibv_odd_kind);
int ibv_odd_mixed(int arg2, int, int arg1, const char *);
int ibv_odd_nil(struct ibv_context *nil, struct ibv_qp *lib, int r, int err, int library, int cerr, int unsafe, int symbols);
int ibv_odd_pair(int a_b, int aB, int A_b, int _a_b, int a_b_);
int ibv_odd_words(int type, int typ, int func, int range, int len, int string, int error, int uint64, int select, int go, int map,
		  int chan, int var, int interface, int any, int iota, int copy, int new, int panic, int unsafe_, int struct_);
int ibv_odd_c(int vctx, int null, int lacking, int LIB, int MISSING, int own_ibv_odd_c, int context_with, int fn, int slot, int C);
int ibv_odd_p(struct ibv_pd *x, int p_x, struct ibv_pd *p_p_x, int x_);
int ibv_odd_text(const char *name, int cName, const char *c_name, const char *cname);
int ibv_odd_under(int _, int __, int _1, int __1a);
int ibv_odd_cxx(int class, int bool, int true, int false, int nullptr, int constexpr, int this, int typeof_unqual);
int ibv_odd_types(int verbena_int, int size, struct ibv_qp *qp, int ibv_qp, int uint32, struct ibv_qp *Qp);
const char *ibv_odd_str(enum ibv_odd_kind r);
void ibv_odd_void(void);
void *ibv_odd_ptr(size_t, unsigned char[16], int (*)[4], struct ibv_odd **, const void *const *, struct ibv_odd_opaque *);
uintptr_t ibv_odd_value(intptr_t, off_t, signed char, char, long long, ssize_t, const int, enum ibv_odd_kind);
enum ibv_odd_kind ibv_odd_enum(void);
int ibv_odd_out(struct ibv_context *, uint64_t *, enum ibv_odd_kind *, struct ibv_odd **, void **, const char *name);
int ibv_odd_poll(struct ibv_cq *r, int num_entries, struct ibv_wc *lib);
int ibv_odd_wait(int lib, int maxevents);
int IBV_odd_upper(int);

static inline int ibv_odd_dispatch(struct ibv_odd_ops *r, int lib)
{
	return r->call(r, lib);
}

static inline int ibv_odd_deep(struct ibv_odd_ops *lib, int r)
{
	return lib->self->self->call(lib, r);
}

static inline int ibv_odd_polled(struct ibv_odd_ops *lib, int num_entries, struct ibv_wc *nil)
{
	return lib->poll(lib, num_entries, nil);
}

static inline int ibv_odd_again(struct ibv_odd_ops *old_num_entries, int num_entries, struct ibv_wc *wc)
{
	return old_num_entries->poll_num_entries(old_num_entries, num_entries, wc);
}

static inline int ibv_odd_guarded(struct ibv_xrcd *lib)
{
	struct verbs_context *vctx = verbs_get_ctx_op(lib->context, close_xrcd);

	if (!vctx)
		return EOPNOTSUPP;
	return vctx->close_xrcd(lib);
}

struct ibv_odd_tail {
	char first;
	_Bool on;
	long rest[];
};

struct ibv_odd_packed {
	char first;
	int second;
} __attribute__((packed));

_Bool ibv_odd_is(struct ibv_odd_tail *tail, _Bool on);
int ibv_odd_pack(struct ibv_odd_packed *packed, _Bool *on);
int ibv_odd_print(FILE *file);

#define IBV_ODD_NULL ((void *)0)
#define IBV_ODD_FIVE ((void *)5)
#define IBV_ODD_ALL ((void *)-1)
#define IBV_ODD_NEGATIVE (-5)
#define IBV_ODD_CHARACTER 'c'
#define IBV_ODD_BIG 0xffffffffffffffffULL
#define IBV_ODD_LONG (1UL << 63)
#define IBV_ODD_SAME IBV_ODD_B
#define __IBV_ODD_HIDDEN 1
#define ibv_odd_other ibv_odd
#define ibv_odd_kinds ibv_odd_kind

#endif
