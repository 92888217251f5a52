struct s {
	int a;
	int b : 3;
};
