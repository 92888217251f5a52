int ibv_plain(int größe);
