struct s {
	char a;
	int b __attribute__((__packed__));
};
