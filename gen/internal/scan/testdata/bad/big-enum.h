enum kind { KIND = 0x100000000 };
