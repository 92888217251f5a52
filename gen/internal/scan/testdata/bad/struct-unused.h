struct { int a; };
int ibv_plain(void);
