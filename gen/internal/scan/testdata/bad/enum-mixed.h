enum kind { BELOW = -1, ABOVE = 0x80000000 };
