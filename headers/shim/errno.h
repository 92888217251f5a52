#pragma once
extern int *__errno_location(void);
#define errno (*__errno_location())
#define EPERM 1
#define ENOMEM 12
#define EINVAL 22
#define ENOSYS 38
#define EOPNOTSUPP 95
