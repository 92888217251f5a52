int ibv_plain(int é);
