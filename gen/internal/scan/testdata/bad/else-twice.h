#if 0
#else
#else
#endif
struct s { int a; };
