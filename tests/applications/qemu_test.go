// SPDX-License-Identifier: Apache-2.0

//go:build linux

package applications

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
)

// Where the guest's memory has random bytes, and how many.
const (
	randomAt   = 16 << 20
	randomSize = 64 << 20
)

// migrate moves QEMU's guest from one process to another, and compares its
// memory. Capabilities are those of migration. It returns how long QEMU says
// that the migration took.
func migrate(t *testing.T, command starter, scheme string, capabilities ...string) time.Duration {
	t.Helper()
	folder := t.TempDir()
	want := make([]byte, randomSize)
	_, err := io.ReadFull(rand.NewChaCha8([32]byte{1}), want)
	require.NoError(t, err)
	random := filepath.Join(folder, "random")
	require.NoError(t, os.WriteFile(random, want, 0o600))

	address := scheme + ":127.0.0.1:" + freePort(t)
	start := func(name string, more ...string) *monitor {
		socket := filepath.Join(folder, name)
		return connect(t, process.Start(t, command(append([]string{
			"qemu-system-x86_64", "-nodefaults", "-display", "none", "-machine", "pc,accel=tcg", "-m", "128",
			"-monitor", "unix:" + socket + ",server,nowait",
		}, more...)...)), socket)
	}
	to := start("to", "-incoming", "defer")
	from := start("from", "-device", fmt.Sprintf("loader,file=%s,addr=%#x,force-raw=on", random, randomAt))
	for _, c := range capabilities {
		from.do("migrate_set_capability " + c + " on")
		to.do("migrate_set_capability " + c + " on")
	}
	to.do("migrate_incoming " + address)
	from.do("migrate_set_parameter max-bandwidth 10G")
	from.do("migrate -d " + address)
	var info string
	from.process.Eventually("completes the migration", func() bool {
		info = from.do("info migrate")
		require.NotContains(t, info, "Migration status: failed")
		return strings.Contains(info, "Migration status: completed")
	})
	require.Contains(t, from.do("info status"), "postmigrate")

	got := filepath.Join(folder, "got")
	to.process.Eventually("runs the guest", func() bool { return strings.Contains(to.do("info status"), "VM status: running") })
	to.do(fmt.Sprintf("pmemsave %#x %d %q", randomAt, randomSize, got))
	memory, err := os.ReadFile(got)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, memory), "the guest has other memory")
	for _, m := range []*monitor{from, to} {
		fmt.Fprintln(m.socket, "quit")
		require.Zero(t, m.process.Wait(), "%s", m.process.Output())
	}

	took := regexp.MustCompile(`total time: (\d+) ms`).FindStringSubmatch(info)
	require.NotNil(t, took, "%s", info)
	d, err := time.ParseDuration(took[1] + "ms")
	require.NoError(t, err)
	return d
}

// monitor is where a QEMU takes commands.
type monitor struct {
	t       *testing.T
	process *process.Process
	socket  net.Conn
}

// connect connects to a QEMU that is about to listen at the socket.
func connect(t *testing.T, p *process.Process, socket string) *monitor {
	t.Helper()
	m := &monitor{t: t, process: p}
	p.Eventually("listens", func() (ok bool) {
		var err error
		m.socket, err = net.Dial("unix", socket)
		return err == nil || p.Ended()
	})
	require.False(t, p.Ended(), "%s", p.Output())
	t.Cleanup(func() { m.socket.Close() })
	m.answer()
	return m
}

// do gives a command and returns the answer.
func (m *monitor) do(command string) string {
	m.t.Helper()
	_, err := fmt.Fprintln(m.socket, command)
	require.NoError(m.t, err, "%s", m.process.Output())
	answer := m.answer()
	require.NotContains(m.t, answer, "Error:", "%s", command)
	return answer
}

// answer reads until QEMU asks for a command.
func (m *monitor) answer() string {
	m.t.Helper()
	var all []byte
	for b := make([]byte, 4096); !bytes.HasSuffix(all, []byte("(qemu) ")); {
		n, err := m.socket.Read(b)
		require.NoError(m.t, err, "%s%s", all, m.process.Output())
		all = append(all, b[:n]...)
	}
	return string(all)
}
