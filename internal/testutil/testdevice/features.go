// SPDX-License-Identifier: Apache-2.0

package testdevice

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/netpoll"
)

// Feature is something that a device may lack, or have too little of.
type Feature struct {
	what  string
	there func(c *ibverbs.Device, a *ibverbs.DeviceAttr) bool
}

// Features that tests are about.
var (
	Atomics = Feature{"atomic operations", func(_ *ibverbs.Device, a *ibverbs.DeviceAttr) bool {
		return a.AtomicCap != libibverbs.IBV_ATOMIC_NONE
	}}
	Windows = Feature{"memory windows", func(_ *ibverbs.Device, a *ibverbs.DeviceAttr) bool { return a.MaxMW > 0 }}
	SRQs    = Feature{"shared receive queues", func(_ *ibverbs.Device, a *ibverbs.DeviceAttr) bool { return a.MaxSRQ > 0 }}
	Groups  = Feature{"multicast groups", func(_ *ibverbs.Device, a *ibverbs.DeviceAttr) bool { return a.MaxMcastGroups > 0 }}
	// XRC are extended reliable connections.
	XRC = Feature{"extended reliable connections", func(_ *ibverbs.Device, a *ibverbs.DeviceAttr) bool {
		return uint64(a.Capabilities)&uint64(libibverbs.IBV_DEVICE_XRC) != 0
	}}
	// Handles are address handles.
	Handles = Feature{"address handles", func(_ *ibverbs.Device, a *ibverbs.DeviceAttr) bool { return a.MaxAH > 0 }}
	// InfiniBand is any transport but iWARP, which has other limits and times of
	// the handshake and only reliable connections.
	InfiniBand = Feature{"another transport than iWARP", func(c *ibverbs.Device, _ *ibverbs.DeviceAttr) bool { return !isIWARP(c) }}
	// Immediate is immediate data, which few devices of iWARP have.
	Immediate = Feature{"immediate data", func(c *ibverbs.Device, _ *ibverbs.DeviceAttr) bool {
		const both = libibverbs.IBV_QP_EX_WITH_SEND_WITH_IMM | libibverbs.IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
		return !isIWARP(c) || creates(c, ibverbs.QPConfig{SendOps: both})
	}}
	// Datagrams are datagram queue pairs with address handles.
	Datagrams = Feature{"datagrams", func(c *ibverbs.Device, a *ibverbs.DeviceAttr) bool {
		return a.MaxAH > 0 && creates(c, ibverbs.QPConfig{Type: ibverbs.QPTypeUD})
	}}
	// DeviceMemory is memory of the device's own.
	DeviceMemory = Feature{"device memory", func(_ *ibverbs.Device, a *ibverbs.DeviceAttr) bool { return a.MaxDeviceMemory > 0 }}
	// NullRegions are regions without memory.
	NullRegions = Feature{"null regions", func(c *ibverbs.Device, _ *ibverbs.DeviceAttr) bool {
		pd, err := c.AllocPD()
		if err != nil {
			return false
		}
		defer func() { _ = pd.Close() }()
		mr, err := pd.AllocNullMR()
		return err == nil && mr.Close() == nil
	}}
	// Unreliable are queue pairs of unreliable connections.
	Unreliable = Feature{"unreliable connections", func(c *ibverbs.Device, _ *ibverbs.DeviceAttr) bool {
		return creates(c, ibverbs.QPConfig{Type: ibverbs.QPTypeUC})
	}}
	// Counters are completion counters.
	Counters = Feature{"completion counters", func(c *ibverbs.Device, _ *ibverbs.DeviceAttr) bool {
		return libibverbs.QueryCompCntrCaps(c.Raw(), &libibverbs.CompCntrCaps{}) == nil
	}}
	// Imports are contexts that share the objects of another one.
	Imports = Feature{"imports", func(c *ibverbs.Device, _ *ibverbs.DeviceAttr) bool {
		fd, err := netpoll.Dup(int(c.Raw().CmdFd))
		if err != nil {
			return false
		}
		imported, err := libibverbs.ImportDevice(int32(fd))
		if errors.Is(err, errors.ErrUnsupported) {
			_ = os.NewFile(uintptr(fd), "import").Close() // no driver has closed it
		}
		return err == nil && libibverbs.CloseDevice(imported) == nil
	}}
	// Pacing are limits of the rates of reliable connections.
	Pacing = Feature{"limits of rates", func(_ *ibverbs.Device, a *ibverbs.DeviceAttr) bool {
		return a.PacketPacing.QPTypes.Has(ibverbs.QPTypeRC)
	}}
	// Queries are queries of a connection's attributes.
	Queries = Feature{"queries of queue pairs", func(c *ibverbs.Device, _ *ibverbs.DeviceAttr) bool {
		return with(c, ibverbs.QPConfig{}, func(qp *ibverbs.QP) bool {
			_, err := qp.Query()
			return err == nil
		})
	}}
	// LatePosts are requests that are posted in the error state.
	LatePosts = Feature{"requests that are posted in the error state", func(c *ibverbs.Device, _ *ibverbs.DeviceAttr) bool {
		return with(c, ibverbs.QPConfig{RecvQueue: 1}, func(qp *ibverbs.QP) bool {
			batch, err := ibverbs.NewRecvBatch(1, 0)
			if err != nil || batch.Recv(0) != nil || qp.SetError() != nil {
				return false
			}
			_, err = qp.PostRecv(batch)
			return err == nil
		})
	}}
	// Solicited are events of solicited completions only.
	Solicited = Feature{"events of solicited completions only", func(c *ibverbs.Device, _ *ibverbs.DeviceAttr) bool {
		channel, err := c.CreateCompChannel()
		if err != nil {
			return false
		}
		defer func() { _ = channel.Close() }()
		cq, err := c.CreateCQ(ibverbs.CQConfig{CompQueue: 1, Channel: channel, SolicitedOnly: true})
		if err != nil {
			return false
		}
		defer func() { _ = cq.Close() }()
		ended, end := context.WithCancel(context.Background())
		end()
		_, err = cq.Wait(ended, make([]ibverbs.WC, 1)) // arms the queue
		return errors.Is(err, context.Canceled)
	}}
	// ParentDomains are thread domains and parent domains.
	ParentDomains = Feature{"parent domains", func(c *ibverbs.Device, _ *ibverbs.DeviceAttr) bool {
		td, err := c.AllocTD()
		return err == nil && td.Close() == nil
	}}
)

// Segments is n segments in a request.
func Segments(n int) Feature {
	return Feature{fmt.Sprintf("%d segments in a request", n), func(_ *ibverbs.Device, a *ibverbs.DeviceAttr) bool { return a.MaxSGE >= n }}
}

// Reads is n RDMA reads in flight.
func Reads(n int) Feature {
	return Feature{fmt.Sprintf("%d RDMA reads in flight", n), func(_ *ibverbs.Device, a *ibverbs.DeviceAttr) bool { return a.MaxQPReadAtomic >= n }}
}

// ReadSegments is n segments in an RDMA read.
func ReadSegments(n int) Feature {
	return Feature{fmt.Sprintf("%d segments in an RDMA read", n), func(_ *ibverbs.Device, a *ibverbs.DeviceAttr) bool { return a.MaxSGERead >= n }}
}

// Requests is n requests in a queue.
func Requests(n int) Feature {
	return Feature{fmt.Sprintf("%d requests in a queue", n), func(_ *ibverbs.Device, a *ibverbs.DeviceAttr) bool { return a.MaxQPWR >= n }}
}

// Completions is n entries in a completion queue.
func Completions(n int) Feature {
	return Feature{fmt.Sprintf("%d entries in a completion queue", n), func(_ *ibverbs.Device, a *ibverbs.DeviceAttr) bool { return a.MaxCQE >= n }}
}

// MTU is n bytes in a packet of the port 1.
func MTU(n int) Feature {
	return Feature{fmt.Sprintf("an MTU of %d bytes", n), func(c *ibverbs.Device, _ *ibverbs.DeviceAttr) bool {
		port, err := c.QueryPort(1)
		return err == nil && port.ActiveMTU.Bytes() >= n
	}}
}

// Tags is n receives in the tag list of a shared receive queue.
func Tags(n int) Feature {
	return Feature{fmt.Sprintf("%d receives in a tag list", n), func(_ *ibverbs.Device, a *ibverbs.DeviceAttr) bool { return a.TagMatching.MaxTags >= n }}
}

// Operations are operations that ibv_wr_* functions post to reliable
// connections.
func Operations(ops libibverbs.QpCreateSendOpsFlags) Feature {
	return Feature{ops.String(), func(c *ibverbs.Device, _ *ibverbs.DeviceAttr) bool {
		return creates(c, ibverbs.QPConfig{SendOps: ops})
	}}
}

// Inline is n bytes of inline data.
func Inline(n int) Feature {
	return Feature{fmt.Sprintf("%d bytes of inline data", n), func(c *ibverbs.Device, _ *ibverbs.DeviceAttr) bool {
		return creates(c, ibverbs.QPConfig{MaxInline: n})
	}}
}

// isIWARP reports whether the device uses iWARP.
func isIWARP(c *ibverbs.Device) bool {
	return c.Raw().Device.TransportType == libibverbs.IBV_TRANSPORT_IWARP
}

// creates reports whether the device has such queue pairs.
func creates(c *ibverbs.Device, config ibverbs.QPConfig) bool {
	return with(c, config, func(*ibverbs.QP) bool { return true })
}

// with returns what f returns for such a queue pair, or false if the device has
// none.
func with(c *ibverbs.Device, config ibverbs.QPConfig, f func(*ibverbs.QP) bool) bool {
	pd, err := c.AllocPD()
	if err != nil {
		return false
	}
	defer func() { _ = pd.Close() }()
	cq, err := c.CreateCQ(ibverbs.CQConfig{CompQueue: 1})
	if err != nil {
		return false
	}
	defer func() { _ = cq.Close() }()
	config.SendCQ, config.RecvCQ, config.SendQueue = cq, cq, 1
	qp, err := pd.CreateQP(config)
	if err != nil {
		return false
	}
	is := f(qp)
	return qp.Close() == nil && is
}

// Has reports whether the device has all of these.
func (d Device) Has(t testing.TB, all ...Feature) bool {
	t.Helper()
	lack := ""
	d.open(t, func(c *ibverbs.Device, a *ibverbs.DeviceAttr) { lack = lacking(c, a, all) })
	return lack == ""
}

// HasAttr is Has for a device that the test has opened, and its attributes.
func HasAttr(c *ibverbs.Device, a *ibverbs.DeviceAttr, all ...Feature) bool {
	return lacking(c, a, all) == ""
}

// Have skips the test if the device lacks one of these, since the test is about
// it.
func (d Device) Have(t testing.TB, all ...Feature) {
	t.Helper()
	d.open(t, func(c *ibverbs.Device, a *ibverbs.DeviceAttr) { d.HaveAttr(t, c, a, all...) })
}

// HaveAttr is Have for a device that the test has opened, and its attributes.
func (d Device) HaveAttr(t testing.TB, c *ibverbs.Device, a *ibverbs.DeviceAttr, all ...Feature) {
	t.Helper()
	if what := lacking(c, a, all); what != "" {
		excused.Store(t.Name(), true)
		t.Skipf("is about %s, which %s does not have", what, d.Name)
	}
}

// excused has the names of the tests that skip as the device lacks something.
var excused sync.Map

// lacking returns the first of these that the device does not have, or "".
func lacking(c *ibverbs.Device, a *ibverbs.DeviceAttr, all []Feature) string {
	for _, f := range all {
		if !f.there(c, a) {
			return f.what
		}
	}
	return ""
}

// open opens the device for a call of f.
func (d Device) open(t testing.TB, f func(c *ibverbs.Device, a *ibverbs.DeviceAttr)) {
	t.Helper()
	c, err := ibverbs.Open(d.Name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	a, err := c.QueryDevice()
	if err != nil {
		t.Fatal(err)
	}
	f(c, &a)
}
