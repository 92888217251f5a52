/* One declaration of every kind, as testdata/snapshot.json describes them. */
#include <pthread.h>
#include <stdint.h>

enum color {
	RED,
	GREEN = 7,
};

enum level {
	LOW = -1,
};

enum {
	LOOSE = 3,
};

#define LIMIT 0x8000000000000000ULL
#define NOTHING ((void *)-1)
#define VERT GREEN
#define tint color

struct inner {
	char text[16];
	enum color color;
	uint32_t number;
};

struct outer {
	struct inner inner;
	const char *name;
	union {
		uint64_t wide;
		struct {
			uint8_t first;
			uint16_t second;
		} parts;
	};
	int (*call)(struct outer *outer, enum color color);
	enum level level;
	pthread_mutex_t mutex;
};

int paint(struct outer *outer, const enum color *colors, int n);
int print(const char *format, ...);
enum color mix(enum color a, unsigned int b) __attribute__((const));
int loose();

static inline int count(void)
{
	return 3;
}
#define paint(outer, colors, n) paint(outer, colors, (n) + 1)
