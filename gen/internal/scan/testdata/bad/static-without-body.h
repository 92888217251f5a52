static int ibv_plain(void);
