package interop

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestUsage(t *testing.T) {
	needDevice(t)
	flags := func(r *process) []string {
		return regexp.MustCompile(`(?m)^\t-\w`).FindAllString(r.stdout.String(), -1)
	}
	we, they := ours.run(t, "-h"), theirs.run(t, "-h")
	require.Zero(t, we.status)
	require.Equal(t, 22, they.status, "C's does not know -h, and prints the same as for any error")
	require.ElementsMatch(t, append(flags(they), "\t-h"), flags(we))

	// Wrong arguments give the same exit status.
	for _, args := range [][]string{
		nil, {"-v"}, {"-s", "-x"}, {"-s", "-S", "22"}, {"-s", "-S", "65536"}, {"-s", "-C", "-1"}, {"-s", "-S"},
	} {
		we, they := ours.run(t, args...), theirs.run(t, args...)
		require.Equal(t, 22, they.status, args)
		require.Equal(t, 22, we.status, args)
		require.Regexp(t, `^rping: .*\n$`, we.stderr.String())
		require.Empty(t, we.stdout.String())
	}
}
