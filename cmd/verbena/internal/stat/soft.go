// SPDX-License-Identifier: Apache-2.0

package stat

import (
	"context"
	"os"
	"strings"

	"github.com/verbena-go/verbena/ibverbs/stat"
	"github.com/verbena-go/verbena/softroce"
)

// soft reports whether this program uses the device in user space.
func soft() bool {
	name, _, _ := strings.Cut(os.Getenv("VERBENA_DEVICE"), ":")
	return name == "soft"
}

// userSpace is the source of the devices in user space, of which each process
// has its own.
type userSpace struct{}

// softGroup is the group of the counters of these devices.
const softGroup stat.Group = "softroce"

func (userSpace) devices(ctx context.Context) ([]device, error) {
	processes, err := softroce.Processes(ctx)
	if err != nil {
		return nil, err
	}
	var all []device
	for _, p := range processes {
		owner := ownerOf(p)
		for _, d := range p.Devices { // none if the process does not answer
			all = append(all, device{stat.Device{Name: d.Name, Counters: []stat.Counter{}, Ports: []stat.Port{{
				Port: 1, State: strings.ToUpper(d.State), LinkLayer: "Ethernet", Counters: counters(d.Counters),
			}}}, &owner, "", ""})
		}
	}
	return all, nil
}

func ownerOf(p softroce.Process) stat.Owner { return stat.Owner{PID: p.PID, Program: p.Program} }

// counters converts the counters of a device in user space to the type for the
// kernel's devices.
func counters(c softroce.Counters) []stat.Counter {
	return []stat.Counter{
		{Group: softGroup, Name: "packets_sent", Value: c.PacketsSent, Unit: stat.Packets, Help: "Packets sent."},
		{Group: softGroup, Name: "packets_received", Value: c.PacketsReceived, Unit: stat.Packets, Help: "Packets received."},
		{Group: softGroup, Name: "packets_sent_again", Value: c.PacketsSentAgain, Unit: stat.Packets, Help: "Packets sent again."},
		{Group: softGroup, Name: "timeouts", Value: c.Timeouts, Unit: stat.Events, Help: "Times that no answer came in time."},
		{Group: softGroup, Name: "sequence_errors", Value: c.SequenceErrors, Unit: stat.Events, Help: "Times that the peer has missed a packet."},
		{Group: softGroup, Name: "receivers_not_ready", Value: c.ReceiversNotReady, Unit: stat.Events, Help: "Times that the peer had no receive posted."},
		{Group: softGroup, Name: "missed_answers", Value: c.MissedAnswers, Unit: stat.Events, Help: "Times that an answer to a read or atomic was lost."},
	}
}

// resources returns the queue pairs. For other objects, the devices report only
// numbers, which softroce stat shows.
func (userSpace) resources(ctx context.Context) (stat.Resources, error) {
	all := stat.Resources{
		QueuePairs: []stat.QueuePair{}, CompletionQueues: []stat.CompletionQueue{}, MemoryRegions: []stat.MemoryRegion{},
		ProtectionDomains: []stat.ProtectionDomain{}, ConnectionIDs: []stat.ConnectionID{},
	}
	processes, err := softroce.Processes(ctx)
	for _, p := range processes {
		for _, d := range p.Devices {
			for _, q := range d.QueuePairs {
				one := stat.QueuePair{Device: d.Name, Port: 1, Number: q.Number, Type: q.Type, State: q.State, Owner: ownerOf(p)}
				if q.Peer != nil {
					one.Peer = q.Peer.Number
				}
				all.QueuePairs = append(all.QueuePairs, one)
			}
		}
	}
	return all, err
}
