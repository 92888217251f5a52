struct s {
	char a;
} __attribute__((aligned(16)));
