struct s {
	int a;
	union {
		int b;
		struct {
			int a;
		};
	};
};
