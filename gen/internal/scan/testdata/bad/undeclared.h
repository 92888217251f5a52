static inline int ibv_own(void)
{
	return undeclared;
}
