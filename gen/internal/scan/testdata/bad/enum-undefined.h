int ibv_plain(enum missing m);
struct s { enum missing *m; };
