/* Random numbers, and objects with random contents. */

#include <string.h>

#include "harness.h"

static uint64_t state;

void seed_random(uint64_t seed)
{
	state = seed;
}

uint64_t random_bits(void) /* splitmix64 */
{
	uint64_t z = state += 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

bool one_in(unsigned int n)
{
	return random_bits() % n == 0;
}

/* 64 bits for one number or two, which are often 0, small, or a single bit. */
uint64_t random_word(void)
{
	enum { NO = 0, SMALL = 7, ANY = -1 };
	static const int8_t shapes[16][4] = {
		/* of the low half: any bits of, a bit of; the same of the high half */
		{NO, NO, NO, NO}, {NO, NO, NO, NO}, {NO, NO, NO, NO},
		{SMALL, NO, NO, NO}, {SMALL, NO, NO, NO}, {NO, NO, SMALL, NO}, {SMALL, NO, SMALL, NO}, {SMALL, NO, SMALL, NO},
		{NO, ANY, NO, NO}, {SMALL, ANY, NO, NO}, {NO, NO, NO, ANY}, {NO, ANY, SMALL, NO}, {SMALL, NO, NO, ANY},
		{ANY, NO, ANY, NO}, {ANY, NO, ANY, NO}, {ANY, NO, NO, NO},
	};
	uint64_t choice = random_bits(), bits = choice * 0x9e3779b97f4a7c15;
	const int8_t *shape = shapes[choice >> 60];
	uint32_t bit = 1U << (choice & 31);
	uint32_t low = ((uint32_t)bits & (uint32_t)shape[0]) | (bit & (uint32_t)shape[1]);
	uint32_t high = ((uint32_t)(bits >> 32) & (uint32_t)shape[2]) | (bit & (uint32_t)shape[3]);

	return (uint64_t)high << 32 | low;
}

/* Sizes and addresses stay where no sum of two overflows, as those of memory do. */
static uint64_t random_size(void)
{
	return random_word() & ((1ULL << 47) - 1);
}

bool in_arena(const void *p)
{
	return (const char *)p >= arena && (const char *)p < arena + arena_size;
}

void *object(int type)
{
	return arena + types[type].offset + (one_in(4) ? types[type].stride : 0);
}

static _Noreturn void absent(void)
{
	crash();
}

/* Makes a verbs_context small: it ends, or nearly, with the operation at the
 * offset first. The operations that it is too small for are not NULL, but
 * crash when they are called. */
static void shrink_context(char *context, const struct type *t, size_t *sz, size_t first)
{
	*sz = t->size - first + random_bits() % 3 - 1;
	for (size_t i = 0; i < t->slots; i++) {
		const struct slot *s = &t->slot[i];
		void (*crashing)(void) = absent;

		if (s->kind == OPERATION && s->offset + *sz < t->size)
			memcpy(context + s->offset, &crashing, sizeof(crashing));
	}
}

static void fill_object(const struct type *t, char *p, const struct function *f, enum mode mode)
{
	size_t *sz = NULL;

	for (size_t i = 0; i < t->slots; i++) {
		const struct slot *s = &t->slot[i];
		size_t size = sizeof(uint64_t);
		uint64_t value = 0;

		switch (s->kind) {
		case ENUM:
			value = one_in(4) ? random_word() : random_bits() % 8;
			size = sizeof(uint32_t);
			break;
		case SIZE:
		case ADDRESS:
			value = random_size();
			break;
		case OBJECT:
			value = (mode == NO_OBJECTS || s->may_be_null) && one_in(4) ? 0 : (uintptr_t)object(s->type);
			break;
		case CONTEXT:
			value = (uintptr_t)object(s->type);
			break;
		case OPERATION:
			value = mode == NO_OPERATIONS && one_in(4) ? 0 : (uintptr_t)s->operation;
			break;
		case CONTEXT_SIZE:
			sz = (size_t *)(p + s->offset);
			value = t->size;
			break;
		case CONTEXT_ABI:
			value = mode != NO_OBJECTS && one_in(6) ? random_word() >> 1 : UINTPTR_MAX;
			break;
		default:
			crash();
		}
		memcpy(p + s->offset, &value, size);
	}
	if (sz && f->operation >= 0 && mode != NO_OBJECTS && one_in(4))
		shrink_context(p, t, sz, (size_t)f->operation);
}

void fill_arena(const struct function *f, enum mode mode)
{
	for (size_t i = 0; i < arena_size; i += sizeof(uint64_t)) {
		uint64_t word = random_word();

		memcpy(arena + i, &word, sizeof(word));
	}
	for (size_t i = 0; i < type_count; i++)
		for (size_t copy = 0; copy < COPIES && types[i].slots; copy++)
			fill_object(&types[i], arena + types[i].offset + copy * types[i].stride, f, mode);
}

void fill_args(const struct function *f, uint64_t *args)
{
	for (size_t i = 0; i < f->params; i++) {
		const struct param *p = &f->param[i];

		switch (p->kind) {
		case ENUM:
			args[i] = random_word() & 31; /* one function shifts 1 by it, which C leaves undefined from 32 on */
			break;
		case SIZE:
		case ADDRESS:
			args[i] = random_size();
			break;
		case OBJECT:
		case CONTEXT:
			args[i] = (uintptr_t)object(p->type);
			break;
		case SCRATCH:
			args[i] = (uintptr_t)arena + scratch_offset + 16 * i;
			break;
		default:
			args[i] = random_word();
		}
		if (p->may_be_null && one_in(4))
			args[i] = 0;
	}
}
