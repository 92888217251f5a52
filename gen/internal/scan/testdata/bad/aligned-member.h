struct s {
	int a __attribute__((aligned(16)));
};
