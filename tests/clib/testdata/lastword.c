// Lastword has one end of a connection do something for the other, and end at once. The other must hear that it was done.
//
//	lastword rounds N OPERATION WAY ENDER NETWORK SIZE    both ends, N times
//	lastword listen|dial ADDRESS PORT OPERATION WAY SIZE  one end
//
// WAY is how the end ends, or "stay" for the other end. ENDER is the side that ends: listen or dial. NETWORK is soft or udp.
#define _GNU_SOURCE

#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "abi.h"

#define CHECK(condition)                                                                                               \
	do {                                                                                                           \
		int why = errno;                                                                                       \
		if (!(condition)) {                                                                                    \
			fprintf(stderr, "%s: line %d: not %s; errno is %d\n", name, __LINE__, #condition, why);        \
			_exit(1);                                                                                      \
		}                                                                                                      \
	} while (0)

/* After so many seconds an end that hears nothing has waited for too long. */
#define PATIENCE 60

static const char *name; /* of this end, for messages */
static char *memory;	 /* of size bytes, whose last word is polled for a WRITE and changed by an atomic operation; behind them, a receive has its own */
static struct rdma_event_channel *channel;

/* What ends tell each other of their memory. */
struct place {
	uint64_t addr;
	uint32_t rkey;
	char word[4];
};

struct end {
	struct rdma_cm_id *id;
	struct ibv_cq *cq;
	struct ibv_comp_channel *cc;
	struct ibv_mr *mr;
	struct place peer;
	size_t size;
};

/* The header part of a datagram comes before it. */
enum { GRH = 40 };

static struct rdma_cm_event *event(enum rdma_cm_event_type want)
{
	struct rdma_cm_event *e;

	CHECK(rdma_get_cm_event(channel, &e) == 0);
	if (e->event != want) {
		fprintf(stderr, "%s: %s in the place of %s, status %d\n", name, rdma_event_str(e->event), rdma_event_str(want),
			e->status);
		_exit(1);
	}
	return e;
}

static void pass(enum rdma_cm_event_type want) { CHECK(rdma_ack_cm_event(event(want)) == 0); }

static void prepare(struct end *n, int datagrams)
{
	struct ibv_qp_init_attr a = {.qp_type = datagrams ? IBV_QPT_UD : IBV_QPT_RC, .cap = {8, 8, 1, 1, 0}, .sq_sig_all = 1};
	struct ibv_context *context = n->id->verbs;
	struct ibv_pd *pd;

	CHECK(n->cc = ibv_create_comp_channel(context));
	CHECK(n->cq = ibv_create_cq(context, 32, NULL, n->cc, 0));
	CHECK(pd = ibv_alloc_pd(context));
	a.send_cq = a.recv_cq = n->cq;
	CHECK(rdma_create_qp(n->id, pd, &a) == 0);
	CHECK(n->mr = ibv_reg_mr(pd, memory, 2 * n->size + GRH,
				 IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC));
	CHECK(n->id->verbs->ops.req_notify_cq(n->cq, 0) == 0);
}

static struct place place(struct end *n)
{
	return (struct place){.addr = htobe64((uintptr_t)memory), .rkey = htonl(n->mr->rkey), .word = "yes"};
}

static void learn(struct end *n, const struct rdma_conn_param *p)
{
	CHECK(p->private_data && p->private_data_len >= sizeof(n->peer));
	memcpy(&n->peer, p->private_data, sizeof(n->peer));
}

static void receive(struct end *n)
{
	struct ibv_sge sge = {(uintptr_t)memory + n->size, n->size + GRH, n->mr->lkey};
	struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;

	CHECK(n->id->verbs->ops.post_recv(n->id->qp, &wr, &bad) == 0);
}

static void post(struct end *n, struct ibv_send_wr wr, size_t size)
{
	struct ibv_sge sge = {(uintptr_t)memory, size, n->mr->lkey};
	struct ibv_send_wr *bad;

	wr.sg_list = &sge;
	wr.num_sge = 1;
	CHECK(n->id->verbs->ops.post_send(n->id->qp, &wr, &bad) == 0);
}

/* Waits for the asynchronous event of an access that the memory does not allow. */
static void access_error(struct end *n)
{
	struct ibv_async_event e;

	do {
		CHECK(ibv_get_async_event(n->id->verbs, &e) == 0);
		ibv_ack_async_event(&e);
	} while (e.event_type != IBV_EVENT_QP_ACCESS_ERR);
}

static enum ibv_wc_status completion(struct end *n)
{
	struct ibv_cq *cq;
	struct ibv_wc wc;
	void *context;

	while (n->id->verbs->ops.poll_cq(n->cq, 1, &wc) == 0) {
		CHECK(ibv_get_cq_event(n->cc, &cq, &context) == 0);
		ibv_ack_cq_events(cq, 1);
		CHECK(n->id->verbs->ops.req_notify_cq(n->cq, 0) == 0);
	}
	return wc.status;
}

/* Hears that the other end has done it. */
static void stay(struct end *n, const char *op, int poke)
{
	struct ibv_send_wr wr = {.opcode = IBV_WR_SEND};
	enum ibv_wc_status want = IBV_WC_SUCCESS;
	int expected = 1;

	wr.wr.rdma.remote_addr = be64toh(n->peer.addr);
	wr.wr.rdma.rkey = ntohl(n->peer.rkey);
	memset(memory, 1, n->size);
	if (!strcmp(op, "disconnect")) {
		pass(RDMA_CM_EVENT_DISCONNECTED);
		return;
	} else if (!strcmp(op, "disconnected") || !strcmp(op, "unanswered")) {
		CHECK(rdma_disconnect(n->id) == 0);
		pass(RDMA_CM_EVENT_DISCONNECTED);
		return;
	} else if (!strcmp(op, "write")) {
		wr.opcode = IBV_WR_RDMA_WRITE;
	} else if (!strcmp(op, "event")) {
		wr.opcode = IBV_WR_RDMA_WRITE;
		wr.wr.rdma.remote_addr += 2 * n->size + GRH; /* behind the end */
		want = IBV_WC_REM_ACCESS_ERR;
	} else if (!strcmp(op, "write_imm")) {
		wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
	} else if (!strcmp(op, "read")) {
		struct ibv_send_wr read = wr;

		read.opcode = IBV_WR_RDMA_READ;
		post(n, read, n->size);
		expected = 2;
	} else if (!strcmp(op, "atomic")) {
		wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
		wr.wr.atomic.remote_addr = be64toh(n->peer.addr) + n->size - 8;
		wr.wr.atomic.rkey = ntohl(n->peer.rkey);
		wr.wr.atomic.compare_add = 1;
	}
	if (strcmp(op, "datagram"))
		post(n, wr, !strcmp(op, "atomic") ? 8 : n->size);
	if (!strcmp(op, "gone")) {
		CHECK(write(poke, "x", 1) == 1);
		CHECK(completion(n) != IBV_WC_SUCCESS);
		return;
	}
	while (expected--) {
		enum ibv_wc_status status = completion(n);

		if (status != want) {
			fprintf(stderr, "%s: %s\n", name, ibv_wc_status_str(status));
			_exit(1);
		}
	}
}

/* Sees what the other end has done, or does something for it. */
static void act(struct end *n, const char *op, int poke, struct rdma_cm_event *established)
{
	volatile uint64_t *last = (volatile uint64_t *)(memory + n->size - 8);
	char byte;

	if (!strcmp(op, "disconnect")) {
		CHECK(rdma_disconnect(n->id) == 0);
	} else if (!strcmp(op, "disconnected")) {
		pass(RDMA_CM_EVENT_DISCONNECTED);
		CHECK(rdma_disconnect(n->id) == 0);
	} else if (!strcmp(op, "unanswered")) { /* the kernel would answer for a process that has ended */
		pass(RDMA_CM_EVENT_DISCONNECTED);
	} else if (!strcmp(op, "write") || !strcmp(op, "atomic")) {
		while (*last == 0)
			;
	} else if (!strcmp(op, "event")) {
		access_error(n);
	} else if (!strcmp(op, "gone")) {
		CHECK(read(poke, &byte, 1) == 1);
	} else if (!strcmp(op, "datagram")) {
		struct ibv_send_wr wr = {.opcode = IBV_WR_SEND};

		wr.wr.ud.remote_qpn = established->param.ud.qp_num;
		wr.wr.ud.remote_qkey = established->param.ud.qkey;
		CHECK(wr.wr.ud.ah = ibv_create_ah(n->mr->pd, &established->param.ud.ah_attr));
		post(n, wr, n->size);
		CHECK(completion(n) == IBV_WC_SUCCESS);
	} else {
		CHECK(completion(n) == IBV_WC_SUCCESS);
	}
}

/* Returns if the way to end is to return from main. */
static int leave(const char *way)
{
	if (!strcmp(way, "exit"))
		exit(0);
	if (!strcmp(way, "exec"))
		execl("/bin/true", "true", NULL);
	if (!strcmp(way, "kill"))
		raise(SIGKILL);
	if (!strcmp(way, "return"))
		return 0;
	_exit(0);
}

static int run(const char *role, const char *address, int port, const char *op, const char *way, size_t size, int ready,
	       int poke)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = inet_addr(address)};
	struct rdma_conn_param p = {.private_data_len = sizeof(struct place), .responder_resources = 4, .initiator_depth = 4,
				    .retry_count = 7, .rnr_retry_count = 7};
	int ends = strcmp(way, "stay"), datagrams = !strcmp(op, "datagram"), rejects = !strcmp(op, "reject");
	enum rdma_port_space space = datagrams ? RDMA_PS_UDP : RDMA_PS_TCP;
	struct rdma_cm_event *e = NULL;
	struct end n = {.size = size};
	struct rdma_cm_id *listener;
	struct place own;

	name = ends ? "the end that ends" : "the end that stays";
	alarm(PATIENCE);
	CHECK(memory = calloc(1, 2 * size + GRH));
	CHECK(channel = rdma_create_event_channel());
	if (!strcmp(role, "listen")) {
		CHECK(rdma_create_id(channel, &listener, NULL, space) == 0);
		CHECK(rdma_bind_addr(listener, (struct sockaddr *)&a) == 0 && rdma_listen(listener, 1) == 0);
		CHECK(dprintf(ready, "%d\n", ntohs(rdma_get_src_port(listener))) > 0);
		e = event(RDMA_CM_EVENT_CONNECT_REQUEST);
		n.id = e->id;
		if (rejects) {
			CHECK(ends && rdma_reject(n.id, "no", 3) == 0);
			return leave(way);
		}
		if (!datagrams)
			learn(&n, &e->param.conn);
		CHECK(rdma_ack_cm_event(e) == 0);
	} else {
		CHECK(rdma_create_id(channel, &n.id, NULL, space) == 0);
		CHECK(rdma_resolve_addr(n.id, NULL, (struct sockaddr *)&a, 5000) == 0);
		pass(RDMA_CM_EVENT_ADDR_RESOLVED);
		CHECK(rdma_resolve_route(n.id, 5000) == 0);
		pass(RDMA_CM_EVENT_ROUTE_RESOLVED);
	}
	prepare(&n, datagrams);
	own = place(&n);
	p.private_data = &own;
	p.qp_num = n.id->qp->qp_num;
	if (strcmp(op, "gone"))
		receive(&n);
	if (!strcmp(role, "listen")) {
		CHECK(rdma_accept(n.id, &p) == 0);
		if (!datagrams)
			pass(RDMA_CM_EVENT_ESTABLISHED);
	} else {
		CHECK(rdma_connect(n.id, &p) == 0);
		e = event(rejects ? RDMA_CM_EVENT_REJECTED : RDMA_CM_EVENT_ESTABLISHED);
		if (rejects) {
			CHECK(e->param.conn.private_data && !memcmp(e->param.conn.private_data, "no", 3));
			return 0;
		}
		if (!datagrams)
			learn(&n, &e->param.conn);
	}
	if (!ends) {
		stay(&n, op, poke);
		_exit(0);
	}
	act(&n, op, poke, e);
	return leave(way);
}

int main(int argc, char **argv)
{
	const char *addresses[2] = {"127.0.0.1", "127.0.0.1"};
	int rounds, hung = 0, failed = 0;
	char own[2][32];

	if (argc == 7)
		return run(argv[1], argv[2], atoi(argv[3]), argv[4], argv[5], strtoul(argv[6], NULL, 0), 1, !strcmp(argv[5], "stay") ? 1 : 0);
	if (argc != 8)
		return 2;
	rounds = atoi(argv[2]);
	for (int i = 0; i < rounds; i++) {
		const char *op = argv[3], *ender = argv[5];
		size_t size = strtoul(argv[7], NULL, 0);
		int ready[2], poke[2], status;
		char text[16] = "";
		pid_t pid[2];

		if (!strcmp(argv[6], "udp")) {
			for (int k = 0; k < 2; k++) {
				snprintf(own[k], sizeof(own[k]), "127.%d.%d.%d", 1 + getpid() / 250 % 250, 1 + getpid() % 250, 1 + k);
				addresses[k] = own[k];
			}
		}
		CHECK(pipe(ready) == 0 && pipe(poke) == 0);
		for (int k = 0; k < 2; k++) {
			const char *role = k ? "dial" : "listen", *way = strcmp(role, ender) ? "stay" : argv[4];
			int port = 0;

			if (k)
				CHECK(read(ready[0], text, sizeof(text) - 1) > 0 && (port = atoi(text)));
			CHECK((pid[k] = fork()) >= 0);
			if (pid[k])
				continue;
			if (!strcmp(argv[6], "udp")) {
				char device[64];

				snprintf(device, sizeof(device), "soft:udp=%s", addresses[k]);
				setenv("VERBENA_DEVICE", device, 1);
			}
			return run(role, addresses[0], port, op, way, size, ready[1], poke[!strcmp(way, "stay")]);
		}
		for (int k = 0; k < 2; k++)
			close(ready[k]), close(poke[k]);
		/* The end that stays is looked at; the other one has ended by then, or never will. */
		int stays = strcmp(ender, "dial") ? 1 : 0;

		CHECK(waitpid(pid[stays], &status, 0) > 0);
		if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
			hung++;
		else if (status)
			failed++;
		kill(pid[!stays], SIGKILL);
		CHECK(waitpid(pid[!stays], &status, 0) > 0);
	}
	printf("%d rounds, %d hung, %d failed\n", rounds, hung, failed);
	return hung || failed;
}
