// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"context"
	"fmt"
	"iter"
	"strings"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/link"
)

func ports(_ context.Context, m *machine) Finding {
	f := Finding{Status: Fail}
	var states []string
	for d, p := range m.ports() {
		if p.State == link.Active {
			f.Status = OK
			states = append(states, portName(d, p)+" is active")
			continue
		}
		why, remedy, command := m.whyDown(d, p)
		states = append(states, fmt.Sprintf("%s is %s: %s", portName(d, p), p.State, why))
		if f.Remedy == "" {
			f.Remedy = remedy
		}
		if command != "" {
			f.Commands = append(f.Commands, command)
		}
	}
	f.Found = strings.Join(states, "; ")
	if len(states) == 0 {
		f.Found, f.Remedy = "no device has a port", askKernel
	}
	if f.Status == OK && (f.Remedy != "" || f.Commands != nil) {
		f.Status = Warn
	}
	return f
}

// ports returns all ports of all devices.
func (m *machine) ports() iter.Seq2[ibverbs.DeviceInfo, ibverbs.PortInfo] {
	return func(yield func(ibverbs.DeviceInfo, ibverbs.PortInfo) bool) {
		for _, d := range m.devices {
			for _, p := range d.Ports {
				if !yield(d, p) {
					return
				}
			}
		}
	}
}

// active returns the ports whose link is up.
func (m *machine) active() iter.Seq2[ibverbs.DeviceInfo, ibverbs.PortInfo] {
	return func(yield func(ibverbs.DeviceInfo, ibverbs.PortInfo) bool) {
		for d, p := range m.ports() {
			if p.State == link.Active && !yield(d, p) {
				return
			}
		}
	}
}

// whyDown returns why a port is not active, and what to do or which command to
// run.
func (m *machine) whyDown(d ibverbs.DeviceInfo, p ibverbs.PortInfo) (why, remedy, command string) {
	netDev := m.netDev(m.netDevOf(d, p))
	switch {
	case m.elsewhere(d, p):
		return "it is on " + m.foreignName(d, p) + ", which is not in this network namespace", m.bringInterface(), ""
	case p.LinkLayer == link.InfiniBand && p.PhysicalState == link.PhysLinkUp:
		return "no subnet manager has set it up", "start one on any host of the fabric, such as opensm", ""
	case p.LinkLayer == link.InfiniBand, netDev.name == "":
		return "the link is " + p.PhysicalState.String(), "plug the cable in, and check that the other end is up", ""
	case !netDev.up:
		return "network interface " + netDev.name + " is down", "", "ip link set " + netDev.name + " up"
	}
	return "network interface " + netDev.name + " has no carrier", "plug the cable in, and check that the other end is up", ""
}
