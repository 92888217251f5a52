int ibv_own(a) int a;
int ibv_plain(void);
