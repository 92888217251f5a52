struct s {
	int *};
