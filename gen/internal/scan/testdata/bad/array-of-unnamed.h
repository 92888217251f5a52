struct s {
	struct { int x; } list[2];
};
