// SPDX-License-Identifier: Apache-2.0

package stat

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/netip"
	"slices"

	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/ibverbs/stat"
)

const none = "-" // what is printed for nothing

// ownerName returns the text for an owner.
func ownerName(o stat.Owner) string {
	switch {
	case o.Kernel != "":
		return "[" + o.Kernel + "]"
	case o.PID == 0 && o.Program == "":
		return "unknown"
	case o.PID == 0:
		return o.Program
	case o.Program == "":
		return fmt.Sprintf("process %d", o.PID)
	}
	return fmt.Sprintf("%s (%d)", o.Program, o.PID)
}

func (o *options) showResources(ctx context.Context, out program.Output, s source) error {
	if _, err := o.devices(ctx, s); err != nil {
		return err
	}
	all, err := s.resources(ctx)
	if err != nil {
		return err
	}
	if o.device != "" {
		all = of(all, o.device)
	}
	switch {
	case o.asJSON:
		return out.JSON(all)
	case o.all:
		return printObjects(out.Stdout, all)
	}
	return printOwners(out.Stdout, all)
}

// of returns the objects of a device.
func of(all stat.Resources, device string) stat.Resources {
	all.QueuePairs = slices.DeleteFunc(all.QueuePairs, func(o stat.QueuePair) bool { return o.Device != device })
	all.CompletionQueues = slices.DeleteFunc(all.CompletionQueues, func(o stat.CompletionQueue) bool { return o.Device != device })
	all.MemoryRegions = slices.DeleteFunc(all.MemoryRegions, func(o stat.MemoryRegion) bool { return o.Device != device })
	all.ProtectionDomains = slices.DeleteFunc(all.ProtectionDomains, func(o stat.ProtectionDomain) bool { return o.Device != device })
	all.ConnectionIDs = slices.DeleteFunc(all.ConnectionIDs, func(o stat.ConnectionID) bool { return o.Device != device })
	return all
}

// sum holds the numbers of objects that an owner has on a device.
type sum struct {
	device                                    string
	owner                                     stat.Owner
	pairs, queues, regions, domains, ids, mem uint64
}

// sums adds up the objects of each owner on each device. It ignores which
// thread created them.
func sums(all stat.Resources) []*sum {
	var list []*sum
	find := func(device string, owner stat.Owner) *sum {
		owner.Thread = 0
		i := slices.IndexFunc(list, func(s *sum) bool { return s.device == device && s.owner == owner })
		if i < 0 {
			i = len(list)
			list = append(list, &sum{device: device, owner: owner})
		}
		return list[i]
	}
	for _, o := range all.QueuePairs {
		find(o.Device, o.Owner).pairs++
	}
	for _, o := range all.CompletionQueues {
		find(o.Device, o.Owner).queues++
	}
	for _, o := range all.MemoryRegions {
		s := find(o.Device, o.Owner)
		s.regions++
		s.mem += o.Length
	}
	for _, o := range all.ProtectionDomains {
		find(o.Device, o.Owner).domains++
	}
	for _, o := range all.ConnectionIDs {
		find(o.Device, o.Owner).ids++
	}
	slices.SortStableFunc(list, func(a, b *sum) int {
		return cmp.Or(cmp.Compare(a.device, b.device), cmp.Compare(a.owner.PID, b.owner.PID), cmp.Compare(a.owner.Kernel, b.owner.Kernel))
	})
	return list
}

func printOwners(w io.Writer, all stat.Resources) error {
	t := newTable(w)
	fmt.Fprintln(t, "DEVICE\tPROCESS\tQP\tCQ\tMR\tBYTES\tPD\tCM_ID")
	for _, s := range sums(all) {
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\n", s.device, ownerName(s.owner), s.pairs, s.queues, s.regions, s.mem, s.domains, s.ids)
	}
	return t.Flush()
}

// text returns the formatted value of a pointer, or a dash if the pointer is
// nil.
func text[T any](format string, v *T) string {
	if v == nil {
		return none
	}
	return fmt.Sprintf(format, *v)
}

// positive returns a number as text, or a dash if it is 0.
func positive[T uint32 | int](n T) string {
	if n == 0 {
		return none
	}
	return fmt.Sprint(n)
}

func socket(a netip.AddrPort) string {
	if !a.IsValid() {
		return none
	}
	return a.String()
}

// printObjects prints a table for each kind of objects.
func printObjects(w io.Writer, all stat.Resources) error {
	t := newTable(w)
	fmt.Fprintln(t, "QP\tDEVICE\tPORT\tTYPE\tSTATE\tPEER\tPD\tPROCESS")
	for _, o := range all.QueuePairs {
		fmt.Fprintf(t, "%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n",
			o.Number, o.Device, positive(o.Port), o.Type, o.State, positive(o.Peer), text("%d", o.PD), ownerName(o.Owner))
	}
	fmt.Fprintln(t, "\nCQ\tDEVICE\tSIZE\tUSERS\tPOLLING\tPROCESS")
	for _, o := range all.CompletionQueues {
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%s\t%s\n", text("%d", o.Number), o.Device, o.Size, o.Users, cmp.Or(o.Polling, none), ownerName(o.Owner))
	}
	fmt.Fprintln(t, "\nMR\tDEVICE\tBYTES\tLKEY\tRKEY\tPD\tPROCESS")
	for _, o := range all.MemoryRegions {
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%s\t%s\t%s\n",
			text("%d", o.Number), o.Device, o.Length, text("%#x", o.LKey), text("%#x", o.RKey), text("%d", o.PD), ownerName(o.Owner))
	}
	fmt.Fprintln(t, "\nPD\tDEVICE\tUSERS\tPROCESS")
	for _, o := range all.ProtectionDomains {
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\n", text("%d", o.Number), o.Device, o.Users, ownerName(o.Owner))
	}
	fmt.Fprintln(t, "\nCM_ID\tDEVICE\tPORT\tSTATE\tSPACE\tQP\tSOURCE\tDESTINATION\tPROCESS")
	for _, o := range all.ConnectionIDs {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", text("%d", o.Number), o.Device, positive(o.Port), o.State, o.PortSpace,
			positive(o.QueuePair), socket(o.Source), socket(o.Dest), ownerName(o.Owner))
	}
	return t.Flush()
}
