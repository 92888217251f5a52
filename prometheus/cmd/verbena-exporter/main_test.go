// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// lines is standard error, which gives away the address.
type lines struct {
	mu      sync.Mutex
	text    bytes.Buffer
	address chan string
}

var listening = regexp.MustCompile(`listening on (\S+)\n`)

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if found := listening.FindSubmatch(b); found != nil {
		l.address <- string(found[1])
	}
	return l.text.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func get(t *testing.T, url string) (status int, text string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(body)
}

func TestPage(t *testing.T) {
	sys := t.TempDir()
	counters := filepath.Join(sys, "class/infiniband/mlx5_0/ports/1/counters")
	require.NoError(t, os.MkdirAll(counters, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(counters, "port_rcv_data"), []byte("1000\n"), 0o600))

	ctx, cancel := context.WithCancel(t.Context())
	stderr := &lines{address: make(chan string, 1)}
	ended := make(chan error, 1)
	go func() {
		o := &options{}
		if err := o.flags().Parse([]string{"--listen", "127.0.0.1:0", "-s", sys, "--resources=false", "--soft=false"}); err != nil {
			ended <- err
			return
		}
		ended <- o.export(ctx, stderr)
	}()
	address := "http://" + <-stderr.address
	status, text := get(t, address+"/metrics")
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, text, "\nrdma_port_rcv_data_bytes_total{device=\"mlx5_0\",port=\"1\"} 4000\n")
	_, text = get(t, address)
	require.Contains(t, text, `href="/metrics"`)
	status, _ = get(t, address+"/other")
	require.Equal(t, http.StatusNotFound, status)

	for _, name := range []string{"odd name", "ODD.name"} {
		require.NoError(t, os.WriteFile(filepath.Join(counters, name), []byte("1\n"), 0o600))
	}
	status, text = get(t, address+"/metrics")
	require.Equal(t, http.StatusOK, status, text)
	require.Contains(t, text, "\nrdma_port_odd_name{device=\"mlx5_0\",port=\"1\"} 1\n")
	require.Contains(t, text, "\nrdma_port_rcv_data_bytes_total{device=\"mlx5_0\",port=\"1\"} 4000\n")
	require.Contains(t, stderr.String(), "was collected before with the same name and label values")

	require.NoError(t, os.RemoveAll(filepath.Join(sys, "class")))
	_, text = get(t, address+"/metrics")
	require.Contains(t, text, "rdma_collector_success{source=\"counters\"} 0\n")
	require.Contains(t, stderr.String(), "verbena-exporter: stat: list the RDMA devices: ")

	cancel()
	require.NoError(t, <-ended, "an interrupt is how it is meant to end")
}

func TestWrong(t *testing.T) {
	for name, tt := range map[string]struct {
		args   []string
		status int
		says   string
	}{
		"help":     {[]string{"-h"}, 0, "address to listen on"},
		"version":  {[]string{"--version"}, 0, "verbena-exporter "},
		"flag":     {[]string{"-x"}, 2, "unknown shorthand flag: 'x' in -x; -h lists the flags"},
		"old flag": {[]string{"-listen", ":1"}, 2, "; -h lists the flags"},
		"argument": {[]string{"more"}, 2, `unexpected argument "more"; -h lists the flags`},
		"nothing":  {[]string{"-l", ""}, 2, "-l is empty"},
		"address":  {[]string{"--listen", "nowhere"}, 1, "verbena-exporter: listen tcp: "},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			require.Equal(t, tt.status, run(tt.args, &stdout, &stderr))
			says, silent := &stderr, &stdout
			if tt.status == 0 {
				says, silent = silent, says
			}
			require.Contains(t, says.String(), tt.says)
			require.Empty(t, silent.String())
		})
	}
}
