// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/verbena-go/verbena/ibverbs"
)

// addrs returns the addresses at which a port can be reached.
func (m *machine) addrs(d ibverbs.DeviceInfo, p ibverbs.PortInfo) (addrs []netip.Prefix) {
	for _, i := range m.interfaces(d, p) {
		addrs = append(addrs, i.reachable()...)
	}
	return addrs
}

func addresses(_ context.Context, m *machine) Finding {
	f := Finding{Status: Fail}
	var all, bare []string
	for d, p := range m.active() {
		if m.elsewhere(d, p) {
			continue // the check of interfaces has reported this
		}
		addrs := m.addrs(d, p)
		if len(addrs) == 0 {
			name := m.netDevOf(d, p)
			all = append(all, fmt.Sprintf("%s (%s) has none", portName(d, p), name))
			bare = append(bare, name)
			continue
		}
		f.Status = OK
		all = append(all, fmt.Sprintf("%s has %s", portName(d, p), join(addrs)))
	}
	f.Found = strings.Join(all, "; ")
	if len(bare) == 0 {
		return f
	}
	if f.Status == OK {
		f.Status = Warn
	}
	f.Remedy = "rdma_cm finds devices by IP address, so give the interface one: ip address add ADDRESS/PREFIX dev " + bare[0]
	return f
}

func join[T fmt.Stringer](values []T) string {
	var texts []string
	for _, v := range values {
		texts = append(texts, v.String())
	}
	return strings.Join(texts, ", ")
}
