enum kind { KIND_A, KIND_A };
