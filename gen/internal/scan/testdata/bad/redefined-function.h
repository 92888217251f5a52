int ibv_twice(int a);
long ibv_twice(int a);
