// SPDX-License-Identifier: Apache-2.0

// Package servertest runs Valkey with its RDMA module for tests, as
// scripts/fetch-valkey has built it.
package servertest

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/examples/valkey/valkeyrdma"
	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// Server is a Valkey server, which listens at the same address and port for TCP
// and for RDMA.
type Server struct {
	t          testing.TB
	host, port string
	process    *process.Process
}

// Start starts a server. Without one, it skips the test, or makes it fail if
// the environment variable VERBENA_REQUIRE_VALKEY is set.
func Start(t testing.TB) *Server {
	t.Helper()
	d := cmtest.NeedDevice(t)
	d.Have(t, testdevice.Immediate, testdevice.Requests(1024))
	if _, err := os.Stat(Program(t, ".complete")); err != nil {
		require.Empty(t, os.Getenv("VERBENA_REQUIRE_VALKEY"), "%v", err)
		t.Skipf("no Valkey: scripts/fetch-valkey builds it: %v", err)
	}
	s := &Server{t: t, host: d.IPv4.String()}
	for range 5 {
		l, err := net.Listen("tcp", net.JoinHostPort(s.host, "0"))
		require.NoError(t, err)
		s.port = strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
		require.NoError(t, l.Close())
		if s.start() { // otherwise, another process was faster to take the port
			return s
		}
	}
	require.Fail(t, "no port stays free")
	return nil
}

// Program returns the path of one of Valkey's files.
func Program(t testing.TB, name string) string {
	t.Helper()
	cache := os.Getenv("VERBENA_CACHE")
	if cache == "" {
		_, here, _, _ := runtime.Caller(0)
		cache = filepath.Join(filepath.Dir(here), "..", "..", "..", "..", ".cache")
	}
	path, err := filepath.Abs(filepath.Join(cache, "valkey", name))
	require.NoError(t, err)
	return path
}

// libraries is a folder for the device in user space for programs in C.
var libraries = sync.OnceValues(func() (string, error) { return os.MkdirTemp("", "verbena-valkey") })

// CleanUp removes what Start has written, for TestMain.
func CleanUp() {
	if folder, err := libraries(); err == nil {
		_ = os.RemoveAll(folder)
	}
}

// Restart starts the server again, at the same address.
func (s *Server) Restart() {
	s.t.Helper()
	require.True(s.t, s.start(), "another process has the port now")
}

// start starts the server, and reports false if its port is taken.
func (s *Server) start() bool {
	s.t.Helper()
	args := []string{
		Program(s.t, "valkey-server"), "--port", s.port, "--bind", s.host, "--protected-mode", "no", "--save", "", "--dir", s.t.TempDir(),
		"--loadmodule", Program(s.t, "valkey-rdma.so"), "--rdma-port", s.port, "--rdma-bind", s.host, "--enable-debug-command", "yes",
	}
	cmd := exec.Command(args[0], args[1:]...)
	if testdevice.Soft() {
		libs, err := libraries()
		require.NoError(s.t, err)
		require.Zero(s.t, process.Run(s.t, process.Cmd(s.t, "verbena", "softroce", "libs", libs)).Wait())
		cmd = process.Cmd(s.t, "verbena", append([]string{"softroce", "run", "-l", libs}, args...)...)
	}
	s.process = process.Start(s.t, cmd)
	ready := false
	s.process.Eventually("is ready", func() bool {
		said := s.process.Output()
		ready = strings.Contains(said, "Ready to accept connections rdma")
		return ready || s.process.Ended() && strings.Contains(said, "Failed listening on port")
	})
	if !ready {
		return false
	}
	// The device keeps goroutines for each process that it has met. They are no
	// leaks.
	c, err := valkeyrdma.Dial(cmtest.Bounded(s.t), "rdma", s.Address())
	require.NoError(s.t, err)
	require.NoError(s.t, c.Close())
	return true
}

// Address returns the server's address, as host:port.
func (s *Server) Address() string { return net.JoinHostPort(s.host, s.port) }

// End ends the server with a signal.
func (s *Server) End(by syscall.Signal) {
	s.process.Signal(by)
	s.process.Wait()
}

// Signal sends the server a signal that does not end it.
func (s *Server) Signal(by syscall.Signal) { s.process.Signal(by) }

// Output returns what the server has printed since it was started.
func (s *Server) Output() string { return s.process.Output() }
