struct only_declared;

struct plain {
	char c;
	long l;
	unsigned char byte, *bytes;
	long long int ll;
	short s;
};

union number {
	uint8_t bytes[16];
	struct {
		__be64 high;
		__be64 low;
	} halves;
};

struct nested {
	struct plain inside;
	struct inner {
		int x;
		union number n;
	} inner;
	struct {
		uint16_t a;
		uint32_t b;
	} here;
	union {
		void *pointer;
		uint32_t number;
		struct {
			uint8_t first;
			uint64_t second;
		} pair;
	};
	uint8_t last;
};

struct arrays {
	char name[64];
	int table[2][3];
	struct plain *pointers[4];
	int (*to_array)[5];
};

struct functions {
	int (*operation)(struct plain *p, const char *const *names, ...);
	void *(*(*getter)(void))(int);
	void (*table[3])(struct only_declared *o);
};

struct times {
	struct timespec when;
	__u64 __attribute__((aligned(8))) aligned;
};
