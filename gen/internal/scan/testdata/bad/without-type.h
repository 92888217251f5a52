ibv_plain(void);
