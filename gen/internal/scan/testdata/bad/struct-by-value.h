struct s { int a; };
int ibv_plain(struct s s);
struct s ibv_number(void);
