// SPDX-License-Identifier: Apache-2.0

//go:build linux

package node

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/verbena-go/verbena/softroce/internal/engine"
	"github.com/verbena-go/verbena/softroce/internal/link"
	"github.com/verbena-go/verbena/softroce/internal/stat"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// publish makes the process answer the queries of "verbena softroce stat". It
// does nothing if the system refuses to open the socket.
func (n *Node) publish() {
	_, _ = link.Publish(func() []byte {
		text, _ := json.Marshal(n.stat()) // cannot fail for these types
		return text
	})
}

// stat returns the statistics of the process and its devices.
func (n *Node) stat() stat.Process {
	program, _ := os.ReadFile("/proc/self/comm") // without /proc, the program has no name
	n.mu.Lock()
	defer n.mu.Unlock()
	p := stat.Process{Program: strings.TrimSuffix(string(program), "\n"), Network: os.Getenv(link.NetworkVariable)}
	for _, c := range n.devices.cards {
		p.Devices = append(p.Devices, c.stat())
	}
	return p
}

// stat returns the statistics of the card's device.
func (c *Card) stat() stat.Device {
	device := c.current
	d := stat.Device{
		Name: c.Name(), GUID: guidText(device.GUID()), State: "active", QueuePairs: []stat.QueuePair{}, Addresses: []netip.Addr{},
		Objects: c.n.program.Objects(c),
	}
	counters := device.Counters()
	d.Counters = stat.Counters{
		PacketsSent: counters.PacketsSent, PacketsReceived: counters.PacketsReceived, PacketsMarked: counters.PacketsMarked,
		NotificationsSent: counters.NotificationsSent, NotificationsReceived: counters.NotificationsReceived,
		Retries: stat.Retries(counters.Retries),
	}
	switch {
	case c.removed:
		d.State = "removed"
	case !c.connected():
		d.State = "down"
	}
	if table, err := device.GIDs(); err == nil {
		for _, e := range table {
			d.Addresses = append(d.Addresses, wire.GID(*e.Gid.Raw()).Addr())
		}
	}
	for _, q := range device.QPs() {
		d.QueuePairs = append(d.QueuePairs, statOf(q))
	}
	return d
}

// statOf returns the statistics of a queue pair.
func statOf(q *engine.QP) stat.QueuePair {
	s := stat.QueuePair{
		Number: q.Number(), Type: strings.TrimPrefix(q.Type().String(), "IBV_QPT_"), State: strings.TrimPrefix(q.State().String(), "IBV_QPS_"),
		Retries: stat.Retries(q.Retries()),
	}
	if gid, number, ok := q.Peer(); ok {
		s.Peer = &stat.Peer{Address: wire.GID(*gid.Raw()).Addr(), Number: number}
	}
	return s
}

// guidText formats a GUID as the tools of rdma-core do.
func guidText(guid uint64) string {
	return fmt.Sprintf("%04x:%04x:%04x:%04x", guid>>48, guid>>32&0xFFFF, guid>>16&0xFFFF, guid&0xFFFF)
}
