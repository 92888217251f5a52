// SPDX-License-Identifier: Apache-2.0

package ibsim

import (
	"fmt"
	"strings"
)

// net collects the links of a fabric.
type net struct {
	order []string            // names of the nodes, in the order in which they were added
	head  map[string]string   // type of each node, and its number of ports
	lines map[string][]string // a line for each linked port of each node
}

func newNet() *net { return &net{head: map[string]string{}, lines: map[string][]string{}} }

func (n *net) node(kind string, ports int, name string) {
	n.order = append(n.order, name)
	n.head[name] = fmt.Sprintf("%s\t%d", kind, ports)
}

func (n *net) link(a string, aPort int, b string, bPort int) {
	n.lines[a] = append(n.lines[a], fmt.Sprintf("[%d]\t%q[%d]", aPort, b, bPort))
	if a != b || aPort != bPort {
		n.lines[b] = append(n.lines[b], fmt.Sprintf("[%d]\t%q[%d]", bPort, a, aPort))
	}
}

// String returns the net as ibsim reads it.
func (n *net) String() string {
	var b strings.Builder
	for _, name := range n.order {
		fmt.Fprintf(&b, "%s %q\n%s\n\n", n.head[name], name, strings.Join(n.lines[name], "\n"))
	}
	return b.String()
}

// Small returns a net of two switches with two links between them, and a host
// at each: Hca1 and Hca2.
func Small() string {
	n := newNet()
	n.node("Hca", 2, "Hca1")
	n.node("Hca", 2, "Hca2")
	n.node("Switch", 8, "Switch1")
	n.node("Switch", 8, "Switch2")
	n.link("Hca1", 1, "Switch1", 1)
	n.link("Hca2", 2, "Switch2", 2)
	n.link("Switch1", 3, "Switch2", 3)
	n.link("Switch1", 4, "Switch2", 4)
	return n.String()
}

// FatTree returns a net of two levels of switches, Spine1, Spine2 and so on,
// and Leaf1, Leaf2 and so on. Each spine has a link to each leaf. Each leaf has
// the given number of hosts: Host1-1 is the first host of the first leaf.
func FatTree(spines, leaves, hosts int) string {
	n := newNet()
	for leaf := range leaves {
		for host := range hosts {
			n.node("Hca", 1, fmt.Sprintf("Host%d-%d", leaf+1, host+1))
		}
	}
	for leaf := range leaves {
		n.node("Switch", hosts+spines, fmt.Sprintf("Leaf%d", leaf+1))
	}
	for spine := range spines {
		n.node("Switch", leaves, fmt.Sprintf("Spine%d", spine+1))
	}
	for leaf := range leaves {
		name := fmt.Sprintf("Leaf%d", leaf+1)
		for host := range hosts {
			n.link(fmt.Sprintf("Host%d-%d", leaf+1, host+1), 1, name, host+1)
		}
		for spine := range spines {
			n.link(name, hosts+spine+1, fmt.Sprintf("Spine%d", spine+1), leaf+1)
		}
	}
	return n.String()
}

// Chain returns a net of a host, Host, and a chain of switches: Host has a link
// to Switch1, Switch1 to Switch2, and so on.
func Chain(switches int) string {
	n := newNet()
	n.node("Hca", 1, "Host")
	for i := range switches {
		n.node("Switch", 4, fmt.Sprintf("Switch%d", i+1))
	}
	n.link("Host", 1, "Switch1", 1)
	for i := 1; i < switches; i++ {
		n.link(fmt.Sprintf("Switch%d", i), 2, fmt.Sprintf("Switch%d", i+1), 1)
	}
	return n.String()
}

// Ring returns a net of a host and a ring of switches. A cable connects two
// ports of the first switch.
func Ring(switches int) string {
	n := newNet()
	n.node("Hca", 1, "Host")
	for i := range switches {
		n.node("Switch", 6, fmt.Sprintf("Switch%d", i+1))
	}
	n.link("Host", 1, "Switch1", 1)
	for i := range switches {
		n.link(fmt.Sprintf("Switch%d", i+1), 2, fmt.Sprintf("Switch%d", (i+1)%switches+1), 3)
	}
	n.link("Switch1", 4, "Switch1", 5)
	return n.String()
}
