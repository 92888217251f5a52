#define NOTHING
#if NOTHING
#endif
