struct s {
	int n;
	char data[];
};
