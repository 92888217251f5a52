/* Compiled by fakelib as a librdmacm.so.1 that uses the libibverbs.so.1 of
 * provider.c, and records every call as that does. Each request of an id
 * succeeds: the event is there when the call returns. */

#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "abi.h"
#include "calls.h"

#define EVENTS 1024
#define PEER_QP 99
#define RAI_PASSIVE 1

/* Unread events, oldest first. */
static struct rdma_cm_event *events[EVENTS];
static int unread;

static struct ibv_context *context; /* context of the one device */

static struct ibv_context *open_device(void)
{
	int n;

	if (!context)
		context = ibv_open_device(ibv_get_device_list(&n)[0]);
	return context;
}

static struct rdma_event_channel *do_rdma_create_event_channel(void)
{
	struct rdma_event_channel *channel = new_object(sizeof(*channel));

	channel->fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
	return channel;
}

static void do_rdma_destroy_event_channel(struct rdma_event_channel *channel)
{
	close(channel->fd);
	free_object(channel);
}

/* emit queues an event, which is a call that Go can plan. */
static void emit(struct rdma_cm_id *id, struct rdma_cm_id *listener, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event = new_object(sizeof(*event));
	struct call call = enter("event", 1, (int64_t[]){ (int64_t)event });

	event->id = id;
	event->listen_id = listener;
	event->event = type;
	if (type == RDMA_CM_EVENT_CONNECT_REQUEST || type == RDMA_CM_EVENT_CONNECT_RESPONSE)
		event->param.conn.qp_num = PEER_QP;
	if (id->qp_type == IBV_QPT_UD)
		event->param.ud.ah_attr.port_num = 1;
	leave(&call);
	pthread_mutex_lock(&lock);
	if (unread == EVENTS)
		fail("too many events");
	events[unread++] = event;
	pthread_mutex_unlock(&lock);
	eventfd_write(id->channel->fd, 1);
}

/* take removes the event at an index. The caller has the lock. */
static struct rdma_cm_event *take(int i)
{
	struct rdma_cm_event *event = events[i];

	unread--;
	memmove(&events[i], &events[i + 1], (unread - i) * sizeof(*events));
	return event;
}

static int do_rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event)
{
	eventfd_t one;
	int i;

	*event = NULL;
	do {
		if (eventfd_read(channel->fd, &one))
			return -1; /* EAGAIN */
		pthread_mutex_lock(&lock);
		for (i = 0; i < unread && events[i]->id->channel != channel; i++)
			;
		if (i < unread)
			*event = take(i);
		pthread_mutex_unlock(&lock);
	} while (!*event); /* the event's id was destroyed */
	return 0;
}

static int do_rdma_ack_cm_event(struct rdma_cm_event *event)
{
	return free_object(event);
}

/* An id, with fields that only this library knows. */
struct own_id {
	struct rdma_cm_id id;
	int disconnected;
};

static struct rdma_cm_id *new_id(struct rdma_event_channel *channel, void *value, enum rdma_port_space ps)
{
	struct rdma_cm_id *id = new_object(sizeof(struct own_id));

	id->channel = channel;
	id->context = value;
	id->ps = ps;
	id->qp_type = ps == RDMA_PS_UDP || ps == RDMA_PS_IPOIB ? IBV_QPT_UD : IBV_QPT_RC;
	return id;
}

static int do_rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id, void *value, enum rdma_port_space ps)
{
	*id = new_id(channel, value, ps);
	return 0;
}

static void bind_device(struct rdma_cm_id *id)
{
	id->verbs = open_device();
	id->port_num = 1;
}

static int do_rdma_getaddrinfo(const char *node, const char *service, const struct rdma_addrinfo *hints,
			       struct rdma_addrinfo **res)
{
	static struct sockaddr_in addr = { .sin_family = AF_INET };
	struct rdma_addrinfo *info = new_object(sizeof(*info));

	*info = *hints;
	info->ai_family = AF_INET;
	if (info->ai_flags & RAI_PASSIVE) {
		info->ai_src_addr = (struct sockaddr *)&addr;
		info->ai_src_len = sizeof(addr);
	} else {
		info->ai_dst_addr = (struct sockaddr *)&addr;
		info->ai_dst_len = sizeof(addr);
	}
	*res = info;
	return 0;
}

static void do_rdma_freeaddrinfo(struct rdma_addrinfo *info)
{
	free_object(info);
}

static int do_rdma_create_ep(struct rdma_cm_id **id, struct rdma_addrinfo *res, struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	*id = new_id(NULL, NULL, res->ai_port_space);
	(*id)->qp_type = res->ai_qp_type;
	bind_device(*id);
	return 0;
}

/* take_of removes an event of an id, or of a request to it. */
static struct rdma_cm_event *take_of(struct rdma_cm_id *id)
{
	struct rdma_cm_event *event = NULL;
	int i;

	pthread_mutex_lock(&lock);
	for (i = 0; i < unread && events[i]->id != id && events[i]->listen_id != id; i++)
		;
	if (i < unread)
		event = take(i);
	pthread_mutex_unlock(&lock);
	return event;
}

/* Unread events of the id, requests included, are dropped with it. */
static int do_rdma_destroy_id(struct rdma_cm_id *id)
{
	struct rdma_cm_event *event;

	while ((event = take_of(id))) {
		if (event->listen_id == id)
			free_object(event->id);
		free_object(event);
	}
	return free_object(id);
}

static void do_rdma_destroy_ep(struct rdma_cm_id *id)
{
	do_rdma_destroy_id(id);
}

static int do_rdma_bind_addr(struct rdma_cm_id *id, struct sockaddr *addr)
{
	struct sockaddr_in *in = (struct sockaddr_in *)addr;

	memcpy(&id->route.addr.src_storage, addr, sizeof(struct sockaddr_in));
	/* The kernel gives no device to an ID that is bound to a loopback address. */
	if (addr->sa_family != AF_INET || ntohl(in->sin_addr.s_addr) >> 24 != 127)
		bind_device(id);
	return 0;
}

static int do_rdma_resolve_addr(struct rdma_cm_id *id, struct sockaddr *src, struct sockaddr *dst, int timeout_ms)
{
	memcpy(&id->route.addr.src_storage, src ? src : dst, sizeof(struct sockaddr_in));
	memcpy(&id->route.addr.dst_storage, dst, sizeof(struct sockaddr_in));
	bind_device(id);
	emit(id, NULL, RDMA_CM_EVENT_ADDR_RESOLVED);
	return 0;
}

static int do_rdma_resolve_route(struct rdma_cm_id *id, int timeout_ms)
{
	emit(id, NULL, RDMA_CM_EVENT_ROUTE_RESOLVED);
	return 0;
}

static int do_rdma_set_option(struct rdma_cm_id *id, int level, int name, void *value, size_t size)
{
	if (level == RDMA_OPTION_IB)
		emit(id, NULL, RDMA_CM_EVENT_ROUTE_RESOLVED);
	return 0;
}

static int do_rdma_create_qp_ex(struct rdma_cm_id *id, struct ibv_qp_init_attr_ex *attr)
{
	char *verbs = (char *)id->verbs - offsetof(struct verbs_context, context);

	if (attr->comp_mask & IBV_QP_INIT_ATTR_PD)
		id->qp = ibv_create_qp(attr->pd, (struct ibv_qp_init_attr *)attr);
	else
		id->qp = ((struct verbs_context *)verbs)->create_qp_ex(id->verbs, attr);
	return id->qp ? 0 : -1;
}

static int do_rdma_init_qp_attr(struct rdma_cm_id *id, struct ibv_qp_attr *attr, int *mask)
{
	*mask = IBV_QP_STATE;
	switch (attr->qp_state) {
	case IBV_QPS_INIT:
		*mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
		break;
	case IBV_QPS_RTR:
		*mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
		break;
	case IBV_QPS_RTS:
		*mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
		break;
	default:
		break;
	}
	attr->port_num = attr->ah_attr.port_num = id->port_num;
	attr->path_mtu = IBV_MTU_1024;
	return 0;
}

static int do_rdma_listen(struct rdma_cm_id *id, int backlog)
{
	struct rdma_cm_id *request = new_id(id->channel, id->context, id->ps);

	request->qp_type = id->qp_type;
	bind_device(request);
	request->route.addr.src_storage = id->route.addr.src_storage;
	request->route.addr.dst_storage = id->route.addr.src_storage;
	emit(request, id, RDMA_CM_EVENT_CONNECT_REQUEST);
	return 0;
}

static int do_rdma_connect(struct rdma_cm_id *id, struct rdma_conn_param *param)
{
	emit(id, NULL, id->qp ? RDMA_CM_EVENT_ESTABLISHED : RDMA_CM_EVENT_CONNECT_RESPONSE);
	return 0;
}

static int do_rdma_accept(struct rdma_cm_id *id, struct rdma_conn_param *param)
{
	emit(id, NULL, RDMA_CM_EVENT_ESTABLISHED);
	return 0;
}

static int do_rdma_disconnect(struct rdma_cm_id *id)
{
	if (!__atomic_exchange_n(&((struct own_id *)id)->disconnected, 1, __ATOMIC_SEQ_CST))
		emit(id, NULL, RDMA_CM_EVENT_DISCONNECTED);
	return 0;
}

static int do_rdma_join_multicast(struct rdma_cm_id *id, struct sockaddr *addr, void *value)
{
	emit(id, NULL, RDMA_CM_EVENT_MULTICAST_JOIN);
	return 0;
}

static int do_rdma_write_cm_event(struct rdma_cm_id *id, enum rdma_cm_event_type type, int status, uint64_t arg)
{
	emit(id, NULL, type);
	return 0;
}

static int do_rdma_migrate_id(struct rdma_cm_id *id, struct rdma_event_channel *channel)
{
	id->channel = channel;
	return 0;
}

static struct ibv_context **do_rdma_get_devices(int *n)
{
	struct ibv_context **list = new_object(2 * sizeof(*list));

	list[0] = open_device();
	*n = 1;
	return list;
}

static void do_rdma_free_devices(struct ibv_context **list)
{
	free_object(list);
}

#include "functions.h"
