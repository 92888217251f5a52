__typeof__(int) ibv_plain(void);
