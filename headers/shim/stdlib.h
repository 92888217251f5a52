#pragma once
#include <stddef.h>
void *calloc(size_t n, size_t size);
void free(void *memory);
