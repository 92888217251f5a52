struct s {
	struct t { int b; };
	int a;
};
