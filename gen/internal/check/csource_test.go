// SPDX-License-Identifier: Apache-2.0

package check

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAnswer(t *testing.T) {
	const gcc = "'_Generic' selector of type %s is not compatible with any association"
	const clang = "controlling expression type %s not compatible with any generic association type"
	tests := []struct{ format, pointer, want string }{
		{gcc, "'void (*)(char (*)[1],  char (*)[41])'", "40"},
		{clang, "'void (*)(char (*)[4294967296], char (*)[4294967296])'", "-1"},
		{clang, "'void (*)(char (*)[2147483649], char (*)[1])'", "-9223372036854775808"},
		{gcc, "'uint32_t *' {aka 'unsigned int *'}", "uint32_t"},
		{clang, "'uint32_t *' (aka 'unsigned int *')", "uint32_t"},
		{gcc, "'char (*)[16]'", "char [16]"},
		{gcc, "'char *(*)[16]'", "char *[16]"},
		{gcc, "'const char **'", "const char *"},
		{gcc, "'int (*)(void)'", "int (void)"},
		{gcc, "'int (**)(struct a *, int (*)(void))'", "int (*)(struct a *, int (*)(void))"},
	}
	for _, tt := range tests {
		got, ok := answer(fmt.Sprintf(tt.format, tt.pointer), true)
		require.True(t, ok, tt.pointer)
		require.Equal(t, tt.want, got, tt.pointer)
	}
	got, ok := answer("type 'long long  unsigned int'", false)
	require.True(t, ok)
	require.Equal(t, "long long unsigned int", got)
	_, ok = answer("'struct inner' has no member named 'texts'", true)
	require.False(t, ok)
}

// FuzzAnswer reads back every number, and survives every message.
func FuzzAnswer(f *testing.F) {
	f.Add(int64(0), "type ''")
	f.Add(int64(-1), "type 'void (*)(char (*)[99999999999999999999], char (*)[1])'")
	f.Fuzz(func(t *testing.T, n int64, message string) {
		answer(message, true)
		halves := fmt.Sprintf("void (*)(char (*)[%d], char (*)[%d])", uint64(n)>>32+1, uint64(n)&0xffffffff+1)
		got, ok := answer("type '"+halves+"'", false)
		require.True(t, ok)
		require.Equal(t, fmt.Sprint(n), got)
	})
}
