// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"bufio"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Only shared mappings of files are persistent.
func TestOfFiles(t *testing.T) {
	const maps = `00001000-00003000 rw-s 00000000 08:01 17 /data/log
00003000-00004000 rw-s 00002000 08:01 17 /data/log
00004000-00005000 rw-p 00000000 08:01 17 /data/log
00005000-00006000 rw-p 00000000 00:00 0
00007000-00008000 rw-s 00000000 08:01 18 /data/a name
`
	for name, tt := range map[string]struct {
		from, to uint64
		want     bool
	}{
		"within one":          {0x1010, 0x1020, true},
		"all of two":          {0x1000, 0x4000, true},
		"into a private one":  {0x3000, 0x4001, false},
		"private":             {0x4000, 0x5000, false},
		"not of a file":       {0x5000, 0x5010, false},
		"into a gap":          {0x7000, 0x8001, false},
		"in a gap":            {0x6000, 0x6001, false},
		"a name with a space": {0x7000, 0x8000, true},
		"behind the last":     {0x9000, 0x9001, false},
	} {
		require.Equal(t, tt.want, ofFiles(bufio.NewScanner(strings.NewReader(maps)), tt.from, tt.to), name)
	}
	for _, text := range []string{"what is this?\n", "x-y rw-s 0 0 1\n", "1000-y rw-s 0 0 1\n", "1000-2000\n"} {
		require.False(t, ofFiles(bufio.NewScanner(strings.NewReader(text)), 0x1000, 0x1001), text)
	}
}
