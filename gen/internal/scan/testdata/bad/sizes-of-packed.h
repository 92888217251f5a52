struct s { char a; int b; } __attribute__((packed));
typedef struct s s_t;
struct t { char pad[16 - sizeof(s_t)]; };
enum { SIZE = sizeof(struct s) };
#define OFFSET __builtin_offsetof(struct s, b)
#define AGAIN (OFFSET + 1)
