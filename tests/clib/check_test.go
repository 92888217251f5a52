// SPDX-License-Identifier: Apache-2.0

//go:build linux

package clib

import (
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
)

// checked runs a program of testdata/check.c.
func checked(t *testing.T, check, program, memory string) *process.Process {
	t.Helper()
	path := compile(t, "check", "-g", "-L", folder, "-l:librdmacm.so.1", "-l:libibverbs.so.1")
	cmd := process.Cmd(t, "verbena", "softroce", "run", "-l", folder, path, program, memory)
	cmd.Env = append(cmd.Environ(), "VERBENA_CHECK="+check)
	p := process.Start(t, cmd)
	p.Wait()
	return p
}

// frame is a frame of a stack in a report.
var frame = regexp.MustCompile(`      (\S*/check) (0x[0-9a-f]+)\n`)

// A mistake of a C program is reported with the place of the posting, in the
// form that addr2line takes.
func TestCheckReportsMistakes(t *testing.T) {
	for program, m := range map[string]struct{ operation, posted string }{
		"changed_send":       {"send", "changed_send"},
		"changed_unsignaled": {"send", "changed_unsignaled"},
		"changed_write":      {"RDMA write", "changed_write"},
		"changed_receive":    {"receive", "changed_receive"},
		"changed_read":       {"RDMA read", "changed_read"},
	} {
		for _, memory := range []string{"static", "malloc", "mmap"} {
			t.Run(program+" "+memory, func(t *testing.T) {
				p := checked(t, "1", program, memory)
				require.Zero(t, p.Wait(), p.Output())
				report := p.Stderr()
				require.Contains(t, report, "the program wrote to memory of a posted "+m.operation+"\n")
				require.Equal(t, 1, strings.Count(report, "WARNING: VERBENA_CHECK"), report)
				var places []string
				for _, f := range frame.FindAllStringSubmatch(report, -1) {
					out, err := exec.Command("addr2line", "-f", "-e", f[1], f[2]).Output()
					require.NoError(t, err)
					function, _, _ := strings.Cut(string(out), "\n")
					places = append(places, function)
				}
				require.Contains(t, places, m.posted, report)
				require.Contains(t, places, "main", report)
			})
		}
	}
}

func TestCheckBlamesNoRightProgram(t *testing.T) {
	for _, memory := range []string{"static", "malloc", "mmap"} {
		for _, program := range []string{"none", "unmapped", "read_only", "partly_read_only", "opened"} {
			p := checked(t, "abort", program, memory)
			require.Zero(t, p.Wait(), p.Output())
			require.Empty(t, p.Output())
		}
		p := checked(t, "1", "early_read", memory)
		require.Equal(t, strings.Repeat("too soon", 8), p.Output())
		p = checked(t, "0", "early_read", memory)
		require.Equal(t, strings.Repeat("\x00", 64), p.Output())
	}
}

// Where the system forbids what the check needs, the device says so, and checks
// nothing.
func TestCheckIsForbidden(t *testing.T) {
	for _, program := range []string{"no_reads", "no_writes"} {
		p := checked(t, "1", program, "malloc")
		require.Zero(t, p.Wait(), p.Output())
		require.Equal(t, strings.Repeat("\x00", 64), p.Stdout(), program)
		require.Equal(t, "softroce: memory is not checked: process_vm_readv and process_vm_writev: operation not permitted\n", p.Stderr(), program)
	}
}

func TestCheckAborts(t *testing.T) {
	p := checked(t, "abort", "changed_send", "malloc")
	p.Wait()
	require.Equal(t, syscall.SIGABRT, p.EndedBy(), p.Output())
	require.Contains(t, p.Stderr(), "WARNING: VERBENA_CHECK")
	require.NotContains(t, p.Stderr(), "goroutine", "as of Go's runtime")
}
