struct { int x; } ibv_plain(void);
int ibv_twice(struct { int x; } *p);
int ibv_dispatch(enum { X });
struct s { enum { FIRST_ONE } e; };
