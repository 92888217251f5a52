int ibv_plain(void x);
int ibv_twice(int first, void);
