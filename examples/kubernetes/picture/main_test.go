// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package main

import (
	"encoding/xml"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/examples/kubernetes/internal/dashboard"
	"github.com/verbena-go/verbena/examples/kubernetes/internal/scrape"
	"github.com/verbena-go/verbena/ibverbs/stat"
	"github.com/verbena-go/verbena/prometheus/collector"
	"github.com/verbena-go/verbena/rsocket"
	"github.com/verbena-go/verbena/softroce"
)

// file is the dashboard.
const file = "../exporter/dashboard.json"

// talk sends a message through the device in user space, to and fro.
func talk(t *testing.T) {
	t.Helper()
	ln, err := rsocket.Listen("rdma", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	accepted := make(chan error, 1)
	go func() {
		conn, err := ln.Accept()
		if err == nil {
			t.Cleanup(func() { conn.Close() })
			_, err = io.CopyN(conn, conn, 5)
		}
		accepted <- err
	}()
	conn, err := rsocket.Dial("rdma", ln.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	_, err = conn.Write([]byte("hello"))
	require.NoError(t, err)
	_, err = io.ReadFull(conn, make([]byte, 5))
	require.NoError(t, err)
	require.NoError(t, <-accepted)
}

// The dashboard shows a device in user space: these panels have lines, and
// those that a card's counters fill have none.
func TestDashboardShowsTheDevice(t *testing.T) {
	t.Setenv("VERBENA_NETWORK", fmt.Sprint("picture", os.Getpid()))
	if err := softroce.Use(softroce.Config{}); err != nil {
		require.ErrorIs(t, err, os.ErrExist) // chosen by VERBENA_DEVICE
	}
	d, err := dashboard.Load(file)
	require.NoError(t, err)
	registry := prometheus.NewRegistry()
	require.NoError(t, registry.Register(collector.New(collector.Config{Sysfs: emptySysfs(t)})))
	var history scrape.History
	for i := range 3 {
		talk(t)
		page, err := scrape.Take(registry, "n", time.Unix(int64(i), 0))
		require.NoError(t, err)
		history = append(history, page)
	}
	filled := map[string]bool{}
	for _, p := range d.Panels {
		all, err := evaluate(p, history)
		require.NoError(t, err, p.Title)
		filled[p.Title] = len(all) > 0
		for _, s := range all {
			if last := s.values[len(s.values)-1]; p.Title == "Packets sent" || p.Title == "Queue pairs" {
				require.Positive(t, last, p.Title)
			}
			require.NotContains(t, s.name, "{{", "a label that the sample lacks")
		}
	}
	for title, want := range map[string]bool{
		"Ports that carry data": true, "Ports that are down": true, "Failed queue pairs": true, "All pages could be read": true,
		"Packets received": true, "Packets sent": true, "Packets lost or reordered": true, "Answers lost or late": true,
		"Receives that come too late": true, "Congestion": true, "Queue pairs": true, "Memory regions and completion queues": true,
		"Received": false, "Sent": false, "Link errors": false, "Packets not sent": false,
	} {
		have, known := filled[title]
		require.True(t, known, title)
		require.Equal(t, want, have, title)
	}
	svg, err := draw(d, history)
	require.NoError(t, err)
	require.NoError(t, xml.Unmarshal(svg, new(struct{})))
	for _, p := range d.Panels {
		require.Contains(t, string(svg), p.Title)
	}
	require.Equal(t, strings.Count(string(svg), "No data"), len(d.Panels)-strings.Count(string(svg), "▾")-count(filled))
}

// count returns how many panels have lines.
func count(filled map[string]bool) (n int) {
	for _, is := range filled {
		if is {
			n++
		}
	}
	return n
}

// emptySysfs returns a sysfs without devices.
func emptySysfs(t *testing.T) stat.Sysfs {
	t.Helper()
	sys := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(sys, "class"), 0o700))
	return stat.Sysfs(sys)
}

// The program writes a picture when the time is over.
func TestRun(t *testing.T) {
	output := filepath.Join(t.TempDir(), "dashboard.svg")
	require.NoError(t, run(t.Context(), file, output, "n", time.Millisecond))
	svg, err := os.ReadFile(output)
	require.NoError(t, err)
	require.NoError(t, xml.Unmarshal(svg, new(struct{})))
	require.ErrorIs(t, run(t.Context(), "nothing.json", output, "n", time.Millisecond), os.ErrNotExist)
	require.ErrorIs(t, run(t.Context(), file, filepath.Join(output, "x"), "n", time.Millisecond), syscall.ENOTDIR)
}

func TestNumbers(t *testing.T) {
	for value, want := range map[float64]float64{0: 1, 0.3: 0.4, 1: 1, 3: 4, 9: 10, 1500: 2000} {
		require.InDelta(t, want, rounded(value), 1e-9)
	}
	require.Equal(t, "1.5 K", number(1500))
	require.Equal(t, "0.25", number(0.25))
	require.Equal(t, "12.5 G", number(12.5e9))
}
