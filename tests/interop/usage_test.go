// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
)

func TestUsage(t *testing.T) {
	needDevice(t)
	letters := func(r *process.Process) (letters []string) {
		for _, flag := range regexp.MustCompile(`(?m)^\s+-(\w)\b`).FindAllStringSubmatch(r.Stdout(), -1) {
			letters = append(letters, flag[1])
		}
		return letters
	}
	we, they := ours.run(t, "-h"), theirs.run(t, "-h")
	require.Zero(t, we.Wait())
	require.Equal(t, 22, they.Wait(), "C's does not know -h, and prints the same as for any error")
	require.ElementsMatch(t, append(letters(they), "t"), letters(we))

	// Wrong arguments give the same exit status.
	for _, args := range [][]string{
		nil, {"-v"}, {"-s", "-x"}, {"-s", "-S", "22"}, {"-s", "-S", "65536"}, {"-s", "-C", "-1"}, {"-s", "-S"},
	} {
		we, they := ours.run(t, args...), theirs.run(t, args...)
		require.Equal(t, 22, they.Wait(), args)
		require.Equal(t, 22, we.Wait(), args)
		require.Regexp(t, `^rping: .*\n$`, we.Stderr())
		require.Empty(t, we.Stdout())
	}
}
