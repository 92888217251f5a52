struct s {
	char a;
} __attribute__((aligned));
