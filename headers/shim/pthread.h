/* Sizes are the generator's business: these two differ by architecture. */
#pragma once
#include <time.h>
typedef struct { long opaque[5]; } pthread_mutex_t;
typedef struct { long opaque[6]; } pthread_cond_t;
int pthread_mutex_init(pthread_mutex_t *mutex, const void *attr);
int pthread_cond_init(pthread_cond_t *cond, const void *attr);
