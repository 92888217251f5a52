// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

/* The check of the memory of requests (VERBENA_CHECK). Threads that post and poll do it, in C, as
 * Go programs post and poll in calls of C that must not call Go.
 *
 * When a request is posted, the check copies what the device reads, and fills what the device
 * writes with a pattern. When the completion is polled, it compares the copy with the memory, and
 * puts back what the device has not written. Memory that several requests use at the same time is
 * not checked, unless all of them only read it. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <execinfo.h>
#endif

#include "bell.h"
#include "call.h"
#include "check.h"
#include "faults.h"

/* What memory has that a program reads too soon: 8 bytes, at addresses that are multiples of 8. */
static const union {
	char text[9];
	uint64_t word;
} pattern = {"too soon"};

#define CHUNK (1 << 14) /* bytes of memory that are looked at together */

static uint8_t chunk[CHUNK], patterns[CHUNK + 8];

/* Returns CHUNK bytes that memory from the address on has if it has the pattern. */
static const uint8_t *pattern_at(uint64_t address)
{
	return patterns + (address & 7);
}

#define MAX_COPIES (UINT64_C(1) << 30) /* bytes of all copies; memory of further requests is not checked */
#define FRAMES 32
#define PAGE_BITS 12
#define MAX_LINKS 64 /* pages of memory that is found by its pages */
#define BUCKETS (1 << 14)
#define MAX_RECORDS (UINT32_C(1) << 22)
#define GENERATIONS (UINT32_C(1) << 10) /* a ticket is the number of a record, and how often the record was used */

/* A place in the program that posts requests. */
struct site {
	struct site *next;
	const char *text; /* the stack as text, if a Go function has posted; otherwise NULL */
	void *frames[FRAMES];
	int n;
	int reported;
};

struct region {
	struct region *next;
	uint64_t device;
	uint64_t iova;
	uint64_t start;
	uint64_t length;
	uint32_t key;
	int flags;
	uint32_t touched; /* whether a peer has written to the memory; the engine sets it */
};

enum state {
	UNCHECKED,
	COPIED,	/* the device reads the memory, and copy has it */
	FILLED,	/* the device writes to the memory, and copy has what was there before the pattern */
	RETURNED, /* the memory is not checked any more; copy is for the word of which the device writes a part */
};

/* Memory of a request. */
struct span {
	struct span *next, **at; /* in the list of all, or of large ones */
	struct record *record;
	struct region *region;
	struct link {
		struct link *next, **at;
		struct span *span;
		uint64_t page;
	} *links; /* one for each page; NULL: the span is in the list of large ones */
	uint64_t start, end;
	uint64_t from, to; /* what copy has */
	uint8_t *copy;
	uint64_t before; /* bytes of the request's memory before this */
	int writes;
	enum state state;
};

/* A posted request. */
struct record {
	struct record *next, *previous; /* in the queue, in the order of posting */
	struct queue *queue;
	struct site *site;
	uint64_t id;
	uint32_t opcode;
	uint32_t number;
	int begun; /* whether the device has begun to write to the memory */
	int spans;
	struct span span[];
};

struct queue {
	struct record *first, *last;
	uint64_t device;
	uint32_t number; /* of the queue pair */
	int kind;
	int exempt;
};

/* Guards everything below. Threads that hold it lock no other, and block signals, whose handlers might
 * wait for it. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static int aborts, ended;
static const char *(*origin)(void);
static pid_t self;
static struct site *sites;
static struct region *regions, *open_regions; /* those that peers have no access to, and the others */
static struct queue **queues; /* from index 1 on */
static uint32_t queue_room;
static struct {
	struct record *record;
	uint32_t generation;
	uint32_t free; /* the next record that is free; 0: none */
} *records; /* from index 1 on */
static uint32_t record_room, free_record;
static struct link *buckets[BUCKETS];
static struct span *small, *large;
static uint64_t copies; /* bytes */

static void lock(sigset_t *mask)
{
	sigset_t blocked;

	soft_all_but_faults(&blocked);
	pthread_sigmask(SIG_BLOCK, &blocked, mask);
	pthread_mutex_lock(&mutex);
}

static void unlock(const sigset_t *mask)
{
	pthread_mutex_unlock(&mutex);
	pthread_sigmask(SIG_SETMASK, mask, NULL);
}

/* Copy memory of the program. They return 0 if some of it is not mapped any more. */

static int fetch(void *to, uint64_t from, size_t n)
{
	struct iovec local = {to, n}, remote = {(void *)(uintptr_t)from, n};

	return process_vm_readv(self, &local, 1, &remote, 1, 0) == (ssize_t)n;
}

static int store(uint64_t to, const void *from, size_t n)
{
	struct iovec local = {(void *)from, n}, remote = {(void *)(uintptr_t)to, n};

	return process_vm_writev(self, &local, 1, &remote, 1, 0) == (ssize_t)n;
}

/* Fetches the next bytes of the memory from *at to end into chunk, and returns their number. It skips
 * pages that are not mapped. It returns 0 if no memory is left. */
static size_t fetch_next(uint64_t *at, uint64_t end)
{
	while (*at < end) {
		size_t n = end - *at < CHUNK ? end - *at : CHUNK, page = (1 << PAGE_BITS) - (*at & ((1 << PAGE_BITS) - 1));

		if (fetch(chunk, *at, n))
			return n;
		if (n > page)
			n = page;
		if (fetch(chunk, *at, n))
			return n;
		*at += n;
	}
	return 0;
}

/* Reports whether the word can be written, without a change of it: it lets the kernel add 0. */
static int is_writable(uint64_t address)
{
	static uint32_t none; /* no thread waits for it */

	return syscall(SYS_futex, &none, FUTEX_WAKE_OP | FUTEX_PRIVATE_FLAG, 0, NULL, (uint32_t *)(uintptr_t)address,
		       FUTEX_OP(FUTEX_OP_ADD, 0, FUTEX_OP_CMP_EQ, 0)) >= 0;
}

/* Writes the word now to an address where the word was is, unless the device writes another word
 * there meanwhile. */
static void swap(uint64_t address, uint64_t was, uint64_t now)
{
	__atomic_compare_exchange_n((uint64_t *)(uintptr_t)address, &was, now, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
}

/* Sites. */

static struct site *find_site(void)
{
	struct site now = {.text = origin()}, *s;

#ifdef __GLIBC__
	if (!now.text)
		now.n = backtrace(now.frames, FRAMES);
#endif
	for (s = sites; s; s = s->next)
		if (s->text == now.text && s->n == now.n && !memcmp(s->frames, now.frames, sizeof(now.frames)))
			return s;
	s = malloc(sizeof(*s));
	if (!s)
		return NULL;
	*s = now;
	s->next = sites;
	sites = s;
	return s;
}

/* Prints a frame of C as addr2line needs it: the file, and the address in it. */
static void print_frame(FILE *out, void *frame)
{
	uintptr_t address = (uintptr_t)frame - 1; /* of the call, not of what follows it */
	Dl_info info;

	if (!dladdr((void *)address, &info) || !info.dli_fname) {
		fprintf(out, "  %#lx\n", (unsigned long)address);
		return;
	}
	if (((const ElfW(Ehdr) *)info.dli_fbase)->e_type != ET_EXEC)
		address -= (uintptr_t)info.dli_fbase;
	fprintf(out, "  %s\n      %s %#lx\n", info.dli_sname ? info.dli_sname : "?", info.dli_fname, (unsigned long)address);
}

static void print_site(FILE *out, const struct site *s)
{
	Dl_info own = {0}, info;
	int i = 0;

	if (s->text) {
		fputs(s->text, out);
		return;
	}
	if (soft_for_c && dladdr((void *)print_site, &own)) /* not the functions of the device */
		while (i < s->n && dladdr(s->frames[i], &info) && info.dli_fbase == own.dli_fbase)
			i++;
	for (; i < s->n; i++)
		print_frame(out, s->frames[i]);
}

/* Reports. */

static const char *operation(const struct record *r)
{
	if (r->queue->kind != SOFT_CHECK_SEND)
		return "receive";
	switch (r->opcode) {
	case IBV_WR_SEND:
	case IBV_WR_SEND_WITH_IMM:
	case IBV_WR_SEND_WITH_INV:
		return "send";
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		return "RDMA write";
	case IBV_WR_RDMA_READ:
		return "RDMA read";
	default:
		return "atomic operation";
	}
}

static void report(const struct span *s, uint64_t address, uint8_t was, uint8_t is)
{
	const struct record *r = s->record;
	char *text = NULL;
	size_t length;
	FILE *out;
	int cancel;

	if (r->site->reported)
		return;
	r->site->reported = 1;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel); /* this thread holds the mutex */
	out = open_memstream(&text, &length);
	if (!out)
		goto end;
	fprintf(out, "==================\nWARNING: VERBENA_CHECK: the program wrote to memory of a posted %s\n", operation(r));
	fprintf(out, "Byte %llu of %llu at %#llx (key %#x) was 0x%02x, and is 0x%02x.\n", (unsigned long long)(address - s->start),
		(unsigned long long)(s->end - s->start), (unsigned long long)s->start, s->region->key, was, is);
	if (r->queue->kind == SOFT_CHECK_SHARED)
		fprintf(out, "The shared receive queue");
	else
		fprintf(out, "QP %u", r->queue->number);
	fprintf(out, " has the memory until the completion of the work request %llu is polled.\nPosted at:\n",
		(unsigned long long)r->id);
	print_site(out, r->site);
	fputs("==================\n", out);
	fclose(out);
	for (size_t done = 0; done < length;) {
		ssize_t n = write(STDERR_FILENO, text + done, length - done);

		if (n <= 0)
			break;
		done += n;
	}
	free(text);
end:
	if (aborts)
		abort();
	pthread_setcancelstate(cancel, NULL);
}

/* Regions. */

static struct region *find_region(uint64_t device, uint32_t key)
{
	struct region *heads[] = {regions, open_regions};

	for (int i = 0; i < 2; i++)
		for (struct region *r = heads[i]; r; r = r->next)
			if (r->key == key && r->device == device)
				return r;
	return NULL;
}

static int overlaps(const struct region *r, const struct span *s)
{
	return r->start < s->end && s->start < r->start + r->length;
}

/* Reports whether peers have access to some of the memory. */
static int is_open(const struct span *s)
{
	for (const struct region *r = open_regions; r; r = r->next)
		if (overlaps(r, s))
			return 1;
	return 0;
}

/* Reports whether a peer may have written to some of the memory. */
static int is_touched(const struct span *s)
{
	for (const struct region *r = open_regions; r; r = r->next)
		if (overlaps(r, s) && __atomic_load_n(&r->touched, __ATOMIC_SEQ_CST))
			return 1;
	return 0;
}

/* Copies and the pattern. */

static void forget_copy(struct span *s)
{
	if (s->state == UNCHECKED)
		return;
	copies -= s->to - s->from;
	free(s->copy);
	s->copy = NULL;
	s->state = UNCHECKED;
}

/* Copies the memory from s->from to s->to. It returns 0 if that is not possible. */
static int take_copy(struct span *s, enum state state)
{
	uint64_t n = s->to - s->from;

	if (s->from >= s->to || n > MAX_COPIES - copies)
		return 0;
	s->copy = malloc(n);
	if (!s->copy)
		return 0;
	if (!fetch(s->copy, s->from, n)) {
		free(s->copy);
		return 0;
	}
	copies += n;
	s->state = state;
	return 1;
}

/* Puts back the words of the memory that still have the pattern. The device may be writing to the
 * memory at the same time. */
static void put_back(struct span *s)
{
	uint64_t page = UINT64_MAX;
	int writable = 0;
	size_t n;

	for (uint64_t at = s->from; (n = fetch_next(&at, s->to)); at += n)
		for (size_t i = 0; i < n; i += 8) {
			uint64_t old;

			if (memcmp(chunk + i, &pattern.word, 8))
				continue;
			if ((at + i) >> PAGE_BITS != page) {
				page = (at + i) >> PAGE_BITS;
				writable = is_writable(at + i);
			}
			memcpy(&old, s->copy + (at + i - s->from), 8);
			if (writable)
				swap(at + i, pattern.word, old);
		}
}

/* Puts back the end of a word, of which the device has written the bytes up to the address written,
 * in memory that was given back. */
static void put_back_end(struct span *s, uint64_t written)
{
	size_t n = written & 7;
	uint64_t at = written - n, is, old;
	uint8_t bytes[8];

	if (!n || at < s->from || at >= s->to || !fetch(bytes, at, 8) || memcmp(bytes + n, pattern.text + n, 8 - n))
		return;
	memcpy(&is, bytes, 8);
	memcpy(bytes + n, s->copy + (written - s->from), 8 - n);
	memcpy(&old, bytes, 8);
	if (is_writable(at))
		swap(at, is, old);
}

/* Fills memory that the device writes to with the pattern: its whole words. */
static void fill(struct span *s)
{
	s->from = (s->start + 7) & ~UINT64_C(7);
	s->to = s->end & ~UINT64_C(7);
	if (!(s->region->flags & SOFT_CHECK_FILLS) || is_open(s) || !take_copy(s, FILLED))
		return;
	for (uint64_t at = s->from; at < s->to; at += CHUNK)
		if (!store(at, patterns, s->to - at < CHUNK ? s->to - at : CHUNK)) { /* it may have stored some */
			put_back(s);
			forget_copy(s);
			return;
		}
}

/* Ends the check of memory that a request in progress still uses. */
static void give_back(struct span *s)
{
	if (s->state == FILLED) {
		put_back(s);
		s->state = RETURNED;
	} else if (s->state == COPIED) {
		forget_copy(s);
	}
}

/* Ends the check of memory without a result. */
static void stop_checking(struct span *s)
{
	give_back(s);
	forget_copy(s);
}

/* Ends the check of memory that the device has read. */
static void check_copied(struct span *s)
{
	int changed = 0;

	for (uint64_t at = s->from; at < s->to && !changed; at += CHUNK) {
		size_t n = s->to - at < CHUNK ? s->to - at : CHUNK;
		const uint8_t *copy = s->copy + (at - s->from);

		if (!fetch(chunk, at, n))
			break;
		if (!memcmp(chunk, copy, n))
			continue;
		changed = 1;
		for (size_t i = 0; i < n; i++)
			if (chunk[i] != copy[i]) {
				if (!is_touched(s)) /* after the memory was read */
					report(s, at + i, copy[i], chunk[i]);
				break;
			}
	}
	forget_copy(s);
}

/* Ends the check of memory that had the pattern, and of which the device has written the bytes up to
 * the address written. */
static void check_filled(struct span *s, uint64_t written)
{
	uint64_t at = written > s->from ? written : s->from;
	size_t n;

	for (; (n = fetch_next(&at, s->to)); at += n) {
		const uint8_t *copy = s->copy + (at - s->from), *want = pattern_at(at);

		if (!memcmp(chunk, want, n)) {
			store(at, copy, n);
			continue;
		}
		for (size_t i = 0; i < n; i++) {
			if (chunk[i] != want[i])
				report(s, at + i, want[i], chunk[i]);
			else
				chunk[i] = copy[i];
		}
		store(at, chunk, n);
	}
	forget_copy(s);
}

/* Checks that memory has the pattern. */
static void check_pattern(const struct span *s)
{
	for (uint64_t at = s->from; at < s->to; at += CHUNK) {
		size_t n = s->to - at < CHUNK ? s->to - at : CHUNK;

		if (!fetch(chunk, at, n))
			return;
		if (!memcmp(chunk, patterns, n))
			continue;
		for (size_t i = 0; i < n; i++)
			if (chunk[i] != patterns[i]) {
				report(s, at + i, patterns[i], chunk[i]);
				return;
			}
	}
}

/* Spans. */

static struct link **bucket(uint64_t page)
{
	return &buckets[page * UINT64_C(0x9E3779B97F4A7C15) >> 50];
}

static uint64_t first_page(const struct span *s)
{
	return s->start >> PAGE_BITS;
}

static uint64_t last_page(const struct span *s)
{
	return (s->end - 1) >> PAGE_BITS;
}

static void insert(struct span *s)
{
	uint64_t n = last_page(s) - first_page(s) + 1;
	struct span **list = &small;

	s->links = n <= MAX_LINKS ? malloc(n * sizeof(*s->links)) : NULL;
	if (!s->links)
		list = &large;
	s->next = *list;
	s->at = list;
	if (s->next)
		s->next->at = &s->next;
	*list = s;
	for (uint64_t i = 0; s->links && i < n; i++) {
		struct link *l = &s->links[i], **head = bucket(first_page(s) + i);

		*l = (struct link){.next = *head, .at = head, .span = s, .page = first_page(s) + i};
		if (l->next)
			l->next->at = &l->next;
		*head = l;
	}
}

static void take_out(struct span *s)
{
	if (!s->at)
		return;
	*s->at = s->next;
	if (s->next)
		s->next->at = s->at;
	s->at = NULL;
	for (uint64_t i = 0; s->links && i <= last_page(s) - first_page(s); i++) {
		struct link *l = &s->links[i];

		*l->at = l->next;
		if (l->next)
			l->next->at = l->at;
	}
	free(s->links);
	s->links = NULL;
}

/* Handles that the memory s, which is being posted, and the memory o of another request overlap. It
 * returns whether s must not be checked. */
static int meet(const struct span *s, struct span *o)
{
	if (s->start >= o->end || o->start >= s->end || !s->writes && !o->writes)
		return 0;
	give_back(o);
	return 1;
}

/* Calls meet for all requests whose memory s overlaps. */
static int meet_all(const struct span *s)
{
	int met = 0;

	for (struct span *o = large; o; o = o->next)
		met |= meet(s, o);
	if (last_page(s) - first_page(s) >= MAX_LINKS) {
		for (struct span *o = small; o; o = o->next)
			met |= meet(s, o);
		return met;
	}
	for (uint64_t page = first_page(s); page <= last_page(s); page++)
		for (struct link *l = *bucket(page); l; l = l->next)
			if (l->page == page)
				met |= meet(s, l->span);
	return met;
}

static void add_span(struct record *r, const struct ibv_sge *sge, uint64_t before, int writes)
{
	struct region *region = find_region(r->queue->device, sge->lkey);
	struct span *s = &r->span[r->spans];
	uint64_t offset;

	if (!region || !sge->length)
		return;
	offset = sge->addr - region->iova;
	if (offset > region->length || sge->length > region->length - offset)
		return; /* the device refuses the request */
	*s = (struct span){.record = r, .region = region, .before = before, .writes = writes};
	s->start = region->start + offset;
	s->end = s->start + sge->length;
	r->spans++;
	if (!meet_all(s) && r->site && !ended && !(region->flags & SOFT_CHECK_NEVER) && !r->queue->exempt) {
		if (writes) {
			fill(s);
		} else {
			s->from = s->start;
			s->to = s->end;
			take_copy(s, COPIED);
		}
	}
	insert(s);
}

/* Records. */

static uint32_t ticket_of(const struct record *r)
{
	return records[r->number].generation * MAX_RECORDS | r->number;
}

static struct record *find_record(uint32_t ticket)
{
	uint32_t n = ticket % MAX_RECORDS;

	if (n >= record_room || records[n].generation != ticket / MAX_RECORDS)
		return NULL;
	return records[n].record;
}

/* Returns the number of a free record, or 0. */
static uint32_t new_number(void)
{
	uint32_t n = free_record, room = record_room ? 2 * record_room : 1024;
	void *more;

	if (n) {
		free_record = records[n].free;
		return n;
	}
	if (room > MAX_RECORDS)
		return 0;
	more = realloc(records, room * sizeof(*records));
	if (!more)
		return 0;
	records = more;
	memset(&records[record_room], 0, (room - record_room) * sizeof(*records));
	for (n = room - 1; n >= record_room && n; n--) {
		records[n].free = free_record;
		free_record = n;
	}
	record_room = room;
	return new_number();
}

static struct record *add_record(struct queue *q, struct site *site, uint64_t id, uint32_t opcode, uint32_t segments)
{
	struct record *r;
	uint32_t n = new_number();

	if (!n)
		return NULL;
	r = calloc(1, sizeof(*r) + segments * sizeof(r->span[0]));
	if (!r) {
		records[n].free = free_record;
		free_record = n;
		return NULL;
	}
	records[n].record = r;
	r->number = n;
	r->queue = q;
	r->site = site;
	r->id = id;
	r->opcode = opcode;
	r->previous = q->last;
	*(q->last ? &q->last->next : &q->first) = r;
	q->last = r;
	return r;
}

/* Frees a record, whose memory is not checked any more. */
static void remove_record(struct record *r)
{
	struct queue *q = r->queue;

	for (int i = 0; i < r->spans; i++) {
		stop_checking(&r->span[i]);
		take_out(&r->span[i]);
	}
	*(r->previous ? &r->previous->next : &q->first) = r->next;
	*(r->next ? &r->next->previous : &q->last) = r->previous;
	records[r->number].record = NULL;
	records[r->number].generation = (records[r->number].generation + 1) % GENERATIONS;
	records[r->number].free = free_record;
	free_record = r->number;
	free(r);
}

/* Returns the address up to which the device has written to memory of a request if it has written n
 * bytes of the request. */
static uint64_t written_of(const struct span *s, uint64_t n)
{
	return n > s->before ? s->start + (n - s->before) : s->start;
}

/* Checks the memory of a request that is complete. written is how many bytes the device has written
 * to it. If failed is true, the device may have written some. */
static void finish(struct record *r, uint64_t written, int failed)
{
	for (int i = 0; i < r->spans; i++) {
		struct span *s = &r->span[i];

		if (s->state == COPIED)
			check_copied(s);
		else if (s->state == FILLED && !failed)
			check_filled(s, written_of(s, written));
		else if (s->state == RETURNED && !failed)
			put_back_end(s, written_of(s, written));
	}
	remove_record(r);
}

/* Queues. */

static struct queue *queue_of(const struct soft_wq *q)
{
	return q->check && q->check < queue_room ? queues[q->check] : NULL;
}

static uint32_t record_send(struct queue *q, struct site *site, const struct soft_send *s, uint32_t max_sge)
{
	uint32_t n = s->flags & IBV_SEND_INLINE || s->num_sge > max_sge ? 0 : s->num_sge;
	uint64_t before = 0;
	struct record *r;
	int writes = 0;

	switch (s->opcode) {
	case IBV_WR_RDMA_READ:
	case IBV_WR_ATOMIC_CMP_AND_SWP:
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		writes = 1;
		break;
	case IBV_WR_SEND:
	case IBV_WR_SEND_WITH_IMM:
	case IBV_WR_SEND_WITH_INV:
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		break;
	default:
		n = 0;
	}
	r = add_record(q, site, s->id, s->opcode, n);
	if (!r)
		return 0;
	for (uint32_t i = 0; i < n; before += s->sges[i++].length)
		add_span(r, &s->sges[i], before, writes);
	return ticket_of(r);
}

static uint32_t record_receive(struct queue *q, struct site *site, const struct soft_recv *s, uint32_t max_sge)
{
	uint32_t n = s->num_sge > max_sge ? 0 : s->num_sge;
	uint64_t before = 0;
	struct record *r = add_record(q, site, s->id, 0, n);

	if (!r)
		return 0;
	for (uint32_t i = 0; i < n; before += s->sges[i++].length)
		add_span(r, &s->sges[i], before, 1);
	return ticket_of(r);
}

void soft_check_posted(struct soft_wq *w, uint32_t end)
{
	struct site *site;
	struct queue *q;
	sigset_t mask;

	if (soft_forked)
		return;
	lock(&mask);
	q = queue_of(w);
	site = q ? find_site() : NULL;
	for (uint32_t n = w->posted; q && n != end; n++) {
		uint8_t *slot = w->slots + (size_t)(n & (w->size - 1)) * w->stride;

		if (q->kind == SOFT_CHECK_SEND)
			((struct soft_send *)slot)->ticket = record_send(q, site, (struct soft_send *)slot, w->max_sge);
		else
			((struct soft_recv *)slot)->ticket = record_receive(q, site, (struct soft_recv *)slot, w->max_sge);
	}
	unlock(&mask);
}

void soft_check_completed(const struct soft_wc *wc)
{
	int failed = wc->wc.status != IBV_WC_SUCCESS;
	struct record *r;
	sigset_t mask;

	if (soft_forked)
		return;
	lock(&mask);
	r = find_record(wc->ticket);
	if (!r)
		;
	else if (r->queue->kind == SOFT_CHECK_SEND) { /* the earlier requests are complete as well */
		struct record *next = r->queue->first, *last = r->next;

		while (next != last) {
			r = next;
			next = r->next;
			finish(r, UINT64_MAX / 2, failed);
		}
	} else {
		finish(r, wc->wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM ? 0 : wc->wc.byte_len, failed);
	}
	unlock(&mask);
}

/* The functions that Go calls. */

void soft_check_writes(uint32_t ticket)
{
	struct record *r;
	sigset_t mask;

	lock(&mask);
	r = find_record(ticket);
	for (int i = 0; r && !r->begun && i < r->spans; i++)
		if (r->span[i].state == FILLED)
			check_pattern(&r->span[i]);
	if (r)
		r->begun = 1;
	unlock(&mask);
}

int soft_check_start(int abort_at_once, void *origin_of_thread)
{
	uint64_t from = pattern.word, to = 0;

	self = getpid();
	errno = 0;
	if (!fetch(&to, (uintptr_t)&from, sizeof(to)) || !store((uintptr_t)&to, &from, sizeof(from)))
		return errno ? errno : EIO;
#ifdef __GLIBC__
	void *frame;

	backtrace(&frame, 1); /* which loads a library */
#endif
	for (size_t i = 0; i < sizeof(patterns); i += 8)
		memcpy(patterns + i, &pattern.word, 8);
	aborts = abort_at_once;
	origin = (const char *(*)(void))origin_of_thread;
	soft_bell()->tells = SOFT_TELLS_CHECK;
	return 0;
}

int soft_check_end(void)
{
	sigset_t mask;
	int now;

	lock(&mask);
	now = !ended;
	ended = 1;
	for (int i = 0; i < 2; i++)
		for (struct span *s = i ? large : small; s; s = s->next)
			give_back(s);
	unlock(&mask);
	return now;
}

void soft_check_overwritten(uint32_t ticket, uint64_t n)
{
	struct record *r;
	sigset_t mask;

	lock(&mask);
	r = find_record(ticket);
	for (int i = 0; r && i < r->spans; i++) {
		struct span *s = &r->span[i];

		give_back(s);
		if (s->state == RETURNED)
			put_back_end(s, written_of(s, n));
	}
	unlock(&mask);
}

void soft_check_dropped(uint32_t ticket)
{
	struct record *r;
	sigset_t mask;

	lock(&mask);
	r = find_record(ticket);
	if (r)
		remove_record(r);
	unlock(&mask);
}

void soft_check_queue(struct soft_wq *w, int kind, uint32_t number, uint64_t device)
{
	struct queue *q = calloc(1, sizeof(*q));
	uint32_t i = 1;
	sigset_t mask;

	if (!q)
		return;
	q->kind = kind;
	q->number = number;
	q->device = device;
	lock(&mask);
	while (i < queue_room && queues[i])
		i++;
	if (i >= queue_room) {
		uint32_t room = queue_room ? 2 * queue_room : 64;
		struct queue **more = realloc(queues, room * sizeof(*more));

		if (!more) {
			free(q);
			q = NULL;
		} else {
			memset(&more[queue_room], 0, (room - queue_room) * sizeof(*more));
			queues = more;
			queue_room = room;
		}
	}
	if (q) {
		queues[i] = q;
		w->check = i;
	}
	unlock(&mask);
}

void soft_check_drop(struct soft_wq *w)
{
	struct queue *q;
	sigset_t mask;

	lock(&mask);
	q = queue_of(w);
	while (q && q->first)
		remove_record(q->first);
	unlock(&mask);
}

void soft_check_queue_gone(struct soft_wq *w)
{
	sigset_t mask;

	soft_check_drop(w);
	lock(&mask);
	if (queue_of(w)) {
		free(queues[w->check]);
		queues[w->check] = NULL;
		w->check = 0;
	}
	unlock(&mask);
}

void soft_check_exempt(struct soft_wq *w)
{
	struct queue *q;
	sigset_t mask;

	lock(&mask);
	q = queue_of(w);
	if (q)
		q->exempt = 1;
	for (struct record *r = q ? q->first : NULL; r; r = r->next)
		for (int i = 0; i < r->spans; i++)
			give_back(&r->span[i]);
	unlock(&mask);
}

uint32_t *soft_check_region(uint64_t device, uint32_t key, uint64_t iova, uint64_t start, uint64_t length, int flags)
{
	struct region *r = calloc(1, sizeof(*r)), **list;
	sigset_t mask;

	if (!r)
		return NULL;
	*r = (struct region){.device = device, .key = key, .iova = iova, .start = start, .length = length, .flags = flags};
	lock(&mask);
	list = flags & SOFT_CHECK_OPEN ? &open_regions : &regions;
	r->next = *list;
	*list = r;
	/* A peer may write to memory of requests that were posted with the key of another region. */
	for (int i = 0; i < 2 && flags & SOFT_CHECK_OPEN; i++)
		for (struct span *s = i ? large : small; s; s = s->next)
			if (overlaps(r, s) && s->state == FILLED)
				give_back(s);
	unlock(&mask);
	return &r->touched;
}

void soft_check_region_gone(uint64_t device, uint32_t key)
{
	struct region *r, **at;
	sigset_t mask;

	lock(&mask);
	r = find_region(device, key);
	for (int i = 0; i < 2 && r; i++)
		for (struct span *s = i ? large : small, *next; s; s = next) {
			next = s->next;
			if (r->touched && overlaps(r, s) && s->state == COPIED)
				forget_copy(s);
			if (s->region != r)
				continue;
			stop_checking(s);
			take_out(s);
			s->region = NULL;
		}
	if (r) {
		at = r->flags & SOFT_CHECK_OPEN ? &open_regions : &regions;
		while (*at != r)
			at = &(*at)->next;
		*at = r->next;
		free(r);
	}
	unlock(&mask);
}
