struct s {
	int;
	struct t;
	enum kind { KIND };
	int a;
};
