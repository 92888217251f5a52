struct s {
	struct {
		char a;
		int b;
	} __attribute__((packed)) in;
};
