enum kind { KIND_A __attribute__((deprecated)), KIND_B };
