static int ibv_own(a, b) int a; int b;
{
	return a + b;
}
