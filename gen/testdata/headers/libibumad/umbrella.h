#include <infiniband/umad.h>
#include <infiniband/umad_types.h>
