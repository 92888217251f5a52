struct s {
	const struct { int a; } b;
	volatile union { int c; };
};
typedef const struct { int a; } t;
typedef volatile enum { A } e;
