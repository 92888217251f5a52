int;
int ibv_plain(void);
