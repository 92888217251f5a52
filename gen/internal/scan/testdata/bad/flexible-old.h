struct s {
	int n;
	char data[0];
};
