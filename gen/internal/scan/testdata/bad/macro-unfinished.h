#define CALL(x) x
#define OPEN CALL(
int ibv_plain(void);
