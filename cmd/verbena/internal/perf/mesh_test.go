// SPDX-License-Identifier: Apache-2.0

package perf

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/cmd/verbena/internal/perf/mesh"
	"github.com/verbena-go/verbena/internal/testutil/golden"
)

func TestMeshConfig(t *testing.T) {
	for args, check := range map[string]func(c mesh.Config){
		"--mesh a,b": func(c mesh.Config) {
			require.Equal(t, []string{"a", "b"}, c.Hosts)
			require.Equal(t, 18515, c.Port)
			require.Equal(t, 30*time.Second, c.Wait)
			require.Equal(t, []any{"send_lat", 2, 1, 0, false}, []any{c.Latency.Test, c.Latency.Size, c.Latency.Duration, c.Latency.Iterations, c.Latency.Events})
			require.Equal(t, []any{"write_bw", 65536, 1, 128}, []any{c.Bandwidth.Test, c.Bandwidth.Size, c.Bandwidth.Duration, c.Bandwidth.Depth})
		},
		"--mesh a,b -n 50 -s 4096 -q 4 -e -t 32 -p 7 -W 5": func(c mesh.Config) {
			require.Equal(t, 7, c.Port)
			require.Equal(t, 5*time.Second, c.Wait)
			require.Equal(t, []any{2, 0, 50, 1, 16, true}, []any{c.Latency.Size, c.Latency.Duration, c.Latency.Iterations, c.Latency.QPs, c.Latency.Depth, c.Latency.Events})
			require.Equal(t, []any{4096, 0, 50, 4, 32, true}, []any{c.Bandwidth.Size, c.Bandwidth.Duration, c.Bandwidth.Iterations, c.Bandwidth.QPs, c.Bandwidth.Depth, c.Bandwidth.Events})
		},
	} {
		o := &options{}
		require.NoError(t, o.program().Parse(strings.Fields(args)), args)
		c, err := o.meshConfig()
		require.NoError(t, err, args)
		check(c)
	}
}

// A result of fixed numbers as JSON.
func TestMeshJSON(t *testing.T) {
	ports := []mesh.Port{{Device: "mlx5_0", Port: 1, Active: true}}
	r := &mesh.Result{Rails: []string{"mlx5_0 port 1"}}
	for i := range 4 {
		r.Hosts = append(r.Hosts, mesh.Host{Name: fmt.Sprintf("node%d", i), Ports: ports})
	}
	r.Hosts[3].Error, r.Hosts[3].Ports = "connection refused", []mesh.Port{}
	for i, from := range r.Hosts[:3] {
		for j, to := range r.Hosts[:3] {
			if i == j {
				continue
			}
			l := mesh.Link{From: from.Name, To: to.Name, Rail: r.Rails[0], Latency: 2, Tail: 3, Bandwidth: 96}
			if i+j == 1 {
				l.Bandwidth = 24
			}
			r.Links = append(r.Links, l)
		}
	}
	r.Judge()
	var stdout bytes.Buffer
	require.NoError(t, program.Output{Stdout: &stdout}.JSON(r))
	golden.Compare(t, "testdata/mesh.json", stdout.String())
	require.True(t, r.Failed())
}

// A mesh without a token, or with a list that is none, fails at once.
func TestMeshFails(t *testing.T) {
	t.Setenv(mesh.TokenVariable, "")
	status, _, stderr := tested.Run("--mesh a,b")
	require.Equal(t, 1, status)
	require.Contains(t, stderr, "export VERBENA_TOKEN=")
	t.Setenv(mesh.TokenVariable, "0123456789abcdef")
	status, _, stderr = tested.Run("--mesh a")
	require.Equal(t, 1, status)
	require.Equal(t, "verbena perf: a mesh needs two hosts or more\n", stderr)
	status, stdout, stderr := tested.Run("--mesh 127.0.0.1:1,127.0.0.1:2 -W 1 --plot " + filepath.Join(t.TempDir(), "no", "mesh.svg"))
	require.Equal(t, 1, status)
	require.Empty(t, stdout) // before anything is measured
	require.Contains(t, stderr, "no such file or directory")
	svg := filepath.Join(t.TempDir(), "mesh.svg")
	status, stdout, stderr = tested.Run("--mesh 127.0.0.1:1,127.0.0.1:2 -W 1 --plot " + svg)
	require.Equal(t, 1, status)
	require.Contains(t, stdout, "fails: 127.0.0.1:1: ")
	require.Contains(t, stderr, "nothing to draw")
	_, err := os.Stat(svg)
	require.ErrorIs(t, err, os.ErrNotExist)
}
