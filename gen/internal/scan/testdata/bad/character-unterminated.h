#define QUOTE '
int ibv_plain(void);
