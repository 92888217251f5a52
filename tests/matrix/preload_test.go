// SPDX-License-Identifier: Apache-2.0

package matrix

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
)

// preload is a way to run programs that use TCP on rsockets of the device in
// user space: with librspreload.
type preload struct {
	command []string // what precedes the program's path
	env     []string
	folder  string // has programs that scripts/test setup has downloaded
}

// preloads returns how to run programs with librspreload of 44.0, and with that
// of 65.0, which knows epoll. The latter has C's library of its time. The error
// says what is missing.
func preloads() (older, newer preload, err error) {
	cache := os.Getenv("VERBENA_CACHE")
	if cache == "" {
		cache = filepath.Join("..", "..", ".cache")
	}
	if cache, err = filepath.Abs(cache); err != nil {
		return older, newer, err
	}
	one := func(parts ...string) string {
		found, _ := filepath.Glob(filepath.Join(append([]string{cache}, parts...)...))
		if len(found) == 0 {
			err = fmt.Errorf("%s is not here", filepath.Join(parts...))
			return ""
		}
		return found[0]
	}
	folder := one("rsockets")
	libraries := one("rsockets", "usr", "lib", "*-linux-gnu")
	also := filepath.Join(folder, "lib", filepath.Base(libraries))
	older = preload{folder: folder, env: []string{
		"LD_LIBRARY_PATH=" + softLibraries + ":" + libraries + ":" + also,
		"LD_PRELOAD=" + one("roots", "44.0", "usr", "lib", "*-linux-gnu", "rsocket", "librspreload.so"),
	}}
	system := one("roots", "65.0", "usr", "lib", "*-linux-gnu")
	newer = preload{folder: folder, command: []string{
		one("roots", "65.0", "usr", "lib", "*-linux-gnu", "ld-linux-*"), "--library-path",
		softLibraries + ":" + system + ":" + libraries + ":" + also,
		"--preload", one("roots", "65.0", "usr", "lib", "*-linux-gnu", "rsocket", "librspreload.so"),
	}}
	return older, newer, err
}

// start starts a program. Its name is that of a downloaded one below the folder
// usr, or of an installed one.
func (p preload) start(m meeting, name string, args ...string) onHost {
	m.Helper()
	if strings.Contains(name, "/") {
		name = filepath.Join(p.folder, "usr", name)
	}
	words := append(append(p.command[:len(p.command):len(p.command)], name), args...)
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Env = append(append(os.Environ(), "VERBENA_DEVICE=soft", "VERBENA_NETWORK="+m.at.soft), p.env...)
	return onHost{process.Start(m.T, cmd), m.T, m.at}
}

// preloadCases are programs that know nothing of RDMA, on rsockets.
func preloadCases(older, newer preload) []kase {
	return []kase{
		{name: "iperf3 under librspreload, 4 MiB each way", telling: true, run: func(m meeting) { measured(m, older) }},
		{name: "nginx and curl under librspreload, 3 MB", telling: true, run: func(m meeting) { served(m, older, newer) }},
		{name: "redis-server and redis-benchmark under librspreload, 10 clients", telling: true, run: func(m meeting) { stored(m, newer) }},
	}
}

// measured has iperf3 send, and receive.
func measured(m meeting, p preload) {
	for _, direction := range []string{"", "-R"} {
		server := p.start(m, "bin/iperf3", "-s", "-1", "-p", "5202")
		server.listens()
		client := p.start(m, "bin/iperf3", append([]string{"-c", m.ip, "-p", "5202", "-n", "4M", "-J"}, strings.Fields(direction)...)...)
		client.succeeds()
		server.succeeds()
		var result struct {
			End struct {
				Sent     struct{ Bytes int } `json:"sum_sent"`
				Received struct{ Bytes int } `json:"sum_received"`
			}
		}
		require.NoError(m, json.Unmarshal([]byte(client.Stdout()), &result))
		require.GreaterOrEqual(m, result.End.Sent.Bytes, 4<<20)
		require.Positive(m, result.End.Received.Bytes)
	}
}

// served has curl get a file from nginx, several times at once, and one that is
// not there.
func served(m meeting, older, newer preload) {
	folder := m.TempDir()
	content := make([]byte, 3_000_000)
	_, err := rand.NewChaCha8([32]byte{3}).Read(content)
	require.NoError(m, err)
	require.NoError(m, os.WriteFile(filepath.Join(folder, "content"), content, 0o644))
	config := filepath.Join(folder, "nginx.conf")
	temporary := ""
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		temporary += fmt.Sprintf("%s_temp_path %s;\n", kind, filepath.Join(folder, kind))
	}
	require.NoError(m, os.WriteFile(config, fmt.Appendf(nil, `
daemon off; master_process off; pid %s/pid; error_log stderr;
events { worker_connections 64; }
http { access_log off; %s server { listen %s:7480; root %s; } }
`, folder, temporary, m.ip, folder), 0o644))
	server := newer.start(m, "sbin/nginx", "-e", "stderr", "-c", config)
	server.listens()
	url := "http://" + m.ip + ":7480/"
	args := []string{"-sS", "--fail", "--parallel", "--parallel-immediate"}
	for i := range 5 {
		args = append(args, "-o", filepath.Join(folder, fmt.Sprint(i)), url+"content")
	}
	older.start(m, "curl", args...).succeeds()
	for i := range 5 {
		got, err := os.ReadFile(filepath.Join(folder, fmt.Sprint(i)))
		require.NoError(m, err)
		require.True(m, bytes.Equal(content, got))
	}
	older.start(m, "curl", "-sS", "--fail", url+"missing").fails()
	require.False(m, server.Ended(), server.Output())
	server.Kill()
}

// stored has redis-cli set and get a value, and redis-benchmark many.
func stored(m meeting, p preload) {
	const port = "7481"
	server := p.start(m, "bin/redis-server", "--port", port, "--bind", m.ip, "--save", "")
	server.listens()
	value := strings.Repeat("0123456789", 10_000)
	for _, command := range [][]string{{"SET", "key", value}, {"GET", "key"}} {
		client := p.start(m, "bin/redis-cli", append([]string{"-h", m.ip, "-p", port}, command...)...)
		client.succeeds()
		require.Contains(m, []string{"OK\n", value + "\n"}, client.Stdout())
	}
	client := p.start(m, "bin/redis-benchmark", "-h", m.ip, "-p", port, "-c", "10", "-n", "2000", "-P", "4", "-t", "set,get,lpush", "--csv")
	client.succeeds()
	require.Equal(m, 4, strings.Count(client.Stdout(), "\n"), client.Output())
	require.False(m, server.Ended(), server.Output())
	server.Kill()
}
