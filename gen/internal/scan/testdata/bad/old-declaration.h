int ibv_plain();
struct s { int (*call)(); };
