/* What the fakes of operations and of exported functions do. */

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

struct record record;
const char *stack_top;
bool datagram;

static struct call *current;

void called(const char *name, bool exported)
{
	if (record.calls == MAX_CALLS) {
		fprintf(stderr, "more than %d calls\n", MAX_CALLS);
		exit(1);
	}
	current = &record.call[record.calls++];
	*current = (struct call){.name = name, .exported = exported};
}

void note(uint64_t value)
{
	if (current->notes == MAX_NOTES) {
		fprintf(stderr, "more than %d notes in %s\n", MAX_NOTES, current->name);
		exit(1);
	}
	current->note[current->notes++] = value;
}

static bool on_stack(const void *p)
{
	return (const char *)p > (const char *)&p && (const char *)p < stack_top;
}

/* The two functions have their variables at different places. */
void note_pointer(const void *p)
{
	note(on_stack(p) ? UINT64_MAX : (uintptr_t)p);
}

static void note_sge(const struct ibv_sge *sge)
{
	note_pointer(sge);
	if (!on_stack(sge))
		return;
	note(sge->addr);
	note(sge->length);
	note(sge->lkey);
}

/* Of a work request that the function made, what a provider reads. */
void note_send_wr(const void *p)
{
	const struct ibv_send_wr *wr = p;

	if (!on_stack(wr))
		return;
	note(wr->wr_id);
	note_pointer(wr->next);
	note((uint64_t)wr->num_sge);
	note_sge(wr->sg_list);
	note(wr->opcode);
	note(wr->send_flags);
	if (wr->opcode == IBV_WR_RDMA_READ || wr->opcode == IBV_WR_RDMA_WRITE) {
		note(wr->wr.rdma.remote_addr);
		note(wr->wr.rdma.rkey);
	} else if (datagram) {
		note_pointer(wr->wr.ud.ah);
		note(wr->wr.ud.remote_qpn);
		note(wr->wr.ud.remote_qkey);
	}
}

void note_recv_wr(const void *p)
{
	const struct ibv_recv_wr *wr = p;

	if (!on_stack(wr))
		return;
	note(wr->wr_id);
	note_pointer(wr->next);
	note((uint64_t)wr->num_sge);
	note_sge(wr->sg_list);
}

void not_null(const void *p)
{
	if (!p)
		crash();
}

void output(void *to, size_t size)
{
	for (size_t i = 0; i < size && (on_stack(to) || in_arena((char *)to + i)); i++)
		((char *)to)[i] = (char)random_bits();
}

void output_object(void *to, int type)
{
	void *p = object(type);

	if (on_stack(to) || in_arena(to))
		memcpy(to, &p, sizeof(p));
}

int64_t result_number(void)
{
	static const int common[] = {0, 0, 0, 0, 1, -1, 2, EINVAL, -EINVAL, EOPNOTSUPP, ENOSYS, -ENOSYS};
	uint64_t i = random_bits() % 16;

	return i < sizeof(common) / sizeof(common[0]) ? common[i] : (int64_t)random_word();
}

void *result_object(int type)
{
	return one_in(3) ? NULL : object(type);
}

void *result_address(void)
{
	return (void *)(uintptr_t)(random_word() >> 16);
}

void set_errno(void)
{
	switch (random_bits() % 8) {
	case 0:
	case 1:
		errno = 1 + (int)(random_bits() % 133);
		break;
	case 2:
		errno = 0;
		break;
	case 3:
		errno = -(int)(random_bits() % 133);
	}
}
