// SPDX-License-Identifier: Apache-2.0

package stat

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/stat"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
)

// patience is how long anything may take that must happen.
const patience = time.Minute

// object is one of those that rdma prints as JSON.
type object map[string]any

// rdma returns what iproute2's rdma prints, in the order of a number that its
// objects have.
func rdma(t *testing.T, number string, args ...string) []object {
	t.Helper()
	out, err := exec.Command("rdma", append([]string{"-j", "-d"}, args...)...).Output()
	require.NoError(t, err)
	var all []object
	d := json.NewDecoder(strings.NewReader(string(out)))
	d.UseNumber()
	require.NoError(t, d.Decode(&all), "%s", out)
	for i := 1; i < len(all); i++ { // few, and all with a small number
		for j := i; j > 0 && integer(t, all[j], number) < integer(t, all[j-1], number); j-- {
			all[j], all[j-1] = all[j-1], all[j]
		}
	}
	return all
}

func integer(t *testing.T, o object, name string) int64 {
	t.Helper()
	number, ok := o[name].(json.Number)
	require.True(t, ok, "%s of %v", name, o)
	n, err := number.Int64()
	require.NoError(t, err)
	return n
}

// of returns an object with the members that have a value, as rdma has them.
func of(owner stat.Owner, members object) object {
	o := object{}
	for name, v := range members {
		switch v := v.(type) {
		case *uint32:
			if v != nil {
				o[name] = json.Number(fmt.Sprint(*v))
			}
		case string:
			if v != "" {
				o[name] = v
			}
		default:
			o[name] = json.Number(fmt.Sprint(v))
		}
	}
	o["comm"] = owner.Kernel
	if owner.PID != 0 {
		o["pid"], o["comm"] = json.Number(fmt.Sprint(owner.Thread)), owner.Program
	}
	return o
}

// without removes members that stat does not have.
func without(all []object, names ...string) []object {
	for _, o := range all {
		for _, name := range append(names, "ifindex", "ctxn") {
			delete(o, name)
		}
	}
	return all
}

func hex(v *uint32) string {
	if v == nil {
		return ""
	}
	return fmt.Sprintf("%x", *v)
}

func address(valid bool, text string) string {
	if !valid {
		return ""
	}
	return text
}

// compare compares all objects with those that rdma prints.
func compare(t *testing.T, all stat.Resources) {
	t.Helper()
	var ours []object
	for _, q := range all.QueuePairs {
		o := of(q.Owner, object{"ifname": q.Device, "lqpn": q.Number, "type": q.Type, "state": q.State, "pdn": q.PD})
		if q.Port != 0 {
			o["port"] = json.Number(fmt.Sprint(q.Port))
		}
		if q.Peer != 0 {
			o["rqpn"] = json.Number(fmt.Sprint(q.Peer))
		}
		ours = append(ours, o)
	}
	theirs := without(rdma(t, "lqpn", "resource", "show", "qp"), "rq-psn", "sq-psn", "path-mig-state")
	for _, o := range theirs {
		if o["rqpn"] == json.Number("0") {
			delete(o, "rqpn")
		}
	}
	require.Equal(t, theirs, ours)

	ours = nil
	for _, q := range all.CompletionQueues {
		ours = append(ours, of(q.Owner, object{"ifname": q.Device, "cqn": q.Number, "cqe": q.Size, "users": q.Users, "poll-ctx": q.Polling}))
	}
	require.Equal(t, without(rdma(t, "cqn", "resource", "show", "cq"), "adaptive-moderation"), ours)

	ours = nil
	for _, m := range all.MemoryRegions {
		ours = append(ours, of(m.Owner, object{
			"ifname": m.Device, "mrn": m.Number, "mrlen": m.Length, "lkey": hex(m.LKey), "rkey": hex(m.RKey), "pdn": m.PD,
		}))
	}
	require.Equal(t, without(rdma(t, "mrn", "resource", "show", "mr")), ours)

	ours = nil
	for _, pd := range all.ProtectionDomains {
		ours = append(ours, of(pd.Owner, object{"ifname": pd.Device, "pdn": pd.Number, "users": pd.Users}))
	}
	require.Equal(t, without(rdma(t, "pdn", "resource", "show", "pd"), "local_dma_lkey", "unsafe_global_rkey"), ours)

	ours = nil
	for _, id := range all.ConnectionIDs {
		o := of(id.Owner, object{
			"ifname": id.Device, "cm-idn": id.Number, "state": id.State, "ps": id.PortSpace, "qp-type": id.Type,
			"src-addr": address(id.Source.IsValid(), id.Source.String()), "dst-addr": address(id.Dest.IsValid(), id.Dest.String()),
		})
		if id.Port != 0 {
			o["port"] = json.Number(fmt.Sprint(id.Port))
		}
		if id.QueuePair != 0 {
			o["lqpn"] = json.Number(fmt.Sprint(id.QueuePair))
		}
		ours = append(ours, o)
	}
	require.Equal(t, without(rdma(t, "cm-idn", "resource", "show", "cm_id")), ours)
}

// connect makes two ends of a connection, and returns the one that has called.
// Messages of 8 bytes go through it.
func connect(t *testing.T, d testdevice.Device) *rdmacm.Conn {
	t.Helper()
	ln, err := rdmacm.Listen(t.Context(), d.IPv4.String()+":0", nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ln.Close()) })
	accepted := make(chan *rdmacm.Conn, 1)
	go func() {
		defer close(accepted)
		request, err := ln.Accept(t.Context())
		if err != nil {
			return
		}
		if c, err := request.Accept(t.Context(), nil); err == nil {
			accepted <- c
		}
	}()
	caller, err := rdmacm.Dial(t.Context(), ln.Addr().String(), nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, caller.Close()) })
	peer := <-accepted
	require.NotNil(t, peer)
	t.Cleanup(func() { require.NoError(t, peer.Close()) })
	from, err := caller.Alloc(8, ibverbs.AccessLocalWrite)
	require.NoError(t, err)
	into, err := peer.Alloc(8, ibverbs.AccessLocalWrite)
	require.NoError(t, err)
	for range 10 {
		receive, err := peer.PostRecv(into.Sub(0, 8))
		require.NoError(t, err)
		require.NoError(t, caller.Send(t.Context(), from.Sub(0, 8)))
		_, err = receive.Wait(t.Context())
		require.NoError(t, err)
	}
	return caller
}

// own returns the objects of this process.
func own[T any](all []T, owner func(T) stat.Owner) []T {
	var mine []T
	for _, v := range all {
		if owner(v).PID == os.Getpid() {
			mine = append(mine, v)
		}
	}
	return mine
}

// What the kernel says of this process's objects is what it has made, and what
// rdma prints.
func TestResources(t *testing.T) {
	d := testdevice.Needs(t, testdevice.Guest)
	c := connect(t, d)
	all, err := stat.AllResources()
	require.NoError(t, err)
	compare(t, all)

	pairs := own(all.QueuePairs, func(q stat.QueuePair) stat.Owner { return q.Owner })
	require.Len(t, pairs, 2)
	ours := pairs[0]
	if ours.Number != c.QP().Num() {
		ours = pairs[1]
	}
	comm, err := os.ReadFile("/proc/self/comm")
	require.NoError(t, err)
	require.Equal(t, stat.QueuePair{
		Device: d.Name, Port: d.Port, Number: c.QP().Num(), Peer: pairs[0].Number + pairs[1].Number - c.QP().Num(), Type: "RC", State: "RTS",
		PD: ours.PD, Owner: stat.Owner{PID: os.Getpid(), Program: strings.TrimSpace(string(comm)), Thread: ours.Thread},
	}, ours)
	require.NotNil(t, ours.PD)

	states := map[string]int{}
	for _, id := range own(all.ConnectionIDs, func(id stat.ConnectionID) stat.Owner { return id.Owner }) {
		states[id.State]++
		if id.QueuePair == c.QP().Num() {
			require.Equal(t, c.LocalAddr(), id.Source)
			require.Equal(t, c.RemoteAddr(), id.Dest)
		}
	}
	require.Equal(t, 2, states["CONNECT"], states)
	require.Equal(t, 1, states["LISTEN"], states)

	regions := map[uint32]uint64{} // lengths by local key
	for _, m := range own(all.MemoryRegions, func(m stat.MemoryRegion) stat.Owner { return m.Owner }) {
		require.NotNil(t, m.LKey)
		regions[*m.LKey] = m.Length
	}
	mr, err := c.Alloc(12345, ibverbs.AccessLocalWrite)
	require.NoError(t, err)
	require.NotContains(t, regions, mr.LKey())
	all, err = stat.AllResources()
	require.NoError(t, err)
	for _, m := range all.MemoryRegions {
		regions[*m.LKey] = m.Length
	}
	require.Equal(t, uint64(12345), regions[mr.LKey()])
	require.NotEmpty(t, all.CompletionQueues)
	require.Equal(t, "ib_core", all.ProtectionDomains[0].Kernel)

	shared, err := stat.SharedNamespaces()
	require.NoError(t, err)
	out, err := exec.Command("rdma", "system").Output()
	require.NoError(t, err)
	require.Equal(t, strings.Contains(string(out), "netns shared"), shared, "%s", out)
}

// The counters of the port are those that rdma prints, and have counted the
// messages.
func TestCounters(t *testing.T) {
	d := testdevice.Needs(t, testdevice.Guest)
	connect(t, d)
	// The last acknowledgements may still be under way.
	require.EventuallyWithT(t, func(t *assert.CollectT) {
		out, err := exec.Command("rdma", "-j", "statistic", "show", "link", fmt.Sprintf("%s/%d", d.Name, d.Port)).Output()
		require.NoError(t, err)
		var theirs []map[string]any
		require.NoError(t, json.Unmarshal(out, &theirs), "%s", out)
		require.Len(t, theirs, 1)
		device, err := stat.Default.Device(d.Name)
		require.NoError(t, err)
		ours := map[string]any{"ifname": d.Name, "port": float64(d.Port)}
		for _, c := range device.Ports[0].Counters {
			if c.Group == stat.Hardware {
				ours[c.Name] = float64(c.Value)
			}
		}
		require.Equal(t, theirs[0], ours)
	}, patience, time.Millisecond)

	device, err := stat.Default.Device(d.Name)
	require.NoError(t, err)
	port := device.Ports[0]
	require.Equal(t, "ACTIVE", port.State)
	require.Equal(t, "Ethernet", port.LinkLayer)
	require.Positive(t, port.Rate)
	require.Positive(t, port.Lifespan)
	for name, least := range map[string]uint64{"sent_pkts": 20, "rcvd_pkts": 20, "rdma_sends": 10, "rdma_recvs": 10, "req": 1, "rtu": 1} {
		c, is := port.Counter(name)
		require.True(t, is, name)
		require.GreaterOrEqual(t, c.Value, least, name)
	}
}
