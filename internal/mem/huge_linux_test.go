// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x

package mem

import (
	"bytes"
	"math"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

const twoMiB = 2 << 20

func TestMapHugeFails(t *testing.T) {
	for name, tt := range map[string]struct {
		n, page int
		want    error
		text    string
	}{
		"part of a page":   {twoMiB + 4096, twoMiB, syscall.EINVAL, "size is 2101248 and page size 2097152: the size must be a positive multiple"},
		"nothing":          {0, twoMiB, syscall.EINVAL, "must be a positive multiple of the page size"},
		"negative":         {-twoMiB, twoMiB, syscall.EINVAL, "must be a positive multiple of the page size"},
		"no page size":     {twoMiB, 0, syscall.EINVAL, "must be a positive multiple of the page size"},
		"negative size":    {twoMiB, -twoMiB, syscall.EINVAL, "must be a positive multiple of the page size"},
		"no power of two":  {3 << 20, 3 << 20, syscall.EINVAL, "must be a positive multiple of the page size"},
		"no such pages":    {1 << 40, 1 << 40, syscall.EINVAL, "vm.nr_hugepages"},
		"more than exists": {math.MaxInt / twoMiB * twoMiB, twoMiB, syscall.ENOMEM, "sysctl vm.nr_hugepages or /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := MapHuge(tt.n, tt.page)
			require.ErrorIs(t, err, tt.want)
			require.ErrorContains(t, err, tt.text)
		})
	}
}

// Where the system has huge pages, memory is in them; where it has none, the
// error says what to do.
func TestMapHuge(t *testing.T) {
	free, err := os.ReadFile("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
	n, _ := strconv.Atoi(strings.TrimSpace(string(free)))
	b, mapErr := MapHuge(twoMiB, twoMiB)
	if err != nil || n == 0 {
		require.ErrorContains(t, mapErr, "vm.nr_hugepages")
		return
	}
	require.NoError(t, mapErr)
	require.Zero(t, uintptr(unsafe.Pointer(&b[0]))%twoMiB)
	require.True(t, bytes.Equal(make([]byte, twoMiB), b), "zeroed")
	b[0], b[twoMiB-1] = 1, 2
	require.NoError(t, Unmap(b))
}
