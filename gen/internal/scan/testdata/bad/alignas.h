struct s {
	_Alignas(16) int a;
};
