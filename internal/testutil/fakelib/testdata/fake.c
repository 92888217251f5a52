/* Compiled twice by fakelib, as libibverbs.so.1 and as librdmacm.so.1.
 * functions.h, which fakelib writes for each, lists what the real library
 * exports, and the operations that inline functions call. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "abi.h"

/* What the next calls do, and what the last call was. Go has the same struct. */
struct control {
	int64_t result[2]; /* result of the first call, and of all later calls */
	int64_t error;     /* errno after a call */
	int64_t out_index; /* index of the out parameter to write to, if out_size is not 0 */
	int64_t out_size;
	int64_t out_value;

	int64_t calls;
	int64_t args[9];
	char called[64]; /* name of the function that was called last */
} control;

/* Memory with which every function but those of OPERATION can be called. */
_Alignas(16) char nothing[4096];

static int64_t enter(const char *name, const int64_t *args)
{
	int64_t result = control.result[control.calls ? 1 : 0];

	control.calls++;
	strncpy(control.called, name, sizeof(control.called) - 1);
	memcpy(control.args, args, sizeof(control.args));
	if (control.out_size)
		memcpy((void *)args[control.out_index], &control.out_value, control.out_size);
	errno = (int)control.error;
	return result;
}

#define ENTRY(identifier, name) \
	int64_t identifier(int64_t a, int64_t b, int64_t c, int64_t d, int64_t e, int64_t f, int64_t g, int64_t h, int64_t i) \
	{ \
		return enter(name, (int64_t[]){ a, b, c, d, e, f, g, h, i }); \
	}

/* The prototypes are abi.h's, so the compiler must not see the name. */
#define EXPORTED(name) \
	int64_t exported_##name(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t) __asm__(#name); \
	ENTRY(exported_##name, #name)

static struct verbs_context *new_context(void)
{
	struct verbs_context *vctx = calloc(1, sizeof(*vctx));

	vctx->sz = sizeof(*vctx);
	vctx->context.abi_compat = (void *)UINTPTR_MAX;
	return vctx;
}

/* An object, such as a queue pair, with a context and no operations. */
void *bare;

static __attribute__((constructor)) void prepare_bare(void)
{
	struct verbs_context *vctx = new_context();
	struct ibv_qp_ex *qp = calloc(1, 4096);

	qp->qp_base.context = &vctx->context;
	bare = qp;
}

/* object_NAME is an object that the inline function NAME works on. Its
 * operation is the only one that it has. */
#define OPERATION(name, type, object, owner, operation) \
	static ENTRY(operation_##name, #name) \
	void *object_##name; \
	static __attribute__((constructor)) void prepare_##name(void) \
	{ \
		struct verbs_context *vctx = new_context(); \
		struct ibv_context *no_object; \
		type object = calloc(1, 4096); \
 \
		owner = &vctx->context; \
		operation = (void *)operation_##name; \
		object_##name = object; \
		(void)no_object; \
	}

#include "functions.h"
