/* Calls the header's function and ours on the same state, and compares. */

#include <errno.h>
#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

enum outcome { RETURNED, CRASHED, ASSERTED, OUTCOMES };

struct run {
	enum outcome outcome;
	struct result result;
	struct record record;
	char *arena;
};

struct state {
	const struct function *function;
	enum mode mode;
	uint64_t args[9];
	char *arena;
	int stale_errno;
	uint64_t seed;
};

static sigjmp_buf escape;

void crash(void)
{
	siglongjmp(escape, CRASHED);
}

static void on_signal(int number)
{
	(void)number;
	crash();
}

/* glibc's, for assert. */
void __assert_fail(const char *expression, const char *file, unsigned int line, const char *function)
{
	(void)expression, (void)file, (void)line, (void)function;
	siglongjmp(escape, ASSERTED);
}

static void run(const struct state *s, call_fn *fn, bool library, struct run *run)
{
	char top;

	memcpy(arena, s->arena, arena_size);
	libibverbs_table(library);
	librdmacm_table(library);
	record.calls = 0;
	stack_top = &top;
	datagram = s->function->datagram;
	seed_random(~s->seed); /* of what the fakes do */
	errno = s->stale_errno;
	run->result = (struct result){0};
	run->outcome = (enum outcome)sigsetjmp(escape, 0);
	if (run->outcome == RETURNED)
		run->result = fn(s->args);
	run->record = record;
	memcpy(run->arena, arena, arena_size);
}

static bool same_calls(const struct run *a, const struct run *b, size_t n)
{
	if (a->record.calls < n || b->record.calls < n)
		return false;
	for (size_t i = 0; i < n; i++) {
		const struct call *x = &a->record.call[i], *y = &b->record.call[i];

		if (x->name != y->name || x->notes != y->notes || memcmp(x->note, y->note, x->notes * sizeof(x->note[0])))
			return false;
	}
	return true;
}

/* Whether the function said, as its class does, that it failed with code. */
static bool refused(enum class class, const struct run *r, int code)
{
	if (r->outcome != RETURNED)
		return false;
	if (code == MISSING)
		return r->result.error == MISSING;
	switch (class) {
	case CLASS_STATUS:
	case CLASS_COUNT:
		return r->result.value == -1 && r->result.error == code;
	case CLASS_POINTER:
		return r->result.value == 0 && r->result.error == code;
	case CLASS_CODE:
		return r->result.value == code;
	case CLASS_NEGATIVE:
	case CLASS_POLL:
		return r->result.value == -code;
	default:
		return r->result.error == code;
	}
}

static size_t first_exported(const struct record *r)
{
	size_t i = 0;

	while (i < r->calls && !r->call[i].exported)
		i++;
	return i;
}

/* What is wrong with our run, NULL if nothing. */
static const char *judge(const struct state *s, const struct run *real, const struct run *ours)
{
	size_t exported = first_exported(&real->record);

	if (ours->outcome != RETURNED)
		return "ours crashes";
	if (s->mode == NO_LIBRARY && exported < real->record.calls) {
		if (!refused(s->function->class, ours, MISSING))
			return "ours does not say that the library lacks a function";
		return same_calls(real, ours, ours->record.calls) && ours->record.calls <= exported ? NULL : "other calls before";
	}
	switch (real->outcome) {
	case CRASHED:
		if (!refused(s->function->class, ours, s->mode == NO_OBJECTS ? EINVAL : EOPNOTSUPP))
			return "ours does not refuse what crashes";
		return ours->record.calls == real->record.calls && same_calls(real, ours, real->record.calls) ?
			NULL : "other calls before";
	case ASSERTED:
		if (!refused(s->function->class, ours, EINVAL))
			return "ours does not refuse what is asserted";
		return same_calls(real, ours, real->record.calls) ? NULL : "other calls before";
	default:
		break;
	}
	/* Ours asks again, for nothing, to tell EOPNOTSUPP from as many completions. */
	if (s->function->class == CLASS_POLL && real->result.value == EOPNOTSUPP)
		return same_calls(real, ours, real->record.calls) && ours->record.calls == real->record.calls + 1 ?
			NULL : "not asked again";
	if (ours->record.calls != real->record.calls || !same_calls(real, ours, real->record.calls))
		return "other calls";
	if (ours->result.value != real->result.value)
		return "another result";
	if (ours->result.error != real->result.error)
		return "another errno";
	return memcmp(real->arena, ours->arena, arena_size) ? "other memory" : NULL;
}

static void print_run(const char *who, const struct run *r)
{
	static const char *const names[OUTCOMES] = {"returned", "crashed", "asserted"};

	printf("  %s: %s %" PRId64 " errno %d\n", who, names[r->outcome], r->result.value, r->result.error);
	for (size_t i = 0; i < r->record.calls; i++) {
		printf("    %s", r->record.call[i].name);
		for (size_t n = 0; n < r->record.call[i].notes; n++)
			printf(" %#" PRIx64, r->record.call[i].note[n]);
		printf("\n");
	}
}

static void print_memory(const struct run *a, const struct run *b)
{
	for (size_t i = 0; i < type_count; i++)
		for (size_t copy = 0; copy < COPIES; copy++)
			for (size_t at = 0; at < types[i].size; at++) {
				size_t offset = types[i].offset + copy * types[i].stride + at;

				if (a->arena[offset] != b->arena[offset])
					printf("  %s %zu: byte %zu\n", types[i].name, copy, at);
			}
}

static void test(const struct function *f, uint64_t cases, struct run *real, struct run *ours, char *before)
{
	static const enum mode modes[] = {
		NORMAL, NORMAL, NORMAL, NORMAL, NO_OPERATIONS, NO_OPERATIONS, NO_OBJECTS, NO_LIBRARY,
	};
	uint64_t outcomes[OUTCOMES] = {0}, calls = 0, different = 0;

	for (uint64_t i = 0; i < cases; i++) {
		struct state s = {.function = f, .mode = modes[i % 8], .arena = before, .seed = i};
		const char *wrong;

		seed_random(i);
		fill_arena(f, s.mode);
		memcpy(before, arena, arena_size);
		fill_args(f, s.args);
		s.stale_errno = one_in(2) ? 0 : (int)(random_bits() % 133);
		run(&s, f->real, true, real);
		run(&s, f->ours, s.mode != NO_LIBRARY, ours);
		outcomes[real->outcome]++;
		calls += real->record.calls;
		wrong = judge(&s, real, ours);
		if (wrong && different++ == 0) {
			printf("%s: case %" PRIu64 ": %s\n", f->name, i, wrong);
			print_run("real", real);
			print_run("ours", ours);
			if (real->outcome == RETURNED)
				print_memory(real, ours);
		}
	}
	printf("%s\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\n", f->name,
	       cases, calls, outcomes[RETURNED], outcomes[CRASHED], outcomes[ASSERTED], different);
}

int main(int argc, char **argv)
{
	struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_NODEFER};
	uint64_t cases = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000;
	struct run real = {.arena = malloc(arena_size)}, ours = {.arena = malloc(arena_size)};
	char *before = malloc(arena_size);

	if (!real.arena || !ours.arena || !before)
		return 1;
	sigaction(SIGSEGV, &action, NULL);
	sigaction(SIGBUS, &action, NULL);
	for (size_t i = 0; i < function_count; i++)
		test(&functions[i], cases, &real, &ours, before);
	return 0;
}
