// Conventions checks what C programs rely on, from C. Its argument says what; the exit status is 0 if all is well, and 1 after a message.
#define _GNU_SOURCE

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common.h"

static struct sockaddr_in loopback(int port)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

	return a;
}

/* Has the address 127.0.0.1 resolved, and takes the event. */
static void resolve(struct rdma_event_channel *channel)
{
	struct sockaddr_in to = loopback(7);
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;

	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 1000) == 0);
	CHECK(rdma_get_cm_event(channel, &event) == 0);
	CHECK(event->event == RDMA_CM_EVENT_ADDR_RESOLVED && event->id == id);
	CHECK(rdma_ack_cm_event(event) == 0);
	CHECK(rdma_destroy_id(id) == 0);
}

/* What functions return, and what errno is. */
static void errors(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct sockaddr_in elsewhere = {.sin_family = AF_INET, .sin_addr.s_addr = inet_addr("198.51.100.77")};
	struct ibv_device **list;
	struct ibv_context *context;
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	struct ibv_pd *pd;
	char byte;
	int n;

	CHECK(channel);
	CHECK(fcntl(channel->fd, F_SETFL, O_NONBLOCK) == 0);
	CHECK(rdma_get_cm_event(channel, &event) == -1 && errno == EAGAIN);
	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_bind_addr(id, (struct sockaddr *)&elsewhere) == -1 && errno == EADDRNOTAVAIL);
	CHECK(rdma_destroy_id(id) == 0);
	CHECK(rdma_bind_addr(NULL, (struct sockaddr *)&elsewhere) == -1 && errno == EINVAL);
	rdma_destroy_event_channel(channel);

	list = ibv_get_device_list(&n);
	CHECK(list && n == 1 && strcmp(ibv_get_device_name(list[0]), "soft0") == 0);
	context = ibv_open_device(list[0]);
	CHECK(context);
	ibv_free_device_list(list);
	pd = ibv_alloc_pd(context);
	CHECK(pd);
	errno = 0;
	CHECK(!ibv_reg_mr(pd, &byte, 1, IBV_ACCESS_REMOTE_WRITE) && errno == EINVAL); /* without local write */
	CHECK(!ibv_create_cq(context, 0, NULL, NULL, 0) && errno == EINVAL);
	CHECK(!ibv_create_cq(context, 1 << 30, NULL, NULL, 0) && errno == EINVAL);
	errno = 77;
	CHECK(ibv_dealloc_pd(pd) == 0 && errno == 77); /* success leaves it */
	CHECK(ibv_close_device(context) == 0);
	CHECK(riomap(0, &byte, 1, 0, 0, 0) == -1 && errno == EBADF); /* no rsocket */
}

/* The descriptor of a channel is one that poll waits for. */
static void descriptors(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct pollfd p = {.fd = channel->fd, .events = POLLIN};
	struct sockaddr_in to = loopback(7);
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;

	CHECK(poll(&p, 1, 0) == 0);
	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 1000) == 0);
	CHECK(poll(&p, 1, -1) == 1);
	CHECK(rdma_get_cm_event(channel, &event) == 0);
	CHECK(poll(&p, 1, 0) == 0);
	CHECK(rdma_ack_cm_event(event) == 0);
}

static volatile sig_atomic_t caught;

/* Needs more than a small stack has. */
static void handler(int sig)
{
	char room[12 << 10];

	memset(room, sig, sizeof(room));
	__asm__ volatile("" : : "r"(room) : "memory");
	caught++;
}

/* Signals end waits, and their handlers have a stack to run on. */
static void interrupted(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct itimerval often = {{0, 500}, {0, 500}}, never = {{0}};
	struct sigaction a = {.sa_handler = handler};
	struct rdma_cm_event *event;

	CHECK(channel);
	CHECK(sigaction(SIGALRM, &a, NULL) == 0);
	CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
	for (int i = 0; i < 300; i++)
		CHECK(rdma_get_cm_event(channel, &event) == -1 && errno == EINTR);
	CHECK(caught >= 300);
	/* BSD's way restarts calls, also those of Go: nothing is seen of the signals. */
	CHECK(signal(SIGALRM, handler) == handler);
	for (int i = 0; i < 300; i++)
		resolve(channel);
	CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
}

static struct ibv_context *device;
static volatile sig_atomic_t refused, answered;

static void query(int sig)
{
	struct ibv_device_attr attr;
	int e = errno, status = ibv_query_device(device, &attr);

	CHECK(status == 0 || status == EDEADLK);
	if (status)
		refused++;
	else
		answered++;
	errno = e;
}

static void query_at_end(void)
{
	struct ibv_device_attr attr;
	int status = ibv_query_device(device, &attr);

	CHECK(status == 0 || status == EDEADLK);
}

static void exit_at_once(int sig)
{
	exit(8);
}

/* A signal handler may call functions, and may exit from within one. */
static void handled(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct itimerval often = {{0, 100}, {0, 100}};
	struct ibv_device_attr attr;

	CHECK(list && (device = ibv_open_device(list[0])));
	CHECK(signal(SIGALRM, query) != SIG_ERR);
	CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
	while (refused < 100)
		CHECK(ibv_query_device(device, &attr) == 0);
	while (answered < 100)
		;
	CHECK(atexit(query_at_end) == 0);
	CHECK(signal(SIGALRM, exit_at_once) != SIG_ERR);
	for (;;)
		CHECK(ibv_query_device(device, &attr) == 0);
}

static void *query_once(void *nothing)
{
	struct ibv_device_attr attr;

	CHECK(ibv_query_device(device, &attr) == 0);
	return nothing;
}

static int mappings(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	int c, lines = 0;

	CHECK(maps);
	while ((c = getc(maps)) != EOF)
		lines += c == '\n';
	fclose(maps);
	return lines;
}

/* Threads that end leave nothing behind, also while signals arrive. */
static void threads_end(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct itimerval often = {{0, 100}, {0, 100}};
	struct sigaction a = {.sa_handler = handler, .sa_flags = SA_RESTART};
	pthread_t thread;
	int before = 0;

	CHECK(list && (device = ibv_open_device(list[0])));
	CHECK(sigaction(SIGALRM, &a, NULL) == 0);
	CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
	for (int i = 0; i < 1100; i++) {
		if (i == 100)
			before = mappings();
		CHECK(pthread_create(&thread, NULL, query_once, NULL) == 0);
		CHECK(pthread_join(thread, NULL) == 0);
	}
	CHECK(mappings() < before + 100);
}

/* Go's threads take no signals: one that the program blocks waits for it. */
static void blocked(void)
{
	sigset_t set;
	int sig;

	resolve(rdma_create_event_channel());
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	CHECK(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
	CHECK(kill(getpid(), SIGTERM) == 0);
	CHECK(sigwait(&set, &sig) == 0 && sig == SIGTERM);
}

static void *wait_for_cm(void *channel)
{
	struct rdma_cm_event *event;

	rdma_get_cm_event(channel, &event);
	return NULL;
}

static void *wait_for_async(void *context)
{
	struct ibv_async_event event;

	ibv_get_async_event(context, &event);
	return NULL;
}

static void *wait_for_cq(void *channel)
{
	struct ibv_cq *cq;
	void *context;

	ibv_get_cq_event(channel, &cq, &context);
	return NULL;
}

static void *wait_for_request(void *listener)
{
	struct rdma_cm_id *id;

	rdma_get_request(listener, &id);
	return NULL;
}

/* A thread that waits for an event can be cancelled, before it waits and while it does. */
static void cancelled(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = ibv_open_device(list[0]);
	struct ibv_comp_channel *completions = ibv_create_comp_channel(context);
	struct sockaddr_in at = loopback(0);
	struct rdma_cm_id *listener;
	struct {
		void *(*wait)(void *);
		void *object;
	} all[] = {{wait_for_cm, channel}, {wait_for_async, context}, {wait_for_cq, completions}, {wait_for_request, NULL}};
	enum { KINDS = sizeof(all) / sizeof(all[0]) };
	pthread_t thread;
	void *result;

	CHECK(channel && completions);
	CHECK(rdma_create_id(NULL, &listener, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_bind_addr(listener, (struct sockaddr *)&at) == 0 && rdma_listen(listener, 1) == 0);
	all[KINDS - 1].object = listener;
	alarm(120);
	for (int i = 0; i < 100 * KINDS; i++) {
		CHECK(pthread_create(&thread, NULL, all[i % KINDS].wait, all[i % KINDS].object) == 0);
		if (i / KINDS % 2)
			usleep(1000);
		CHECK(pthread_cancel(thread) == 0);
		CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
	}
	resolve(channel);
	CHECK(rdma_destroy_id(listener) == 0 && ibv_destroy_comp_channel(completions) == 0 && ibv_close_device(context) == 0);
	rdma_destroy_event_channel(channel);
}

static struct rdma_cm_id *written; /* an ID whose event a thread waits for */

/* A thread that is cancelled takes no event with it: the next call gets the event, and then poll finds none. */
static void cancelled_with_event(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct pollfd p = {.fd = channel->fd, .events = POLLIN};
	struct rdma_cm_event *event;
	pthread_t thread;
	void *result;

	CHECK(rdma_create_id(channel, &written, NULL, RDMA_PS_TCP) == 0);
	alarm(120);
	for (int i = 0; i < 300; i++) {
		CHECK(pthread_create(&thread, NULL, wait_for_cm, channel) == 0);
		usleep(1000);
		CHECK(rdma_write_cm_event(written, RDMA_CM_EVENT_USER, i, 0) == 0);
		CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
		if (result != PTHREAD_CANCELED)
			continue; /* it has taken the event, and not acknowledged it */
		CHECK(poll(&p, 1, 0) == 1);
		CHECK(rdma_get_cm_event(channel, &event) == 0 && event->status == i && rdma_ack_cm_event(event) == 0);
		CHECK(poll(&p, 1, 0) == 0);
	}
}

static pthread_barrier_t both;

/* Posts a request when this thread has been cancelled. */
static void *post(void *qp)
{
	struct ibv_send_wr wr = {.opcode = IBV_WR_SEND}, *bad;
	struct ibv_context *context = ((struct ibv_qp *)qp)->context;
	int before;

	CHECK(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before) == 0);
	pthread_barrier_wait(&both);
	pthread_barrier_wait(&both);
	CHECK(pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &before) == 0);
	CHECK(context->ops.post_send(qp, &wr, &bad) == 0);
	return NULL;
}

/* Posting, which has mutexes locked, cannot be cancelled, also when it wakes the device. */
static void cancelled_while_posting(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = ibv_open_device(list[0]);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 1, NULL, NULL, 0);
	struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {1, 1, 1, 1, 0}};
	struct ibv_qp_attr failed = {.qp_state = IBV_QPS_ERR};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	pthread_t thread;
	void *result;
	struct ibv_wc wc;

	CHECK(qp && ibv_modify_qp(qp, &failed, IBV_QP_STATE) == 0 && pthread_barrier_init(&both, NULL, 2) == 0);
	alarm(120);
	for (int i = 0; i < 20; i++) {
		CHECK(pthread_create(&thread, NULL, post, qp) == 0);
		pthread_barrier_wait(&both);
		usleep(20000); /* the device sleeps then */
		CHECK(pthread_cancel(thread) == 0);
		pthread_barrier_wait(&both);
		CHECK(pthread_join(thread, &result) == 0 && result == NULL);
		while (context->ops.poll_cq(cq, 1, &wc) == 0)
			;
	}
}

static int status_of(pid_t child)
{
	int status;

	CHECK(waitpid(child, &status, 0) == child);
	return status;
}

/* A child cannot use its parent's device, and is told so. */
static void forked(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = ibv_open_device(list[0]);
	struct rdma_cm_id *id;
	pid_t child;

	CHECK(channel && context);
	child = fork();
	if (child == 0) {
		alarm(120);
		CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == -1 && errno == ENODEV);
		CHECK(!ibv_alloc_pd(context) && errno == ENODEV);
		CHECK(!ibv_get_device_list(NULL) && errno == ENODEV);
		CHECK(ibv_close_device(context) == ENODEV);
		CHECK(strcmp(ibv_get_device_name(list[0]), "soft0") == 0); /* needs no Go */
		exit(5);
	}
	int status = status_of(child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 5);
	resolve(channel);
	CHECK(ibv_close_device(context) == 0);
}

/* A program that forks before the first call, as servers do, has the device in the child. */
static void forked_first(void)
{
	pid_t child = fork();

	if (child == 0) {
		resolve(rdma_create_event_channel());
		exit(6);
	}
	int status = status_of(child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 6);
	resolve(rdma_create_event_channel());
}

static void *work(void *channel)
{
	for (;;)
		resolve(channel);
	return NULL;
}

static void *wait_for_nothing(void *channel)
{
	struct rdma_cm_event *event;

	rdma_get_cm_event(channel, &event);
	return NULL;
}

/* A program may end at any time. */
static void leave(void)
{
	pthread_t thread;

	for (int i = 0; i < 4; i++) {
		struct rdma_event_channel *channel = rdma_create_event_channel();

		CHECK(channel);
		CHECK(pthread_create(&thread, NULL, i ? work : wait_for_nothing, channel) == 0);
	}
	usleep(3000); /* some way into the work, wherever that is */
	exit(7);
}

/* Waits in the library, for a signal. */
static void wait_forever(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();

	CHECK(channel);
	puts("waiting");
	fflush(stdout);
	wait_for_nothing(channel);
}

/* Writes to a pipe that is not read. */
static void write_in_vain(void)
{
	int ends[2];

	resolve(rdma_create_event_channel());
	CHECK(pipe(ends) == 0 && close(ends[0]) == 0);
	write(ends[1], "", 1);
}

static void write_in_vain_ignored(void)
{
	int ends[2];

	resolve(rdma_create_event_channel());
	CHECK(signal(SIGPIPE, SIG_IGN) != SIG_ERR);
	CHECK(pipe(ends) == 0 && close(ends[0]) == 0);
	CHECK(write(ends[1], "", 1) == -1 && errno == EPIPE);
}

/* Reads what is not there. */
static void crash(void)
{
	volatile int *volatile nowhere = NULL;

	resolve(rdma_create_event_channel());
	*nowhere = 1;
}

static void fail_without_device(void)
{
	CHECK(!rdma_create_event_channel() && errno == ENOSYS);
	CHECK(!ibv_get_device_list(NULL) && errno == ENOSYS);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*test)(void);
	} tests[] = {
		{"errors", errors},
		{"descriptors", descriptors},
		{"interrupted", interrupted},
		{"handled", handled},
		{"threads_end", threads_end},
		{"blocked", blocked},
		{"cancelled", cancelled},
		{"cancelled_with_event", cancelled_with_event},
		{"cancelled_while_posting", cancelled_while_posting},
		{"forked", forked},
		{"forked_first", forked_first},
		{"leave", leave},
		{"wait_forever", wait_forever},
		{"write_in_vain", write_in_vain},
		{"write_in_vain_ignored", write_in_vain_ignored},
		{"crash", crash},
		{"fail_without_device", fail_without_device},
	};

	for (size_t i = 0; argc == 2 && i < sizeof(tests) / sizeof(tests[0]); i++) {
		if (strcmp(tests[i].name, argv[1]) == 0) {
			tests[i].test();
			return 0;
		}
	}
	fprintf(stderr, "no such test\n");
	return 2;
}
