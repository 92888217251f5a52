_Pragma("pack(1)")
struct s {
	char a;
	int b;
};
