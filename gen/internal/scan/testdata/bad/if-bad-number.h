#if 1z
#endif
