struct s {
	int n;
	char data[];
	int m;
};
union u {
	int n;
	char data[0];
};
struct t {
	char data[];
};
struct v {
	int n;
	char data[][0];
};
