enum kind { KIND_A __attribute__((mystery)), KIND_B };
