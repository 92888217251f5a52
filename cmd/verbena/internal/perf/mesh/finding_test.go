// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/golden"
)

// fleet returns a result of n hosts, whose links differ by up to 4 %. change
// changes a link from host i to host j.
func fleet(n int, rails []string, change func(l *Link, i, j int)) *Result {
	r := &Result{Rails: rails}
	name := func(i int) string { return fmt.Sprintf("node%d", i) }
	for i := range n {
		h := Host{Name: name(i)}
		for _, rail := range rails {
			h.Ports = append(h.Ports, Port{strings.TrimSuffix(rail, " port 1"), 1, true})
		}
		r.Hosts = append(r.Hosts, h)
	}
	for _, rail := range rails {
		for i := range n {
			for j := range n {
				if i == j {
					continue
				}
				noise := 1 + 0.01*float64((7*i+3*j)%5)
				l := Link{From: name(i), To: name(j), Rail: rail, Latency: 2 * noise, Tail: 3 * noise, Bandwidth: 98 / noise}
				if change != nil {
					change(&l, i, j)
				}
				r.Links = append(r.Links, l)
			}
		}
	}
	r.Judge()
	return r
}

var (
	oneRail  = []string{"mlx5_0 port 1"}
	twoRails = []string{"mlx5_0 port 1", "mlx5_1 port 1"}
)

// between reports whether a link is between two hosts, in either direction.
func between(i, j, a, b int) bool { return i == a && j == b || i == b && j == a }

func TestFindings(t *testing.T) {
	for name, tt := range map[string]struct {
		hosts  int
		rails  []string
		change func(l *Link, i, j int)
		want   []string
	}{
		"nothing": {8, twoRails, nil, nil},
		"two hosts, of which none can be named": {2, oneRail, func(l *Link, i, _ int) {
			if i == 0 {
				l.Bandwidth = 1
			}
		}, nil},
		"a delayed pair": {16, oneRail, func(l *Link, i, j int) {
			if between(i, j, 3, 11) {
				l.Latency, l.Tail = 7, 8
			}
		}, []string{"node3 and node11, on mlx5_0 port 1: latency 7.00 us, 3.43 times the median of 2.04 (MAD 1 %)"}},
		"a lossy link in one direction": {16, oneRail, func(l *Link, i, j int) {
			if i == 9 && j == 2 {
				l.Tail, l.Bandwidth = 4000, 20
			}
		}, []string{
			"node9 to node2, on mlx5_0 port 1: 99 % latency 4000 us, 1307 times the median of 3.06 (MAD 1 %)",
			"node9 to node2, on mlx5_0 port 1: bandwidth 20.0 Gb/s, 0.21 of the median of 96.1 (MAD 1 %)",
		}},
		"a slow pair of three hosts": {3, oneRail, func(l *Link, i, j int) {
			if between(i, j, 0, 2) {
				l.Bandwidth = 40
			}
		}, []string{"node0 and node2, on mlx5_0 port 1: bandwidth 40.0 Gb/s, 0.42 of the median of 95.1 (MAD 1 %)"}},
		"a slow host of five": {5, oneRail, func(l *Link, i, j int) {
			if i == 4 || j == 4 {
				l.Bandwidth = 40
			}
		}, []string{"node4, mlx5_0 port 1, 8 of 8 links from and to it: bandwidth 40.0 Gb/s, 0.42 of the median of 94.2 (MAD 3 %)"}},
		"a host that sends slowly": {8, oneRail, func(l *Link, i, _ int) {
			if i == 5 {
				l.Bandwidth = 50
			}
		}, []string{"node5, mlx5_0 port 1, 7 of 7 links from it: bandwidth 50.0 Gb/s, 0.53 of the median of 95.1 (MAD 1 %)"}},
		"a slow port, and another pair": {8, twoRails, func(l *Link, i, j int) {
			if l.Rail == twoRails[1] && (i == 6 || j == 6 || between(i, j, 1, 2)) {
				l.Latency = 5
			}
		}, []string{
			"node6, mlx5_1 port 1, 14 of 14 links from and to it: latency 5.00 us, 2.43 times the median of 2.06 (MAD 2 %)",
			"node1 and node2, on mlx5_1 port 1: latency 5.00 us, 2.43 times the median of 2.06 (MAD 2 %)",
		}},
		"a slow host with two ports": {8, twoRails, func(l *Link, i, j int) {
			if i == 6 || j == 6 {
				l.Latency = 5
			}
		}, []string{"node6, all ports, 28 of 28 links from and to it: latency 5.00 us, 2.43 times the median of 2.06 (MAD 1.5 %)"}},
		"a slow rail": {8, twoRails, func(l *Link, _, _ int) {
			if l.Rail == twoRails[0] {
				l.Bandwidth /= 2
			}
		}, []string{"all of mlx5_0 port 1: bandwidth 48.0 Gb/s, 0.50 of that of mlx5_1 port 1, 96.1"}},
		"a failing pair": {8, oneRail, func(l *Link, i, j int) {
			if between(i, j, 0, 1) {
				*l = Link{From: l.From, To: l.To, Rail: l.Rail, Error: "node0: timeout\nnode1: stopped"}
			}
		}, []string{"node0 and node1, on mlx5_0 port 1: node0: timeout; node1: stopped"}},
		"less than a quarter worse": {8, oneRail, func(l *Link, i, j int) {
			l.Latency = 2
			if between(i, j, 0, 1) {
				l.Latency = 2.4
			}
		}, nil},
		"noise": {8, oneRail, func(l *Link, i, j int) { l.Latency, l.Bandwidth = 2+float64((i*5+j*3)%7), 20+10*float64((i*5+j*3)%7) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			r := fleet(tt.hosts, tt.rails, tt.change)
			require.Equal(t, tt.want, texts(r))
			for _, f := range r.Findings {
				require.NotEmpty(t, f.Kind)
				require.NotEmpty(t, f.What)
			}
		})
	}
}

// A host that has died explains what failed with it.
func TestFindingsOfDeadHost(t *testing.T) {
	r := fleet(6, oneRail, func(l *Link, i, j int) {
		if i == 2 || j == 2 {
			*l = Link{From: l.From, To: l.To, Rail: l.Rail, Error: "broken"}
		}
	})
	require.Len(t, r.Findings, 1)
	require.Equal(t, "port", r.Findings[0].Kind)
	r.Hosts[2].Error = "the agent has closed the connection"
	r.Judge()
	require.Equal(t, []string{"node2: the agent has closed the connection"}, texts(r))
	require.Equal(t, "host", r.Findings[0].Kind)
}

func TestWrite(t *testing.T) {
	r := fleet(6, twoRails, func(l *Link, i, j int) {
		switch {
		case between(i, j, 1, 4):
			l.Latency = 30
		case l.Rail == twoRails[1] && i == 0 && j == 5:
			*l = Link{From: l.From, To: l.To, Rail: l.Rail, Error: "node5: no memory"}
		}
	})
	r.Hosts[3].Ports[1].Active = false
	var kept []Link
	for _, l := range r.Links {
		if l.Rail != twoRails[1] || l.From != "node3" && l.To != "node3" {
			kept = append(kept, l)
		}
	}
	r.Links = kept
	r.Judge()
	var text strings.Builder
	r.Write(&text)
	golden.Compare(t, "testdata/table.txt", text.String())

	text.Reset()
	fleet(2, oneRail, nil).Write(&text)
	require.Contains(t, text.String(), "\nNothing stands out.\n")
}

func TestMedian(t *testing.T) {
	require.Equal(t, 2.0, median([]float64{3, 1, 2}))
	require.Equal(t, 2.5, median([]float64{4, 1, 3, 2}))
	require.Equal(t, []string{"123", "12.3", "1.23", "0.12"}, []string{Number(123.4), Number(12.34), Number(1.234), Number(0.1234)})
}
