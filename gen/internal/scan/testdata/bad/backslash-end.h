int ibv_plain(void); \
