// SPDX-License-Identifier: Apache-2.0

//go:build linux

package applications

import (
	"fmt"
	"strings"
	"time"
)

// row is how long an application took: 0 where it did not run.
type row struct {
	name                    string
	device, tcp, udp, apart time.Duration
}

type table []row

func (t table) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-42s %10s %10s %6s %10s %10s\n", "", "device", "TCP", "ratio", "UDP", "namespaces")
	for _, r := range t {
		fmt.Fprintf(&b, "%-42s", r.name)
		column := func(d time.Duration) {
			if d == 0 {
				fmt.Fprintf(&b, " %10s", "")
				return
			}
			fmt.Fprintf(&b, " %8.2f s", d.Seconds())
		}
		column(r.device)
		column(r.tcp)
		if r.tcp > 0 {
			fmt.Fprintf(&b, " %6.2f", r.device.Seconds()/r.tcp.Seconds())
		} else {
			fmt.Fprintf(&b, " %6s", "")
		}
		column(r.udp)
		column(r.apart)
		b.WriteByte('\n')
	}
	return b.String()
}
