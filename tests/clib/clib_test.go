// SPDX-License-Identifier: Apache-2.0

//go:build linux

package clib

import (
	"debug/elf"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"

	_ "github.com/verbena-go/verbena/internal/testutil/ownnetwork"
)

// folder has the libraries, and the C programs.
var folder string

func TestMain(m *testing.M) {
	process.Become(map[string]process.Program{"lastword": runLastWord})
	flag.Parse()
	if testing.Short() {
		fmt.Println("-short: builds the C libraries of the device in user space; CI runs it")
		return
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	var err error
	if folder, err = os.MkdirTemp("", "clib"); err != nil {
		panic(err)
	}
	defer os.RemoveAll(folder)
	programs, err := process.Build("verbena")
	if err != nil {
		panic(err)
	}
	if out, err := exec.Command(filepath.Join(programs, "verbena"), "softroce", "libs", folder).CombinedOutput(); err != nil {
		panic(fmt.Sprintf("verbena softroce libs: %v\n%s", err, out))
	}
	return m.Run()
}

// compile compiles a program of testdata against the libraries.
func compile(t *testing.T, name string, args ...string) (path string) {
	t.Helper()
	path = filepath.Join(folder, name)
	if _, err := os.Stat(path); err == nil {
		return path
	}
	args = append([]string{
		"-Wall", "-Wno-unused-result", "-Werror", "-O2", "-pthread", "-I", filepath.Join("..", "..", "generated", "librdmacm"), "-o", path,
		filepath.Join("testdata", name+".c"),
	}, args...)
	output, err := exec.Command("cc", args...).CombinedOutput()
	require.NoError(t, err, "%s", output)
	return path
}

func conventions(t *testing.T, test string) *process.Process {
	t.Helper()
	path := compile(t, "conventions", "-L", folder, "-l:librdmacm.so.1", "-l:libibverbs.so.1")
	cmd := process.Cmd(t, "verbena", "softroce", "run", "-l", folder, path, test)
	return process.Start(t, cmd)
}

func TestConventions(t *testing.T) {
	for test, status := range map[string]int{
		"errors": 0, "descriptors": 0, "interrupted": 0, "handled": 8, "threads_end": 0, "blocked": 0, "cancelled": 0, "cancelled_with_event": 0, "cancelled_while_posting": 0, "forked": 0, "forked_first": 0, "write_in_vain_ignored": 0,
	} {
		t.Run(test, func(t *testing.T) {
			p := conventions(t, test)
			require.Equal(t, status, p.Wait())
			require.Empty(t, p.Output())
		})
	}
}

// A program ends whatever the device does meanwhile, as it says.
func TestExitWhileAtWork(t *testing.T) {
	for range 20 {
		p := conventions(t, "leave")
		require.Equal(t, 7, p.Wait())
		require.Empty(t, p.Output())
	}
}

// Go's runtime leaves signals as they are.
func TestSignalsEnd(t *testing.T) {
	// The parent of this test may ignore these, and its processes would inherit
	// that.
	heard := make(chan os.Signal, 1)
	signal.Notify(heard, syscall.SIGINT, syscall.SIGHUP)
	defer signal.Stop(heard)
	for _, sig := range []syscall.Signal{
		syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGKILL, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGALRM,
	} {
		t.Run(sig.String(), func(t *testing.T) {
			p := conventions(t, "wait_forever")
			p.Prints("waiting")
			p.Signal(sig)
			p.Wait()
			require.Equal(t, sig, p.EndedBy())
			require.Empty(t, p.Stderr())
		})
	}
	for test, sig := range map[string]syscall.Signal{"write_in_vain": syscall.SIGPIPE, "crash": syscall.SIGSEGV} {
		t.Run(test, func(t *testing.T) {
			p := conventions(t, test)
			p.Wait()
			require.Equal(t, sig, p.EndedBy())
			require.Empty(t, p.Output())
		})
	}
}

// Faults of memory that was taken away under a region are the device's,
// whenever the program installs handlers. All others are the program's.
func TestFaults(t *testing.T) {
	program := compile(t, "faults", "-L", folder, "-l:librdmacm.so.1", "-l:libibverbs.so.1")
	for test, sig := range map[string]syscall.Signal{
		"handlers": 0, "own": 0, "masks": 0, "ignored": 0, "fault": syscall.SIGSEGV, "fault_again": syscall.SIGSEGV,
		"fault_ignored": syscall.SIGSEGV, "sent": syscall.SIGSEGV, "given_up": syscall.SIGSEGV,
	} {
		t.Run(test, func(t *testing.T) {
			p := process.Start(t, process.Cmd(t, "verbena", "softroce", "run", "-l", folder, program, test))
			status := p.Wait()
			require.Empty(t, p.Output())
			if sig == 0 {
				require.Zero(t, status)
			} else {
				require.Equal(t, sig, p.EndedBy())
			}
		})
	}
}

// What counts is a program's environment at its first call, not that with which
// it was started.
func TestEnvironment(t *testing.T) {
	program := compile(t, "environment", "-L", folder, "-l:libibverbs.so.1")
	for _, tt := range []struct{ limits, change, segments string }{
		{"", "set", "3"}, {"sge=5", "set", "3"}, {"sge=5", "title", "5"}, {"sge=5", "unset", "32"},
	} {
		t.Run(tt.change+", before: "+tt.limits, func(t *testing.T) {
			t.Setenv("VERBENA_LIMITS", tt.limits)
			if tt.limits == "" {
				require.NoError(t, os.Unsetenv("VERBENA_LIMITS"))
			}
			p := process.Run(t, process.Cmd(t, "verbena", "softroce", "run", "-l", folder, program, tt.change))
			require.Zero(t, p.Wait())
			require.Equal(t, tt.segments+"\n", p.Output())
		})
	}
}

// A program that is linked to librdmacm alone has libc before libibverbs.
func TestOneLibrary(t *testing.T) {
	program := compile(t, "onelibrary", "-L", folder, "-l:librdmacm.so.1", "-Wl,-rpath-link,"+folder)
	p := process.Start(t, process.Cmd(t, "verbena", "softroce", "run", "-l", folder, program))
	require.Zero(t, p.Wait(), p.Output())
}

func TestDlopen(t *testing.T) {
	p := process.Run(t, process.Cmd(t, "verbena", "softroce", "run", "-l", folder, compile(t, "dlopen", "-ldl")))
	require.Zero(t, p.Wait())
	require.Empty(t, p.Output())
}

// Where the library with the device is missing, functions fail and one line
// says why.
func TestWithoutDevice(t *testing.T) {
	compile(t, "conventions", "-L", folder, "-l:librdmacm.so.1", "-l:libibverbs.so.1")
	part := t.TempDir()
	for _, name := range []string{"libibverbs.so.1", "librdmacm.so.1"} {
		text, err := os.ReadFile(filepath.Join(folder, name))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(part, name), text, 0o600))
	}
	cmd := exec.Command(filepath.Join(folder, "conventions"), "fail_without_device")
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+part)
	p := process.Run(t, cmd)
	require.Zero(t, p.Wait(), "%s", p.Output())
	require.Contains(t, p.Stderr(), "softroce: "+part+"/libverbena-softroce.so: cannot open")

	status := process.Run(t, process.Cmd(t, "verbena", "softroce", "run", "-l", part, "true"))
	require.Equal(t, 1, status.Wait())
	require.Contains(t, status.Stderr(), "verbena softroce libs "+part+" builds the libraries")
}

// Packets of all programs go into one file.
func TestCaptureVariable(t *testing.T) {
	if _, err := exec.LookPath("rdma_server"); err != nil {
		t.Skip("needs rdma-core's programs, which make setup installs")
	}
	path := filepath.Join(t.TempDir(), "all.pcap")
	sizes := []int64{0}
	for range 2 {
		compile(t, "conventions", "-L", folder, "-l:librdmacm.so.1", "-l:libibverbs.so.1")
		cmd := process.Cmd(t, "verbena", "softroce", "run", "-l", folder, "rdma_server")
		cmd.Env = append(cmd.Env, "VERBENA_CAPTURE="+path)
		server := process.Start(t, cmd)
		for { // until the server listens
			cmd := process.Cmd(t, "verbena", "softroce", "run", "-l", folder, "rdma_client", "-s", "127.0.0.1")
			cmd.Env = append(cmd.Env, "VERBENA_CAPTURE="+path)
			if process.Run(t, cmd).Wait() == 0 {
				break
			}
			require.False(t, server.Ended())
		}
		require.Zero(t, server.Wait())
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Greater(t, info.Size(), sizes[len(sizes)-1])
		sizes = append(sizes, info.Size())
	}
	records(t, path)

	other := filepath.Join(t.TempDir(), "other")
	require.NoError(t, os.WriteFile(other, []byte("something else that is longer than the header"), 0o600))
	cmd := process.Cmd(t, "verbena", "softroce", "run", "-l", folder, "ibv_devices")
	cmd.Env = append(cmd.Env, "VERBENA_CAPTURE="+other)
	p := process.Run(t, cmd)
	require.Zero(t, p.Wait())
	require.Contains(t, p.Stderr(), "softroce: VERBENA_CAPTURE: "+other+": the file exists and is not a capture of raw IP packets; it is left as it is")
}

// records checks that a file has whole records.
func records(t *testing.T, path string) {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	const header, record = 24, 16
	n := 0
	for text = text[header:]; len(text) > 0; n++ {
		size := int(uint32(text[8]) | uint32(text[9])<<8 | uint32(text[10])<<16 | uint32(text[11])<<24)
		require.GreaterOrEqual(t, len(text), record+size)
		require.Equal(t, byte(0x45), text[record], "an IPv4 header")
		text = text[record+size:]
	}
	require.Greater(t, n, 10)
}

// The libraries have what the real ones have, under the same version nodes, and
// their names.
func TestVersionNodes(t *testing.T) {
	// What only libraries of drivers use, or kernels before Linux 2.6.20.
	left := func(name, node string) bool {
		return strings.HasPrefix(node, "IBVERBS_PRIVATE_") && name != "ibv_query_gid_type" || strings.HasPrefix(name, "ibv_copy_")
	}
	compared := 0
	for _, version := range []string{"44.0", "65.0"} {
		for _, library := range []string{"libibverbs.so.1", "librdmacm.so.1", "libmlx5.so.1", "libefa.so.1"} {
			found, err := filepath.Glob(filepath.Join("..", "..", ".cache", "roots", version, "usr", "lib", "*", library))
			require.NoError(t, err)
			if len(found) == 0 {
				require.Empty(t, os.Getenv("VERBENA_REQUIRE_ROOTS"), "%s of rdma-core %s is not here", library, version)
				continue
			}
			ours := exports(t, filepath.Join(folder, library))
			for symbol, isDefault := range exports(t, found[0]) {
				name, node, _ := strings.Cut(symbol, "@")
				if !isDefault || left(name, node) { // an older form, for programs of before 2008
					continue
				}
				require.Contains(t, ours, symbol, "%s of rdma-core %s", library, version)
				compared++
			}
		}
	}
	t.Logf("%d symbols compared", compared)

	for _, library := range []string{"libibverbs.so.1", "librdmacm.so.1", "libmlx5.so.1", "libefa.so.1"} {
		f, err := elf.Open(filepath.Join(folder, library))
		require.NoError(t, err)
		names, err := f.DynString(elf.DT_SONAME)
		require.NoError(t, err)
		require.Equal(t, []string{library}, names)
		require.NoError(t, f.Close())
	}
}

// exports returns what a library defines as name@node, and whether a program
// that is linked now gets it.
func exports(t *testing.T, path string) map[string]bool {
	t.Helper()
	f, err := elf.Open(path)
	require.NoError(t, err)
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	require.NoError(t, err)
	all := map[string]bool{}
	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF && s.Section != elf.SHN_ABS {
			all[s.Name+"@"+s.Version] = !s.VersionIndex.IsHidden()
		}
	}
	require.NotEmpty(t, all, path)
	return all
}

// A program that was not meant for it runs, too: what it starts inherits the
// libraries.
func TestScript(t *testing.T) {
	script := filepath.Join(t.TempDir(), "script")
	require.NoError(t, os.WriteFile(script, []byte("#!/bin/sh\n"+compile(t, "dlopen", "-ldl")+" && exit 9\n"), 0o700))
	p := process.Run(t, process.Cmd(t, "verbena", "softroce", "run", "-l", folder, script))
	require.Equal(t, 9, p.Wait())
	require.Empty(t, p.Output())
}

// A Go program that is not checked by softroce does not get the device, and is
// told what to do.
func TestGoProgram(t *testing.T) {
	cmd := process.Cmd(t, "verbena", "devices")
	cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+folder, "VERBENA_DEVICE=")
	p := process.Run(t, cmd)
	require.Equal(t, 1, p.Wait())
	require.Contains(t, p.Stderr(), "softroce: this is a Go program, and one process cannot have Go twice: import github.com/verbena-go/verbena/softroce")

	p = process.Run(t, process.Cmd(t, "verbena", "softroce", "run", "-l", folder, process.Self(t)))
	require.Equal(t, 1, p.Wait())
	require.Contains(t, p.Stderr(), "it is a Go program")
}
