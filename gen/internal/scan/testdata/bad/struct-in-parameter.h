int ibv_plain(struct s { int a; } *s);
