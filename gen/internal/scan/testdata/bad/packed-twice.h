#pragma pack(push, 2)
struct bits { char a; int b : 3; } __attribute__((packed));
struct plain { char a; int b; } __attribute__((packed));
struct ibv_aligned {
	char a;
	int b __attribute__((aligned(8)));
} __attribute__((packed));
#pragma pack(pop)
