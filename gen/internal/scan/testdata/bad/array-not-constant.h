int ibv_plain(int n, int a[n]);
