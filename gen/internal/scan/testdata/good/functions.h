#include "infiniband/extra.h"

struct object;

int ibv_plain(struct object *object, unsigned port, uint8_t);
const char *const *ibv_pointers(const struct object *from, struct object *const to, char names[][8]);
void ibv_callbacks(void (*done)(void *context, int status), int (*compare)(const void *a, const void *b));
void ibv_printf(const char *format, ...);
int ibv_twice(int first);
extern int ibv_twice(int first);
uint64_t ibv_number(void);
void ibv_least(const uint8_t key[static 16], int numbers[const static 2], char text[static 1]);
void ibv_counted(int n, const int numbers[n], char *texts[const static n + 1], int rows[n][3], int (*calls[n])(int m, int of[m]), int [n]);
