#define A ((((((((((((((((((((
#define B A A A A A A A A A A
int ibv_plain(int a[B 1]);
