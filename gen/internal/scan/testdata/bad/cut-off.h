int ibv_plain(int x
