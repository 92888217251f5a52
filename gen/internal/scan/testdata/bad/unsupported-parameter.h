double ibv_number(_Complex float *x);
