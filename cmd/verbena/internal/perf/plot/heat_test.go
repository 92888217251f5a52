// SPDX-License-Identifier: Apache-2.0

package plot

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/cmd/verbena/internal/perf/mesh"
	"github.com/verbena-go/verbena/internal/testutil/golden"
)

// fleet returns the result of a mesh of n hosts with one delayed pair, one link
// with little bandwidth, and one that failed.
func fleet(n int, rails ...string) *mesh.Result {
	r := &mesh.Result{Rails: rails}
	for i := range n {
		h := mesh.Host{Name: fmt.Sprintf("node<%d>", i)}
		for _, rail := range rails {
			h.Ports = append(h.Ports, mesh.Port{Device: strings.TrimSuffix(rail, " port 1"), Port: 1, Active: true})
		}
		r.Hosts = append(r.Hosts, h)
	}
	for _, rail := range rails {
		for i, from := range r.Hosts {
			for j, to := range r.Hosts {
				noise := 1 + 0.01*float64((7*i+3*j)%5)
				l := mesh.Link{From: from.Name, To: to.Name, Rail: rail, Latency: 2 * noise, Tail: 3 * noise, Bandwidth: 98 / noise}
				switch {
				case i == j:
					continue
				case i+j == 3:
					l.Latency, l.Tail = 9, 30
				case i == 5 && j == 0:
					l.Bandwidth = 20
				case i == 4 && j == 1:
					l = mesh.Link{From: from.Name, To: to.Name, Rail: rail, Error: "no memory"}
				}
				r.Links = append(r.Links, l)
			}
		}
	}
	r.Judge()
	return r
}

// The golden file is worth a look in a browser when it changes.
func TestDrawHeat(t *testing.T) {
	file := filepath.Join(t.TempDir(), "heat.svg")
	require.NoError(t, DrawHeat(file, fleet(6, "mlx5_0 port 1", "mlx5_1 port 1")))
	svg, err := os.ReadFile(file)
	require.NoError(t, err)
	all := texts(t, svg)
	for _, text := range []string{"1 node<0>", "latency on mlx5_0 port 1", "bandwidth on mlx5_1 port 1", "node<5> to node<0>: 20 Gb/s, 0.21 times the median", "failed"} {
		require.Contains(t, all, text)
	}
	golden.Compare(t, filepath.Join("testdata", "heat.svg"), string(svg))

	svg = newHeat(fleet(40, "mlx5_0 port 1")).render()
	require.NotContains(t, texts(t, svg), "2.04", "there is no room for numbers")
	require.ErrorContains(t, DrawHeat(file, &mesh.Result{}), "nothing to draw")
	require.ErrorContains(t, DrawHeat("heat.png", fleet(6, "a")), "a plot is an SVG file")
}

func TestHeatColour(t *testing.T) {
	for factor, want := range map[float64]string{1: "#ffffff", 8: "#b2182b", 100: "#b2182b", 0.125: "#2166ac", 1e-9: "#2166ac"} {
		require.Equal(t, want, heatColour(factor), factor)
	}
}
