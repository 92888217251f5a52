/* Part of each library that records its calls: calls, plans for them, and
 * objects. Each library has a copy of this file. */

#define NAME_SIZE 48
#define ARGS 8
#define CALLS 4096
#define PLANS 16
#define OBJECTS 4096

/* Memory that an argument points to, as it was when the call began. */
struct copy {
	struct copy *next;
	const void *address;
	size_t size;
	unsigned char bytes[];
};

/* What Go has planned for the next call of a function, or of one on an object. */
struct plan {
	char name[NAME_SIZE];
	int64_t object; /* the call's first argument must be this; 0: any */
	int64_t holds; /* 1: the call waits for Go before it does anything */
	int64_t instead; /* 1: the call does nothing, and returns result and error */
	int64_t result;
	int64_t error;
	int64_t arg; /* argument that is an address; the call writes size bytes at this address plus offset */
	int64_t offset;
	int64_t size;
	unsigned char bytes[256];
};

struct call {
	char name[NAME_SIZE];
	int64_t count; /* number of arguments */
	int64_t args[ARGS];
	int64_t result;
	struct copy *copies;
	struct plan plan;
};

/* Go has the same structs. */
struct provider {
	int64_t calls; /* number of calls; the first CALLS are in log, in the order of their ends */
	struct call *log[CALLS];
	int64_t plans; /* number of plans, the oldest first in plan */
	struct plan plan[PLANS];
	int64_t live; /* number of objects that are not destroyed */
	int64_t held; /* number of calls that wait for Go */
	int64_t released; /* 1: these calls need not wait any more */
	int64_t busy; /* 1: a thread, of C or of Go, uses the log or the plans */
} provider;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* begin_use and end_use guard the log and the plans, also against Go, which cannot lock a mutex. */
static void begin_use(void)
{
	while (__atomic_exchange_n(&provider.busy, 1, __ATOMIC_ACQUIRE))
		sched_yield();
}

static void end_use(void)
{
	__atomic_store_n(&provider.busy, 0, __ATOMIC_RELEASE);
}

static void fail(const char *what)
{
	fprintf(stderr, "fakelib: %s\n", what);
	abort();
}

static void copy(struct call *call, const void *address, size_t size)
{
	struct copy *c;

	if (!address || !size)
		return;
	c = malloc(sizeof(*c) + size);
	c->next = call->copies;
	c->address = address;
	c->size = size;
	memcpy(c->bytes, address, size);
	call->copies = c;
}

#define COPY(pointer) copy(&call, (pointer), sizeof(*(pointer)))

static int is_for(const struct plan *plan, const struct call *call)
{
	return !strcmp(plan->name, call->name) && (!plan->object || (call->count && plan->object == call->args[0]));
}

static struct call enter(const char *name, int64_t count, const int64_t *args)
{
	struct call call = { .count = count };
	int i;

	strncpy(call.name, name, NAME_SIZE - 1);
	memcpy(call.args, args, count * sizeof(*args));
	begin_use();
	for (i = 0; i < provider.plans && !is_for(&provider.plan[i], &call); i++)
		;
	if (i < provider.plans) {
		call.plan = provider.plan[i];
		provider.plans--;
		memmove(&provider.plan[i], &provider.plan[i + 1], (provider.plans - i) * sizeof(struct plan));
	}
	end_use();
	return call;
}

/* planned carries out the call's plan, and reports whether the plan has set the result. */
static int planned(struct call *call)
{
	if (call->plan.holds) {
		__atomic_add_fetch(&provider.held, 1, __ATOMIC_SEQ_CST);
		while (!__atomic_load_n(&provider.released, __ATOMIC_SEQ_CST))
			usleep(1000);
		__atomic_sub_fetch(&provider.held, 1, __ATOMIC_SEQ_CST);
	}
	if (call->plan.instead)
		call->result = call->plan.result;
	return (int)call->plan.instead;
}

static void leave(struct call *call)
{
	int error = call->plan.instead ? (int)call->plan.error : errno;
	struct call *kept;

	/* The bindings may read events at any time, so failing reads are not recorded. */
	if (!strcmp(call->name, "ibv_get_async_event") && error == EAGAIN) {
		errno = error;
		return;
	}
	kept = malloc(sizeof(*kept));
	if (call->plan.size)
		memcpy((char *)call->args[call->plan.arg] + call->plan.offset, call->plan.bytes, call->plan.size);
	*kept = *call;
	begin_use();
	if (provider.calls < CALLS)
		provider.log[provider.calls] = kept;
	provider.calls++;
	end_use();
	errno = error;
}

/* Objects. Destroying an object twice, or something that is no object, ends the program. */

static void *objects[OBJECTS];

static void replace_object(void *old, void *new)
{
	int i;

	pthread_mutex_lock(&lock);
	for (i = 0; i < OBJECTS && objects[i] != old; i++)
		;
	if (i == OBJECTS)
		fail(old ? "destroys what is no object" : "too many objects");
	objects[i] = new;
	provider.live += new ? 1 : -1;
	pthread_mutex_unlock(&lock);
}

static void *new_object(size_t size)
{
	void *object = calloc(1, size);

	if (object)
		replace_object(NULL, object);
	return object;
}

/* Fills freed memory with nonsense, so that a later use of it is noticed. */
static int free_object(void *object)
{
	volatile unsigned char *bytes = object;
	size_t size = malloc_usable_size(object);

	replace_object(object, NULL);
	while (size--)
		bytes[size] = 0x5a;
	free(object);
	return 0;
}
