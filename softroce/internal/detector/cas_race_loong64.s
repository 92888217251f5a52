//go:build race

#include "textflag.h"

// func CompareAndSwap(word *uint64, old, n uint64) bool
TEXT ·CompareAndSwap(SB), NOSPLIT, $0-25
	MOVV word+0(FP), R4
	MOVV old+8(FP), R5
	MOVV n+16(FP), R6
	MOVV R0, R9
	DBAR
again:
	MOVV R6, R7
	LLV (R4), R8
	BNE R5, R8, done
	SCV R7, (R4)
	BEQ R7, again
	MOVV $1, R9
done:
	DBAR
	MOVB R9, ret+24(FP)
	RET
