struct s {
	_Static_assert(0, "never");
	int a;
};
