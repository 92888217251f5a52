enum kind { KIND } __attribute__((packed));
