// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/link"
)

// leastMTU is the minimum MTU of an interface for RoCE: 256 bytes of payload
// and all headers.
const leastMTU = 352

// interfaces checks that the ports' network interfaces are in this network
// namespace, and that their MTU is large enough.
func interfaces(_ context.Context, m *machine) Finding {
	f := Finding{Status: Fail}
	var all []string
	bad := false
	for d, p := range m.active() {
		on := m.interfaces(d, p)
		switch {
		case m.elsewhere(d, p):
			bad = true
			all = append(all, fmt.Sprintf("%s is on %s, which is not in this network namespace", portName(d, p), m.foreignName(d, p)))
			f.Remedy = m.bringInterface()
		case len(on) == 0:
			bad = true
			all = append(all, portName(d, p)+" has none")
			f.Remedy = "rdma_cm finds devices by the IP addresses of their interfaces; for InfiniBand, load the module ib_ipoib"
		}
		for _, i := range on {
			if i.mtu < leastMTU && isRoCE(d, p) {
				bad = true
				all = append(all, fmt.Sprintf("%s is on %s, whose MTU of %d is below the %d bytes that RoCE needs", portName(d, p), i.name, i.mtu, leastMTU))
				f.Commands = append(f.Commands, "ip link set "+i.name+" mtu 1500")
				continue
			}
			f.Status = OK
			all = append(all, portName(d, p)+" is on "+i.name)
		}
	}
	f.Found = strings.Join(all, "; ")
	if bad && f.Status == OK {
		f.Status = Warn
	}
	return f
}

func isRoCE(d ibverbs.DeviceInfo, p ibverbs.PortInfo) bool {
	return p.LinkLayer == link.Ethernet && d.Device.Transport != libibverbs.IBV_TRANSPORT_IWARP
}

// bringInterface returns what to do if a port's interface is in another network
// namespace.
func (m *machine) bringInterface() string {
	return m.where(
		"run the program in the network namespace of the interface, such as the first, with: nsenter --net=/proc/1/ns/net PROGRAM; "+
			"or move an interface of the device here",
		"give the container the host's network, with docker run --network=host, or an interface of the device",
		"give the pod the node's network, with hostNetwork: true, or an interface of the device, as SR-IOV's CNI plugin does",
	)
}

// interfaces returns the network interfaces of a port in this network
// namespace: the port's own, and those to which its GIDs belong, such as VLANs.
func (m *machine) interfaces(d ibverbs.DeviceInfo, p ibverbs.PortInfo) []netDev {
	names := []string{m.netDevOf(d, p)}
	for _, e := range p.GIDs {
		names = append(names, e.NetDev)
	}
	var found []netDev
	for _, name := range slices.Compact(slices.Sorted(slices.Values(names))) {
		if i := m.netDev(name); i.name != "" {
			found = append(found, i)
		}
	}
	return found
}

// elsewhere reports whether a port's interface is in another network namespace.
// The port then has GIDs, which are made from an interface's addresses, but no
// interface in this namespace.
func (m *machine) elsewhere(d ibverbs.DeviceInfo, p ibverbs.PortInfo) bool {
	return len(p.GIDs) > 0 && p.LinkLayer == link.Ethernet && len(m.interfaces(d, p)) == 0
}

// netDevOf returns the name of a port's interface, or "" if there is none in
// this network namespace. A device in software reports its interface even if it
// has no GID.
func (m *machine) netDevOf(d ibverbs.DeviceInfo, p ibverbs.PortInfo) string {
	if p.NetDev != "" || len(p.GIDs) > 0 {
		return p.NetDev
	}
	return m.read("sys/class/infiniband/" + d.Device.Name + "/parent")
}

// foreignName returns the name of a port's interface in another network
// namespace. If the kernel does not report the name, foreignName returns "an
// interface".
func (m *machine) foreignName(d ibverbs.DeviceInfo, p ibverbs.PortInfo) string {
	for _, e := range p.GIDs {
		if name := m.read(fmt.Sprintf("sys/class/infiniband/%s/ports/%d/gid_attrs/ndevs/%d", d.Device.Name, p.Port, e.Index)); name != "" {
			return name
		}
	}
	return "an interface"
}
