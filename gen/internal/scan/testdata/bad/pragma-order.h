#pragma scalar_storage_order big-endian
struct s { int a; };
