// SPDX-License-Identifier: Apache-2.0

package api

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestType has types as their text, and as C declares x and without a name.
func TestType(t *testing.T) {
	tests := []struct{ text, c, unnamed string }{
		{"int", "int x", "int"},
		{"const char", "const char x", "const char"},
		{"struct ibv_qp", "struct ibv_qp x", "struct ibv_qp"},
		{"unsigned long long", "unsigned long long x", "unsigned long long"},
		{"*void", "void *x", "void *"},
		{"*const char", "const char *x", "const char *"},
		{"const *char", "char *const x", "char *const"},
		{"volatile int", "volatile int x", "volatile int"},
		{"const volatile int", "const volatile int x", "const volatile int"},
		{"volatile *volatile struct s", "volatile struct s *volatile x", "volatile struct s *volatile"},
		{"const volatile *int", "int *const volatile x", "int *const volatile"},
		{"*const *const char", "const char *const *x", "const char *const *"},
		{"**struct ibv_send_wr", "struct ibv_send_wr **x", "struct ibv_send_wr **"},
		{"[16]uint8_t", "uint8_t x[16]", "uint8_t [16]"},
		{"[2][3]int", "int x[2][3]", "int [2][3]"},
		{"[4]*char", "char *x[4]", "char *[4]"},
		{"*[4]char", "char (*x)[4]", "char (*)[4]"},
		{"func() int", "int x(void)", "int (void)"},
		{"func(int, *char) void", "void x(int, char *)", "void (int, char *)"},
		{"func(*const char, ...) int", "int x(const char *, ...)", "int (const char *, ...)"},
		{"*func(int) *void", "void *(*x)(int)", "void *(*)(int)"},
		{"const *func() int", "int (*const x)(void)", "int (*const)(void)"},
		{"[3]*func() void", "void (*x[3])(void)", "void (*[3])(void)"},
		{"*func(*func(int) void) *func() int", "int (*(*x)(void (*)(int)))(void)", "int (*(*)(void (*)(int)))(void)"},
	}
	for _, tt := range tests {
		t.Run(tt.text, func(t *testing.T) {
			typ, err := ParseType(tt.text)
			require.NoError(t, err)
			require.Equal(t, tt.text, typ.String())
			require.Equal(t, tt.c, typ.C("x"))
			require.Equal(t, tt.unnamed, typ.C(""))
		})
	}
}

func TestTypeErrors(t *testing.T) {
	deep := strings.Repeat("*", maxTypeDepth+1) + "int"
	for _, text := range []string{
		"", "*", "const ", "const", "[", "[]int", "[x]int", "[-1]int", "[4", "[4]", "const [4]int", "[99999999999999999999]int",
		"func(", "func()", "func() ", "func(int", "func(int, ) int", "func(, int) int",
		"func(..., int) int", "func(int, ..., ...) int", "func(int, ..., int) int", "[04]int", "[+4]int", "const const int", "volatile const int", "volatile volatile int", "volatile", "volatile [4]int", "volatile func() int", "int;", "func(int,int) int", "const func() int",
		"int ", " int", "int  x", "4", "int)", "int, int", "int*", "a(b", deep,
	} {
		_, err := ParseType(text)
		require.Error(t, err, "%q", text)
		require.ErrorContains(t, err, "type ")
	}
}

func TestTag(t *testing.T) {
	tag, ok := (&Type{Name: "struct ibv_qp"}).Tag("struct")
	require.True(t, ok)
	require.Equal(t, "ibv_qp", tag)
	_, ok = (&Type{Name: "struct ibv_qp"}).Tag("enum")
	require.False(t, ok)
	_, ok = (&Type{Kind: Pointer, Name: "struct ibv_qp"}).Tag("struct")
	require.False(t, ok)
}

// FuzzType checks that text never panics, and that what it was understood as
// has one text.
func FuzzType(f *testing.F) {
	for _, t := range types(load(f)) {
		f.Add(t.String())
	}
	f.Add("func(..., int) const *")
	f.Fuzz(func(t *testing.T, text string) {
		typ, err := ParseType(text)
		if err != nil {
			return
		}
		require.Equal(t, text, typ.String())
		again, err := ParseType(typ.String())
		require.NoError(t, err)
		require.Equal(t, typ, again)
		require.NotEmpty(t, typ.C("x"))
	})
}
