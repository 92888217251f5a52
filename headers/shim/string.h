#pragma once
#include <stddef.h>
void *memset(void *s, int c, size_t n);
void *memcpy(void *to, const void *from, size_t n);
int memcmp(const void *a, const void *b, size_t n);
