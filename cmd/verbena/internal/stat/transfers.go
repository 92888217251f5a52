// SPDX-License-Identifier: Apache-2.0

package stat

import (
	"context"
	"errors"
	"slices"

	"github.com/verbena-go/verbena/ibverbs/stat"
	"github.com/verbena-go/verbena/transfer"
)

// engines is the source of the engines of package transfer: the devices of each
// peer of each, whose counters are those of the peer.
type engines struct {
	growing bool // whether only counters that never fall are wanted
}

// transferGroup is the group of the counters of peers.
const transferGroup stat.Group = "transfer"

func (s engines) devices(ctx context.Context) ([]device, error) {
	found, err := transfer.Engines(ctx)
	if err != nil {
		return nil, err
	}
	var all []device
	for _, e := range found {
		owner := stat.Owner{PID: e.PID, Program: e.Program}
		if e.Error != "" {
			all = append(all, device{Device: stat.Device{Ports: []stat.Port{}, Counters: []stat.Counter{}}, Process: &owner, Error: e.Error})
		}
		for _, p := range e.Peers {
			one := func(name string, counters []stat.Counter) {
				if s.growing { // the others have no unit
					counters = slices.DeleteFunc(counters, func(c stat.Counter) bool { return c.Unit == stat.Unknown })
				}
				all = append(all, device{Device: stat.Device{Name: name, Ports: []stat.Port{}, Counters: counters}, Process: &owner, Peer: p.Peer})
			}
			one("", peerCounters(p))
			for _, d := range p.Devices {
				one(d.Device, deviceCounters(d))
			}
		}
	}
	return merged(all), nil
}

// merged adds up the counters of peers with the same address, device and
// process: a program may have dialed an address more than once. Processes of
// other PID namespaces are not known from each other, so their engines are not
// added up.
func merged(all []device) []device {
	type key struct {
		device, peer string
		pid          int
		engine       *stat.Owner // of a process without a known PID
	}
	at := map[key]int{}
	var sums []device
	for _, d := range all {
		if d.Error != "" {
			sums = append(sums, d)
			continue
		}
		k := key{device: d.Name, peer: d.Peer, pid: d.Process.PID}
		if k.pid == 0 {
			k.engine = d.Process
		}
		i, known := at[k]
		if !known {
			at[k] = len(sums)
			sums = append(sums, d)
			continue
		}
		for j := range d.Counters {
			sums[i].Counters[j].Value += d.Counters[j].Value
		}
	}
	return sums
}

func peerCounters(p transfer.PeerStats) []stat.Counter {
	up := uint64(1)
	if p.ControlIsDown {
		up = 0
	}
	return []stat.Counter{
		{Group: transferGroup, Name: "up", Value: up, Help: "Control connections that are up."},
		{Group: transferGroup, Name: "requests", Value: p.Requests, Unit: stat.Requests, Help: "Requests that are done."},
		{Group: transferGroup, Name: "requests_failed", Value: p.Failed, Unit: stat.Requests, Help: "Requests that failed."},
		{Group: transferGroup, Name: "requests_pending", Value: uint64(p.Pending), Help: "Requests that are submitted and not done."},
		{Group: transferGroup, Name: "notifications_sent", Value: p.Sent, Unit: stat.Events, Help: "Notifications that the peer has."},
		{Group: transferGroup, Name: "notifications_received", Value: p.Received, Unit: stat.Events, Help: "Notifications of the peer that arrived."},
		{Group: transferGroup, Name: "sessions", Value: p.Sessions, Unit: stat.Events, Help: "Sessions that began."},
		{Group: transferGroup, Name: "regions", Value: uint64(p.Regions), Help: "Regions that the peer offers."},
	}
}

func deviceCounters(d transfer.DeviceStats) []stat.Counter {
	return []stat.Counter{
		{Group: transferGroup, Name: "connections", Value: uint64(d.Connections), Help: "Data connections that are up."},
		{Group: transferGroup, Name: "connections_made", Value: d.Made, Unit: stat.Events, Help: "Data connections that were made."},
		{Group: transferGroup, Name: "connections_lost", Value: d.Lost, Unit: stat.Events, Help: "Data connections that ended."},
		{Group: transferGroup, Name: "read_bytes", Value: d.Read, Unit: stat.Bytes, Help: "Bytes that were read from the peer."},
		{Group: transferGroup, Name: "written_bytes", Value: d.Written, Unit: stat.Bytes, Help: "Bytes that were written to the peer."},
		{Group: transferGroup, Name: "slices", Value: d.Slices, Unit: stat.Requests, Help: "Work requests that are done."},
		{Group: transferGroup, Name: "slices_repeated", Value: d.Repeated, Unit: stat.Requests, Help: "Work requests that failed and were to be repeated."},
	}
}

func (engines) resources(context.Context) (stat.Resources, error) {
	return stat.Resources{}, errors.ErrUnsupported // -r and -t exclude each other
}
