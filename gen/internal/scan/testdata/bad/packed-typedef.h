typedef struct s {
	char a;
	int b;
} s_t __attribute__((packed));
