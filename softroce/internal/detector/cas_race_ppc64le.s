//go:build race

#include "textflag.h"

// func CompareAndSwap(word *uint64, old, n uint64) bool
TEXT ·CompareAndSwap(SB), NOSPLIT, $0-25
	MOVD word+0(FP), R3
	MOVD old+8(FP), R4
	MOVD n+16(FP), R5
	MOVD R0, R7
	LWSYNC
again:
	LDAR (R3), R6
	CMP R6, R4
	BNE done
	STDCCC R5, (R3)
	BNE again
	MOVD $1, R7
done:
	LWSYNC
	MOVB R7, ret+24(FP)
	RET
