package cmtime

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestExitStatus(t *testing.T) {
	run := func(args ...string) (status int, stdout, stderr string) {
		var out, errs bytes.Buffer
		status = Main(args, &out, &errs)
		return status, out.String(), errs.String()
	}
	status, stdout, stderr := run("-h")
	require.Zero(t, status)
	require.Equal(t, usage, stdout)
	require.Empty(t, stderr)
	for _, tt := range []struct {
		args []string
		text string
	}{
		{[]string{"-s", "nobody"}, "nobody"},
		{[]string{"-c", "0"}, "-c 0: expected a number from 1 to 1048576"},
		{[]string{"-p", "65536"}, "-p 65536: expected a number from 1 to 65535"},
		{[]string{"-r", "8"}, "-r 8: expected a number from 0 to 7"},
		{[]string{"-t", "0"}, "-t 0: expected a number from 1 to 1048576"},
		{[]string{"-x"}, "-x"},
		{[]string{"more"}, `unexpected argument "more"`},
	} {
		status, stdout, stderr := run(tt.args...)
		require.Equal(t, 22, status, tt.args)
		require.Empty(t, stdout)
		require.Regexp(t, `^cmtime: .*\n$`, stderr)
		require.Contains(t, stderr, tt.text)
	}
}

func TestPrint(t *testing.T) {
	var out bytes.Buffer
	printHead(&out)
	each := make([]time.Duration, 101)
	for i := range each {
		each[i] = time.Duration(200-i) * time.Microsecond
	}
	print(&out, resolveAddr, 20200*time.Microsecond, each)
	require.Equal(t, ""+
		"step              total ms  us / conn     min us     avg us     50% us     90% us     99% us     max us\n"+
		"resolve addr :       20.20     200.00     100.00     150.00     150.00     190.00     199.00     200.00\n", out.String())
}
