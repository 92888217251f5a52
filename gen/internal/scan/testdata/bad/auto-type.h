__auto_type ibv_plain = 1;
