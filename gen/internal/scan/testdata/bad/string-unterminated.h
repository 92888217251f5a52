static inline const char *ibv_own(void)
{
	return "text;
}
