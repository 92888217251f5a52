// SPDX-License-Identifier: Apache-2.0

/* What of rsockets only a C program sees: forks and signals. */

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

int rsocket(int domain, int type, int protocol);
int rbind(int socket, const struct sockaddr *addr, socklen_t addrlen);
int rlisten(int socket, int backlog);
int raccept(int socket, struct sockaddr *addr, socklen_t *addrlen);
int rconnect(int socket, const struct sockaddr *addr, socklen_t addrlen);
int rgetsockname(int socket, struct sockaddr *addr, socklen_t *addrlen);
int rclose(int socket);
ssize_t rrecv(int socket, void *buf, size_t len, int flags);
ssize_t rsend(int socket, const void *buf, size_t len, int flags);
int rpoll(struct pollfd *fds, nfds_t nfds, int timeout);
int rselect(int nfds, fd_set *readfds, fd_set *writefds, fd_set *exceptfds, struct timeval *timeout);

#define CHECK(condition)                                                                                               \
	do {                                                                                                           \
		if (!(condition)) {                                                                                    \
			printf("line %d: not " #condition ", errno %d\n", __LINE__, errno);                            \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

static int threads(void)
{
	DIR *d = opendir("/proc/self/task");
	int n = -2;

	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

/* Makes a pair of connected sockets. */
static void connect_pair(int pair[2])
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t length = sizeof(at);
	int listener = rsocket(AF_INET, SOCK_STREAM, 0);

	CHECK(listener >= 0);
	CHECK(rbind(listener, (struct sockaddr *)&at, sizeof(at)) == 0);
	CHECK(rgetsockname(listener, (struct sockaddr *)&at, &length) == 0 && at.sin_port);
	CHECK(rlisten(listener, 1) == 0);
	pair[0] = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(pair[0] >= 0);
	CHECK(rconnect(pair[0], (struct sockaddr *)&at, sizeof(at)) == 0);
	pair[1] = raccept(listener, NULL, NULL);
	CHECK(pair[1] >= 0);
	CHECK(rclose(listener) == 0);
}

static void use_pair(void)
{
	char b[3];
	int pair[2];

	connect_pair(pair);
	CHECK(rsend(pair[0], "abc", 3, 0) == 3);
	CHECK(rrecv(pair[1], b, 3, MSG_WAITALL) == 3 && memcmp(b, "abc", 3) == 0);
	CHECK(rclose(pair[0]) == 0 && rclose(pair[1]) == 0);
}

/* Looks at a pipe in each way. */
static void look_at_pipe(void)
{
	struct timeval soon = {.tv_usec = 1000};
	struct pollfd fd = {.events = POLLIN};
	int ends[2];
	fd_set set;

	CHECK(pipe(ends) == 0);
	fd.fd = ends[0];
	CHECK(rpoll(&fd, 1, 1) == 0);
	FD_ZERO(&set);
	FD_SET(ends[0], &set);
	CHECK(rselect(ends[0] + 1, &set, NULL, NULL, &soon) == 0 && !FD_ISSET(ends[0], &set));
	CHECK(write(ends[1], "x", 1) == 1);
	CHECK(rpoll(&fd, 1, -1) == 1 && fd.revents == POLLIN);
	FD_SET(ends[0], &set);
	CHECK(rselect(ends[0] + 1, &set, NULL, NULL, NULL) == 1 && FD_ISSET(ends[0], &set));
	close(ends[0]);
	close(ends[1]);
}

static void in_child(void (*f)(void))
{
	pid_t child = fork();
	int status;

	CHECK(child >= 0);
	if (child == 0) {
		alarm(120);
		f();
		fflush(stdout);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void have_no_device(void)
{
	char b;

	look_at_pipe();
	CHECK(rsocket(AF_INET, SOCK_STREAM, 0) == -1 && errno == ENODEV);
	CHECK(rrecv(0, &b, 1, 0) == -1 && errno == ENODEV);
}

/* librspreload makes poll and select of every program rpoll. */
static void test_fork(void)
{
	look_at_pipe();
	CHECK(threads() == 1); /* the device is not loaded yet */
	in_child(use_pair);    /* so the child can have its own */
	use_pair();
	look_at_pipe();
	in_child(have_no_device);
	use_pair();
}

static volatile sig_atomic_t signals;

static void count(int sig)
{
	signals++;
}

/* Sends when some signals have come. */
static void *send_later(void *socket)
{
	int enough = signals + 3;

	while (signals < enough)
		usleep(1000);
	CHECK(rsend(*(int *)socket, "x", 1, 0) == 1);
	return NULL;
}

/*
 * A signal interrupts calls as the manual pages of sockets say. Signals come
 * again and again, as the first may come before the call.
 */
static void test_signals(void)
{
	struct itimerval often = {.it_value.tv_usec = 50000, .it_interval.tv_usec = 50000}, never = {};
	struct sigaction action = {.sa_handler = count};
	struct pollfd fd = {.events = POLLIN};
	pthread_t sender;
	sigset_t alarms;
	int pair[2];
	char b;

	connect_pair(pair);
	fd.fd = pair[0];
	CHECK(sigaction(SIGALRM, &action, NULL) == 0);
	CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
	CHECK(rrecv(pair[0], &b, 1, 0) == -1 && errno == EINTR && signals > 0);
	CHECK(rpoll(&fd, 1, -1) == -1 && errno == EINTR);

	action.sa_flags = SA_RESTART;
	CHECK(sigaction(SIGALRM, &action, NULL) == 0);
	CHECK(rpoll(&fd, 1, -1) == -1 && errno == EINTR);
	sigemptyset(&alarms);
	sigaddset(&alarms, SIGALRM);
	pthread_sigmask(SIG_BLOCK, &alarms, NULL); /* in the sender */
	CHECK(pthread_create(&sender, NULL, send_later, &pair[1]) == 0);
	pthread_sigmask(SIG_UNBLOCK, &alarms, NULL);
	CHECK(rrecv(pair[0], &b, 1, 0) == 1);
	CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
	CHECK(pthread_join(sender, NULL) == 0);
	CHECK(rclose(pair[0]) == 0 && rclose(pair[1]) == 0);
}

/* No call raises SIGPIPE. */
static void test_pipe(void)
{
	int pair[2];

	connect_pair(pair);
	CHECK(rclose(pair[1]) == 0);
	while (rsend(pair[0], "x", 1, 0) == 1)
		;
	CHECK(errno == ECONNRESET);
	CHECK(rclose(pair[0]) == 0);
	CHECK(rclose(pair[0]) == EBADF); /* as C's does */
}

int main(int argc, char **argv)
{
	if (strcmp(argv[1], "fork") == 0)
		test_fork();
	else if (strcmp(argv[1], "signals") == 0)
		test_signals();
	else if (strcmp(argv[1], "pipe") == 0)
		test_pipe();
	else
		return 2;
	return 0;
}
