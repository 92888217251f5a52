int ibv_plain(void)[3];
