enum kind { KIND_A, KIND_B = 7, KIND_C };

enum level {
	LEVEL_BELOW = -3,
	LEVEL_MIDDLE,
	LEVEL_ABOVE = 2147483647,
};

enum bits {
	BIT_0 = 1 << 0,
	BIT_31 = 1u << 31,
	BITS = BIT_0 | BIT_31,
};

enum { FIRST_ONE = 5, SECOND_ONE };

struct with_enum {
	enum color { RED, GREEN } color;
	enum kind kind;
};

#define OTHER_KIND KIND_B
#define kind_alias kind
#define NUMBER 0x10
#define NEGATIVE -1
#define BIG 0xffffffffffffffffULL
#define SUM (NUMBER + KIND_B)
#define ADDRESS ((void *)(uintptr_t)-1)
#define WITHOUT_VALUE
#define TEXT "text"
#define CALL(x) (x)
