// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"context"
	"fmt"
	"strings"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/link"
)

// gids checks that the interfaces' addresses have GIDs.
func gids(_ context.Context, m *machine) Finding {
	f := Finding{Status: Fail}
	var all, bad []string
	for d, p := range m.active() {
		if len(m.addrs(d, p)) == 0 {
			continue
		}
		text, good := portGIDs(d, p)
		all = append(all, fmt.Sprintf("%s has %s", portName(d, p), text))
		if good {
			f.Status = OK
		} else {
			bad = append(bad, m.netDevOf(d, p))
		}
	}
	f.Found = strings.Join(all, "; ")
	if len(bad) == 0 {
		return f
	}
	if f.Status == OK {
		f.Status = Warn
	}
	f.Remedy = "remove and add the addresses of " + bad[0] + ", from which the kernel makes the GIDs; " +
		"for RoCE v2 see the card's and the driver's settings"
	return f
}

func portGIDs(d ibverbs.DeviceInfo, p ibverbs.PortInfo) (text string, good bool) {
	switch {
	case d.Device.Transport == libibverbs.IBV_TRANSPORT_IWARP:
		return "no need of them", true
	case p.LinkLayer != link.Ethernet:
		return fmt.Sprintf("%d", len(p.GIDs)), len(p.GIDs) > 0
	}
	var v2 []ibverbs.GIDEntry
	for _, e := range p.GIDs {
		if e.Type == ibverbs.GIDTypeRoCEv2 && e.GID.Addr().IsGlobalUnicast() {
			v2 = append(v2, e)
		}
	}
	return fmt.Sprintf("%d of RoCE v2 with an address", len(v2)), len(v2) > 0
}
