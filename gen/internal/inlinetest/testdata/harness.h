/* What the generated C files and the harness know of each other. */

#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MISSING INT32_MIN /* the errno of a stub whose library lacks a function */
#define COPIES 2 /* of the objects of each type */

enum kind {
	NUMBER,
	ENUM,         /* four bytes, mostly small */
	SIZE,
	ADDRESS,      /* of data, which nothing here follows */
	OBJECT,       /* a pointer to an object of a type */
	CONTEXT,      /* the same, to the ibv_context that every object has */
	SCRATCH,      /* a pointer to a few bytes */
	OPERATION,    /* a pointer to a fake */
	CONTEXT_SIZE, /* verbs_context.sz */
	CONTEXT_ABI,  /* ibv_context.abi_compat */
};

/* A member of an object; all others are random bytes. */
struct slot {
	size_t offset;
	enum kind kind;
	int type;
	bool may_be_null; /* at all times; objects else in one mode only */
	void (*operation)(void);
};

struct type {
	const char *name;
	size_t offset, stride, size; /* of the first one in the arena, to the next one, of one */
	size_t slots;
	const struct slot *slot;
};

struct param {
	enum kind kind;
	int type;
	bool may_be_null;
};

/* How a function reports an error, as headers/conventions.txt has it. */
enum class {
	CLASS_STATUS, CLASS_COUNT, CLASS_POINTER, CLASS_CODE, CLASS_NEGATIVE, CLASS_POLL,
	CLASS_VOID, CLASS_VALUE, CLASS_INTERIOR,
};

struct result {
	int64_t value;
	int32_t error;
};

typedef struct result call_fn(const uint64_t *args);

struct function {
	const char *name;
	enum class class;
	bool datagram;  /* what it posts is for a datagram QP */
	int operation;  /* the offset in verbs_context of the operation that it is about, or -1 */
	size_t params;
	struct param param[9];
	call_fn *real, *ours;
};

/* generated */
extern const struct type types[];
extern const size_t type_count;
extern const struct function functions[];
extern const size_t function_count;
extern char *const arena;
extern const size_t arena_size, scratch_offset;
void libibverbs_table(bool present);
void librdmacm_table(bool present);

/* state.c: random numbers and the objects */
void seed_random(uint64_t seed);
uint64_t random_bits(void);
bool one_in(unsigned int n);
uint64_t random_word(void);
enum mode { NORMAL, NO_OPERATIONS, NO_OBJECTS, NO_LIBRARY };
void fill_arena(const struct function *f, enum mode mode);
void fill_args(const struct function *f, uint64_t *args);
void *object(int type); /* one of them, mostly the first */
bool in_arena(const void *p);

/* fakes.c: what a fake does, and the record of it */
#define MAX_CALLS 64
#define MAX_NOTES 24
struct call {
	const char *name;
	bool exported;
	size_t notes;
	uint64_t note[MAX_NOTES];
};
struct record {
	size_t calls;
	struct call call[MAX_CALLS];
};
extern struct record record;
extern const char *stack_top;
extern bool datagram;
void called(const char *name, bool exported);
void note(uint64_t value);
void note_pointer(const void *p);
void note_send_wr(const void *wr);
void note_recv_wr(const void *wr);
void not_null(const void *p); /* the library would follow it */
void output(void *to, size_t size);
void output_object(void *to, int type);
int64_t result_number(void);
void *result_object(int type);
void *result_address(void);
void set_errno(void);

/* compare.c: runs both and compares */
_Noreturn void crash(void);
