struct s {
	_Atomic int a;
	_Atomic(int) b;
};
