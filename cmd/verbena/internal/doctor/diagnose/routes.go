// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// route is a line of the kernel's routing table.
type route struct{ netDev, destination string }

// routes checks that there are routes through the interfaces, and that no two
// interfaces lead to the same network.
func routes(_ context.Context, m *machine) Finding {
	table := append(m.routes4(), m.routes6()...)
	f := Finding{Status: OK}
	var all []string
	owner := map[string]string{} // interface by destination
	for d, p := range m.active() {
		for _, i := range m.interfaces(d, p) {
			if len(i.reachable()) == 0 {
				continue
			}
			n := 0
			for _, r := range table {
				if r.netDev != i.name {
					continue
				}
				n++
				if other := owner[r.destination]; other != "" && other != i.name {
					f.Status = Warn
					f.Remedy = fmt.Sprintf("%s and %s lead to the same network, and replies may leave through the wrong one: "+
						"give them different networks, or rules by source address", other, i.name)
				}
				owner[r.destination] = i.name
			}
			all = append(all, fmt.Sprintf("%d through %s", n, i.name))
			if n == 0 {
				f.Status = Warn
				f.Remedy = "no other host can be reached through " + i.name + ": give its address a prefix shorter than a whole address, or add a route"
			}
		}
	}
	f.Found = strings.Join(slices.Compact(all), ", ")
	return f
}

// routes4 reads the main IPv4 routing table.
func (m *machine) routes4() (table []route) {
	for line := range strings.Lines(m.read("proc/net/route")) {
		if f := strings.Fields(line); len(f) >= 8 && f[0] != "Iface" {
			table = append(table, route{f[0], f[1] + "/" + f[7]})
		}
	}
	return table
}

// routes6 reads the IPv6 routes, except those to single addresses, link-local
// ones and multicast ones.
func (m *machine) routes6() (table []route) {
	const single = "80"
	for line := range strings.Lines(m.read("proc/net/ipv6_route")) {
		f := strings.Fields(line)
		if len(f) < 10 || f[1] == single || strings.HasPrefix(f[0], "fe80") || strings.HasPrefix(f[0], "ff") {
			continue
		}
		table = append(table, route{f[9], f[0] + "/" + f[1]})
	}
	return table
}
