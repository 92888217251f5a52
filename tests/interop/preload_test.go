// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/rsocket"
)

// A program that knows nothing of RDMA talks to net/http over rsockets, with
// C's library for that preloaded. No program listens on the port of TCP, to
// which it would fall back.
func TestPreload(t *testing.T) {
	d := needDeviceHere(t)
	found, err := filepath.Glob("/usr/lib*/*/rsocket/librspreload.so.1")
	require.NoError(t, err)
	require.NotEmpty(t, found, "librspreload, which comes with librdmacm")
	_, err = exec.LookPath("curl")
	require.NoError(t, err)

	large := make([]byte, 1<<20+7)
	_, err = rand.NewChaCha8([32]byte{}).Read(large)
	require.NoError(t, err)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /small", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "over RDMA\n") })
	mux.HandleFunc("GET /large", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(large) })
	mux.HandleFunc("PUT /copy", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || !bytes.Equal(body, large) {
			w.WriteHeader(http.StatusBadRequest)
		}
	})
	ln, err := rsocket.Listen("rdma", d.IPv4.String()+":0")
	require.NoError(t, err)
	server := &http.Server{Handler: mux}
	served := make(chan error, 1)
	go func() { served <- server.Serve(ln) }()
	defer func() {
		require.NoError(t, server.Shutdown(t.Context()))
		require.ErrorIs(t, <-served, http.ErrServerClosed)
	}()
	_, err = net.Dial("tcp", ln.Addr().String())
	require.ErrorIs(t, err, syscall.ECONNREFUSED)

	url := "http://" + ln.Addr().String()
	curl := func(args ...string) *process.Process {
		cmd := exec.Command("curl", append([]string{"--silent", "--show-error", "--fail"}, args...)...)
		cmd.Env = append(os.Environ(), "LD_PRELOAD="+found[0])
		return process.Run(t, cmd)
	}
	small := curl(url+"/small", url+"/small") // over one connection
	require.Zero(t, small.Wait())
	require.Equal(t, "over RDMA\nover RDMA\n", small.Stdout())

	file := filepath.Join(t.TempDir(), "large")
	require.Zero(t, curl("--output", file, url+"/large").Wait())
	got, err := os.ReadFile(file)
	require.NoError(t, err)
	require.True(t, bytes.Equal(large, got))
	require.Zero(t, curl("--upload-file", file, url+"/copy").Wait())
}
