// SPDX-License-Identifier: Apache-2.0

package soft

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/softroce"
)

// stat is the command that shows the processes that use devices.
type stat struct{ asJSON bool }

func (s *stat) program() *program.Program {
	return &program.Program{
		Name: "verbena softroce stat", Usage: "verbena softroce stat [-j]", Misused: program.ExitMisused,
		Summary: "show the processes that use the device, and what was sent again", Operands: []*string{}, Run: s.run,
		Flags: func(f *program.Flags) { f.JSON(&s.asJSON) },
		Text: `
Shows the processes that use the device in user space, whether Go programs or
not: for each of their devices, its addresses, what they have made, the queue
pairs with type, state and peer, and what was sent and had to be sent again. It finds those of its own
user and network namespace; with VERBENA_NETWORK in the environment, those with
the same text there.

What was done again is counted for each queue pair, and for the device with the
queue pairs that are gone: packets that were sent again; timeouts; sequence
errors, when the peer has missed a packet; receivers that were not ready; and
missed answers, to a read or atomic. Messages of the connection manager are not
counted.

On the network, where routers mark packets of connections instead of dropping
them, there is a line on congestion: marked packets that arrived, notifications
that were sent to their senders, and those that were received, after which a
queue pair sends more slowly for some milliseconds.

A process that does not answer within two seconds, as one that is stopped, is
shown with that.

Exit status: 0, also if there is no such process, as standard error then says; 1
if that cannot be found out.

Example: verbena softroce stat`,
	}
}

func (s *stat) run(ctx context.Context, out program.Output) error {
	all, err := softroce.Processes(ctx)
	if err != nil {
		return err
	}
	return printAll(out, all, s.asJSON)
}

func printAll(out program.Output, all []softroce.Process, asJSON bool) error {
	if asJSON {
		return out.JSON(all)
	}
	if len(all) == 0 {
		fmt.Fprintln(out.Stderr, "no process uses the device in user space")
	}
	for i, p := range all {
		if i > 0 {
			out.Printf("\n")
		}
		printProcess(out.Stdout, p)
	}
	return nil
}

func printProcess(w io.Writer, p softroce.Process) {
	if p.Error != "" {
		fmt.Fprintf(w, "process %d: %s\n", p.PID, p.Error)
		return
	}
	network := ""
	if p.Network != "" {
		network = fmt.Sprintf(", network %q", p.Network)
	}
	fmt.Fprintf(w, "%s, process %d%s\n", p.Program, p.PID, network)
	for _, d := range p.Devices {
		printDevice(w, d)
	}
}

func printDevice(w io.Writer, d softroce.Device) {
	addresses := "no address"
	for i, a := range d.Addresses {
		if i == 0 {
			addresses = "addresses"
		}
		addresses += " " + a.String()
	}
	fmt.Fprintf(w, "  %s, %s, GUID %s, %s\n", d.Name, d.State, d.GUID, addresses)
	o := d.Objects
	fmt.Fprintf(w, "  contexts %d, protection domains %d, memory regions %d, windows %d, address handles %d, completion queues %d, shared receive queues %d\n",
		o.Contexts, o.ProtectionDomains, o.MemoryRegions, o.MemoryWindows, o.AddressHandles, o.CompletionQueues, o.SharedReceiveQueues)
	c := d.Counters
	fmt.Fprintf(w, "  packets sent %d, received %d, sent again %d; timeouts %d, sequence errors %d, receivers not ready %d, missed answers %d\n",
		c.PacketsSent, c.PacketsReceived, c.PacketsSentAgain, c.Timeouts, c.SequenceErrors, c.ReceiversNotReady, c.MissedAnswers)
	if c.PacketsMarked+c.NotificationsSent+c.NotificationsReceived > 0 {
		fmt.Fprintf(w, "  congestion: packets marked %d, notifications sent %d, received %d\n",
			c.PacketsMarked, c.NotificationsSent, c.NotificationsReceived)
	}
	if len(d.QueuePairs) == 0 {
		return
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "  queue pair\ttype\tstate\tpeer\tsent again\ttimeouts\tsequence\tnot ready\tmissed")
	for _, q := range d.QueuePairs {
		peer := "-"
		if q.Peer != nil {
			peer = fmt.Sprintf("%#x at %v", q.Peer.Number, q.Peer.Address)
		}
		fmt.Fprintf(table, "  %#x\t%s\t%s\t%s\t%d\t%d\t%d\t%d\t%d\n", q.Number, q.Type, q.State, peer,
			q.PacketsSentAgain, q.Timeouts, q.SequenceErrors, q.ReceiversNotReady, q.MissedAnswers)
	}
	table.Flush()
}
