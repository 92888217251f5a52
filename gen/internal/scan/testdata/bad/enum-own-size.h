enum kind { KIND_A = 1, KIND_B = (KIND_A ? -1 : 1u) + 1L, KIND_C = -1 };
