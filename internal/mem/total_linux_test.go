// SPDX-License-Identifier: Apache-2.0

package mem

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTotal(t *testing.T) {
	file, err := os.ReadFile("/proc/meminfo")
	require.NoError(t, err)
	var memory, swap uint64
	for key, value := range map[string]*uint64{"MemTotal": &memory, "SwapTotal": &swap} {
		*value = kibibytes(t, string(file), key) << 10
	}
	require.Equal(t, memory+swap, Total())
}

// kibibytes returns the value of a key of /proc/meminfo.
func kibibytes(t *testing.T, file, key string) (n uint64) {
	t.Helper()
	for line := range strings.Lines(file) {
		if _, err := fmt.Sscanf(line, key+": %d kB", &n); err == nil {
			return n
		}
	}
	require.FailNow(t, key+" is not in /proc/meminfo")
	return 0
}
