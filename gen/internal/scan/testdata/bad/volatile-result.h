volatile int *ibv_plain(void);
