enum kind { ibv_plain };
int ibv_plain(void);
