extern "C" {
int ibv_plain(void);
}
