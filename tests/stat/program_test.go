// SPDX-License-Identifier: Apache-2.0

package stat

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs/stat"
	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// run runs the program, which must succeed, and returns what it prints.
func run(t *testing.T, args ...string) string {
	t.Helper()
	p := process.Run(t, process.Cmd(t, "verbena", append([]string{"stat"}, args...)...))
	require.Zero(t, p.Wait(), p.Stderr())
	return p.Stdout()
}

// The program finds this process's objects.
func TestProgram(t *testing.T) {
	d := testdevice.Needs(t, testdevice.Guest)
	c := connect(t, d)
	t.Log(run(t, "-r"))
	require.Regexp(t, fmt.Sprintf(`(?m)^%s +\S+ \(%d\) +2 +\d+ +2 +16 +\d+ +\d+$`, d.Name, os.Getpid()), run(t, "-r"))
	require.Regexp(t, regexp.MustCompile(fmt.Sprintf(`(?m)^%d +%s +1 +RC +RTS +\d+ +\d+ +\S+ \(%d\)$`, c.QP().Num(), d.Name, os.Getpid())), run(t, "-r", "-v"))
	var all stat.Resources
	require.NoError(t, json.Unmarshal([]byte(run(t, "-r", "-j")), &all))
	compare(t, all)

	text := run(t, "-v")
	t.Log(text)
	require.Contains(t, text, d.Name+" port 1, ACTIVE, Ethernet\n")
	require.Regexp(t, `(?m)^  hw_counters +rdma_sends +[1-9]\d* +requests +Messages sent\.$`, text)
}

// It shows rates until it is interrupted, and then ends well.
func TestProgramWatches(t *testing.T) {
	d := testdevice.Needs(t, testdevice.Guest)
	p := process.Start(t, process.Cmd(t, "verbena", "stat", "-w", "1", "-d", d.Name))
	p.Prints(`  no change\n`)
	connect(t, d)
	p.Prints(`rxe0 port 1 +hw_counters +sent_pkts +\d+\.\d +packets/s\n`)
	p.Signal(syscall.SIGINT)
	require.Zero(t, p.Wait(), p.Stderr())
	require.Empty(t, p.Stderr())
}
