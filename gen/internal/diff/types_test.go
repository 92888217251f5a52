// SPDX-License-Identifier: Apache-2.0

package diff

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSame(t *testing.T) {
	tests := []struct {
		a, b           string
		passed, stored bool
	}{
		{"int", "int", true, true},
		{"int", "const int", true, true},
		{"int", "unsigned int", true, true},
		{"int", "enum ibv_mtu", true, true},
		{"uint32_t", "__be32", true, true},
		{"size_t", "uint64_t", true, true},
		{"int", "long", false, false},
		{"uint8_t", "int8_t", false, true},
		{"uint8_t", "__u8", true, true},
		{"char", "uint8_t", false, true},
		{"_Bool", "uint8_t", false, false},
		{"int", "*void", false, false},
		{"*char", "*const char", true, true},
		{"*char", "*uint8_t", true, true},
		{"*char", "*int", false, false},
		{"*void", "*struct a", true, true},
		{"*struct a", "*void", true, true},
		{"*void", "*func() int", false, false},
		{"*func() int", "*void", false, false},
		{"*struct a", "*struct b", false, false},
		{"**struct a", "*void", true, true},
		{"struct a", "struct a", true, true},
		{"struct a", "struct b", false, false},
		{"[2]int", "[2]uint32_t", true, true},
		{"[2]int", "[3]int", false, false},
		{"[2]int", "*int", false, false},
		{"*func(int) int", "*func(uint32_t) int", true, true},
		{"*func(uint8_t) int", "*func(int8_t) int", false, false},
		{"*func(int) int", "*func(int, int) int", false, false},
		{"*func(int) int", "*func(int, ...) int", false, false},
		{"*func() int", "*func() void", false, false},
		{"pthread_mutex_t", "pthread_mutex_t", true, true},
		{"pthread_mutex_t", "pthread_cond_t", false, false},
	}
	for _, tt := range tests {
		require.Equal(t, tt.passed, samePassed(typ(tt.a), typ(tt.b)), "%s passed as %s", tt.a, tt.b)
		require.Equal(t, tt.stored, sameStored(typ(tt.a), typ(tt.b)), "%s stored as %s", tt.a, tt.b)
		require.Equal(t, tt.passed, samePassed(typ(tt.b), typ(tt.a)), "%s passed as %s", tt.b, tt.a)
		require.Equal(t, tt.stored, sameStored(typ(tt.b), typ(tt.a)), "%s stored as %s", tt.b, tt.a)
	}
}
