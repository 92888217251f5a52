// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"fmt"
	"io/fs"
	"slices"
	"sort"
	"strconv"
	"strings"
)

// nearer says which devices of an engine are nearer to a NUMA node than
// another device, by the index of the latter. Bit i is device i.
type nearer [maxDevices]uint16

// findNearer returns which devices are nearer to memory than others, by the
// memory's node, or nil if none is, or the system does not tell. sys is sysfs.
func findNearer(sys fs.FS, devices []*device) map[int]*nearer {
	at := make([]int, len(devices)) // the devices' nodes; negative: not known
	differ := false
	for i, d := range devices {
		at[i] = -1
		if n := readNumbers(sys, "class/infiniband/"+d.name+"/device/numa_node"); len(n) == 1 {
			at[i] = n[0]
		}
		differ = differ || at[i] != at[0]
	}
	if !differ {
		return nil
	}
	const folder = "devices/system/node/"
	var nodes []int
	names, _ := fs.Glob(sys, folder+"node[0-9]*") // fails for a wrong pattern alone
	for _, name := range names {
		if n, err := strconv.Atoi(strings.TrimPrefix(name, folder+"node")); err == nil {
			nodes = append(nodes, n)
		}
	}
	sort.Ints(nodes)
	var all map[int]*nearer
	for _, node := range nodes {
		// The numbers are of the nodes that there are, in their order.
		distances := readNumbers(sys, fmt.Sprintf("%snode%d/distance", folder, node))
		if len(distances) != len(nodes) {
			continue
		}
		distance := func(device int) int {
			if i := slices.Index(nodes, at[device]); i >= 0 {
				return distances[i]
			}
			return 0
		}
		var n nearer
		for i := range devices {
			for j := range devices {
				const least = 10 // distance of a node from itself
				if near := distance(j); least <= near && near < distance(i) {
					n[i] |= 1 << j
				}
			}
		}
		if n != (nearer{}) {
			if all == nil {
				all = map[int]*nearer{}
			}
			all[node] = &n
		}
	}
	return all
}

// readNumbers returns the numbers that a file consists of, or nil.
func readNumbers(sys fs.FS, name string) (all []int) {
	text, _ := fs.ReadFile(sys, name) // without the file, it is empty
	for _, field := range strings.Fields(string(text)) {
		n, err := strconv.Atoi(field)
		if err != nil {
			return nil
		}
		all = append(all, n)
	}
	return all
}

// nearerTo returns which devices are nearer to registered memory, which the
// kernel leaves where it is. It returns nil if none is, or if that is not known
// or differs from page to page.
func (e *Engine) nearerTo(b []byte) *nearer {
	if e.nearer == nil || len(b) == 0 {
		return nil
	}
	node := nodeOf(&b[0])
	if nodeOf(&b[len(b)/2]) != node || nodeOf(&b[len(b)-1]) != node {
		return nil
	}
	return e.nearer[node]
}

// minLeft is what a request counts for at least, of what a path leaves to
// nearer ones: they post no more requests than this in one call anyway.
const minLeft = minShare / maxFlightSlices

// leaves reports whether the path leaves a request to one of a device that is
// nearer to the request's memory, because that has little in flight and to
// take. If it has more, the bandwidth of both devices counts for more than the
// distance. Larger requests are for all devices anyway. The caller holds the
// peer's mu.
func (p *path) leaves(r *request) bool {
	near := r.local.nearer
	if near == nil || r.n > minShare {
		return false
	}
	for _, other := range p.session.up {
		if near[p.local.index]>>other.local.index&1 == 0 || len(other.free) == 0 || other.bytes+p.left >= minShare {
			continue
		}
		if _, fits := r.key(other); fits {
			p.left += max(r.n, minLeft)
			return true
		}
	}
	return false
}
