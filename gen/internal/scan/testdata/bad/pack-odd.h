#pragma pack(push, name, 1)
#pragma pack(3)
#pragma pack(pop)
