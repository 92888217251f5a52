struct s {
	float a;
};
