struct s {
	char a;
	int b;
} __attribute__((packed));
