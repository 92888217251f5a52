#pragma pack(push, 1)
struct s {
	char a;
	int b;
};
#pragma pack(pop)
