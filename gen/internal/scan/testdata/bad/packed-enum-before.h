enum __attribute__((packed)) kind { KIND_A };
