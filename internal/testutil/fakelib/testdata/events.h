/* Part of provider.c: asynchronous events. */

/* What the kernel reports of an event: the address of the object, or
 * the number of a port. Go writes it to the device's descriptor. */
struct event_desc {
	uint64_t element;
	uint32_t event_type;
	uint32_t reserved;
};

/* event_file returns a descriptor of a pipe from which can be read what was written to it. */
static int event_file(void)
{
	char path[32];
	int ends[2], fd;

	if (pipe(ends))
		fail("no pipe");
	snprintf(path, sizeof(path), "/proc/self/fd/%d", ends[0]);
	fd = open(path, O_RDWR | O_CLOEXEC);
	close(ends[0]);
	close(ends[1]);
	return fd;
}

/* acknowledged returns the counter of the acknowledged events of the event's
 * object. Destroying the object waits for it. Ports and devices have none. */
static uint32_t *acknowledged(struct ibv_async_event *event)
{
	switch (event->event_type) {
	case IBV_EVENT_CQ_ERR:
		return &event->element.cq->async_events_completed;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_PATH_MIG:
	case IBV_EVENT_PATH_MIG_ERR:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		return &event->element.qp->events_completed;
	case IBV_EVENT_SRQ_ERR:
	case IBV_EVENT_SRQ_LIMIT_REACHED:
		return &event->element.srq->events_completed;
	case IBV_EVENT_WQ_FATAL:
		return &event->element.wq->events_completed;
	default:
		return NULL;
	}
}

static int do_ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
	struct event_desc desc;

	if (read(context->async_fd, &desc, sizeof(desc)) != sizeof(desc))
		return -1;
	event->event_type = desc.event_type;
	event->element.qp = (struct ibv_qp *)(uintptr_t)desc.element;
	if (!acknowledged(event))
		event->element.port_num = (int)desc.element;
	return 0;
}

static void do_ibv_ack_async_event(struct ibv_async_event *event)
{
	uint32_t *count = acknowledged(event);

	if (count)
		++*count;
}
