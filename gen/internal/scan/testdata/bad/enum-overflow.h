enum kind { KIND_A = 0xffffffff, KIND_B };
