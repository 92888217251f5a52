// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/link"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rdmacm/endpoint"
)

// Where selects the device and the peer of a measurement.
type Where struct {
	Device  string // name of the device; empty means the one with the address of the control connection, or else the first
	Port    int    // port of the device; 0 means the first active one
	Server  string // address of the server; empty if this end is the server
	TCPPort int
	RDMACM  bool // whether to connect queue pairs with rdma_cm, at the same port number
	Conn    bool // whether to use an rdmacm.Conn, at the same port number
}

// Check returns the reason why no test can be done on this machine, so that a
// server can report it before it waits for a client.
func (w Where) Check() error {
	if w.RDMACM || w.Conn {
		ep, err := endpoint.New(rdmacm.PortSpaceTCP)
		if err == nil {
			err = ep.Close()
		}
		if err != nil {
			return err
		}
	}
	names := []string{w.Device}
	if w.Device == "" {
		devices, err := ibverbs.Devices()
		if err != nil {
			return err
		}
		if len(devices) == 0 {
			return ibverbs.ErrNoDevice
		}
		names = nil
		for _, d := range devices {
			names = append(names, d.Name)
		}
	}
	var errs []error
	for _, name := range names { // one device that can be opened is enough
		c, err := ibverbs.Open(name)
		if err == nil {
			return c.Close()
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// end is one end of a test: a queue pair with memory. One half of the memory is
// for sending, and the other for receiving or for the peer's writes.
type end struct {
	*Test
	control *control
	close   []func() error // functions that close the objects, in the order in which these were created

	device   *ibverbs.Device
	pd       *ibverbs.PD
	mr       *ibverbs.MR
	half     int
	sends    *ibverbs.CQ
	recvs    *ibverbs.CQ
	unpolled int // number of sent messages whose completions have not been polled; used by answeredTurn only
	qps      []*ibverbs.QP
	qp       *ibverbs.QP  // the first queue pair
	conn     *rdmacm.Conn // connection; nil if the queue pair is used directly
	receiver *rdmacm.Receiver
	locals   []ibverbs.QPAddr       // addresses of the queue pairs, without rdma_cm
	peers    []ibverbs.RemoteBuffer // the peer's memory for each queue pair
	to       []ibverbs.Destination  // destinations of datagrams

	life      context.Context // ends with the connection, or with the control connection
	deadline  time.Time       // end of a test with a duration; zero if there is no duration, or if the test has not begun
	expecting bool            // whether this end waits for messages of the peer
	progress  Progress
}

// shortest is the minimum number of bytes of a half, as in perftest.
const shortest = 4096

// newEnd makes and connects an end.
func newEnd(ctx context.Context, t *Test, where Where, c *control) (_ *end, err error) {
	fitted := *t
	e := &end{Test: &fitted, control: c, life: ctx, expecting: true, half: max(slices.Max(t.Sizes)+ibverbs.GRHLen, shortest)}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.Close())
		}
	}()
	if where.Conn {
		return e, e.connectConn(ctx, where)
	}
	if where.RDMACM {
		return e, e.connectWithCM(ctx, where)
	}
	return e, e.connect(where)
}

// Close frees the resources of the end.
func (e *end) Close() error {
	var errs []error
	for _, f := range slices.Backward(e.close) {
		errs = append(errs, f())
	}
	e.close = nil
	return errors.Join(errs...)
}

func (e *end) open(where Where) (err error) {
	switch local, _ := netip.ParseAddrPort(e.control.LocalAddr().String()); {
	case where.Device != "":
		e.device, err = ibverbs.Open(where.Device)
	default:
		if e.device, _, err = ibverbs.OpenAddr(local.Addr().Unmap()); err == nil {
			break
		}
		var devices []ibverbs.DeviceEntry
		if devices, err = ibverbs.Devices(); err != nil {
			return err
		}
		if len(devices) == 0 {
			return ibverbs.ErrNoDevice
		}
		e.device, err = ibverbs.Open(devices[0].Name)
	}
	if err == nil {
		e.close = append(e.close, e.device.Close)
	}
	return err
}

// allocate creates everything but the queue pair, and returns the queue pair's
// config.
func (e *end) allocate() (config ibverbs.QPConfig, err error) {
	if e.pd, err = e.device.AllocPD(); err != nil {
		return config, err
	}
	e.close = append(e.close, e.pd.Close)
	if err := e.fit(e.device, e.pd); err != nil {
		return config, err
	}
	e.mr, err = e.pd.Alloc(2*e.half, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteWrite|ibverbs.AccessRemoteRead|ibverbs.AccessRemoteAtomic)
	if err != nil {
		return config, err
	}
	e.close = append(e.close, e.mr.Close)
	depth := e.Depth
	if e.answered() {
		depth = max(depth, 2*pollBatch)
	}
	if e.sends, err = e.queue((depth+e.Receives)*e.QPs, e.Events && !e.answered()); err != nil {
		return config, err
	}
	e.recvs = e.sends
	if e.Bandwidth && !e.Both || e.answered() {
		if e.recvs, err = e.queue(e.Receives*e.QPs, e.Events); err != nil {
			return config, err
		}
	}
	return ibverbs.QPConfig{
		Type: e.Transport, SendCQ: e.sends, RecvCQ: e.recvs,
		SendQueue: depth, RecvQueue: e.Receives, MaxInline: e.Inline,
	}, nil
}

// fit reduces what Test.Fit names to what the device has. No call reports the
// limit of inline data, so fit creates queue pairs until one succeeds.
func (e *end) fit(device *ibverbs.Device, pd *ibverbs.PD) error {
	if e.Fit.Receives {
		attr, err := device.QueryDevice()
		if err != nil {
			return err
		}
		e.Receives = min(e.Receives, max(attr.MaxQPWR, 1))
	}
	if !e.Fit.Inline || e.Inline == 0 {
		return nil
	}
	cq, err := device.CreateCQ(ibverbs.CQConfig{CompQueue: 1})
	if err != nil {
		return err
	}
	for ; e.Inline > 0; e.Inline /= 2 {
		qp, err := pd.CreateQP(ibverbs.QPConfig{Type: e.Transport, SendCQ: cq, RecvCQ: cq, SendQueue: 1, MaxInline: e.Inline})
		if err == nil {
			return errors.Join(qp.Close(), cq.Close())
		}
		if !errors.Is(err, syscall.EINVAL) {
			break // the test's own queue pair fails as well, and says why
		}
	}
	return cq.Close()
}

// answered reports whether a turn waits only for the peer's message, as
// perftest does with events. If this end spins, a turn waits for both
// completions in one call.
func (e *end) answered() bool { return e.Events && !e.Bandwidth && e.Op.received() }

// queue creates a completion queue with the given number of entries, and with a
// channel if events is set.
func (e *end) queue(entries int, events bool) (*ibverbs.CQ, error) {
	config := ibverbs.CQConfig{CompQueue: entries, Spin: -1} // with -e, waits must not spin
	if events {
		channel, err := e.device.CreateCompChannel()
		if err != nil {
			return nil, err
		}
		e.close = append(e.close, channel.Close)
		config.Channel = channel
	}
	cq, err := e.device.CreateCQ(config)
	if err == nil {
		e.close = append(e.close, cq.Close)
	}
	return cq, err
}

// connect connects with keys that are exchanged over the control connection.
func (e *end) connect(where Where) error {
	if err := e.open(where); err != nil {
		return err
	}
	config, err := e.allocate()
	if err != nil {
		return err
	}
	for range e.QPs {
		qp, err := e.pd.CreateQP(config)
		if err != nil {
			return err
		}
		e.close = append(e.close, qp.Close)
		e.qps = append(e.qps, qp)
	}
	e.qp = e.qps[0]
	options := ibverbs.QPAddrConfig{Port: where.Port}
	if addr, err := netip.ParseAddrPort(e.control.LocalAddr().String()); err == nil {
		if _, err := e.device.FindGID(addr.Addr().Unmap()); err == nil {
			options.GID.Addr = addr.Addr().Unmap()
		}
	}
	for _, qp := range e.qps {
		local, err := qp.Addr(options)
		if err != nil {
			return err
		}
		e.locals = append(e.locals, local)
	}
	mtu, err := e.control.settle(e.locals[0].MTU)
	if err != nil {
		return err
	}
	e.offer()
	port, err := e.device.QueryPort(e.locals[0].Port)
	if err != nil {
		return err
	}
	for i, local := range e.locals {
		mine := &e.control.mine[i]
		mine.LID, mine.QPN, mine.PSN, mine.ReadDepth = uint32(local.LID), local.QPNum, local.PSN, uint32(local.ReadDepth)
		if port.LinkLayer == link.Ethernet {
			mine.GID = local.GID
		}
	}
	theirs, err := e.agree()
	if err != nil {
		return err
	}
	for i := range e.qps {
		if err := e.connectQP(i, theirs[i], mtu); err != nil {
			return err
		}
	}
	return nil
}

// connectQP connects queue pair i to the queue pair of the peer with the key
// theirs.
func (e *end) connectQP(i int, theirs key, mtu ibverbs.MTU) error {
	qp, local := e.qps[i], e.locals[i]
	remote := ibverbs.QPAddr{
		QPNum: theirs.QPN, PSN: theirs.PSN, LID: uint16(theirs.LID), GID: theirs.GID, MTU: mtu,
		ReadDepth: int(theirs.ReadDepth), Port: local.Port, QKey: ibverbs.DefaultQKey,
	}
	if e.Transport != ibverbs.QPTypeUD {
		return qp.ConnectTo(local, remote, ibverbs.ConnectConfig{Timeout: e.Timeout})
	}
	if err := qp.Activate(local, 0); err != nil {
		return err
	}
	to, err := e.pd.CreateDestination(local, remote)
	if err == nil {
		e.close = append(e.close, to.AH.Close)
		e.to = append(e.to, to)
	}
	return err
}

// offer puts the address of the half that the peer may use into this end's
// keys. All queue pairs use the same half, because its content does not matter.
func (e *end) offer() {
	e.control.mine = make([]key, e.QPs)
	for i := range e.control.mine {
		e.control.mine[i].Buffer = e.mr.Remote().Sub(uint64(e.half), uint64(e.half))
	}
}

// agree exchanges the keys of all queue pairs, as often as perftest does before
// it connects.
func (e *end) agree() (all []key, err error) {
	if !e.Bandwidth && e.Op != Send && e.Op != WriteImm {
		if err := e.control.sync(); err != nil {
			return nil, err
		}
	}
	for i := range e.QPs {
		theirs, err := e.control.keys(i)
		if err != nil {
			return nil, err
		}
		if i > 0 && theirs.QPN == all[i-1].QPN {
			return nil, errQPs // the peer has no further queue pair, and repeats its first key
		}
		all = append(all, theirs)
		e.control.peerQPNs = append(e.control.peerQPNs, theirs.QPN)
		theirs.Buffer.Len = uint64(e.half)
		e.peers = append(e.peers, theirs.Buffer)
	}
	return all, nil
}

// agreed exchanges keys once more, as often and in the order as perftest does
// after it has connected.
func (e *end) agreed() error {
	order := make([]int, 0, e.QPs+1)
	if e.Op == Send {
		order = append(order, 0)
	}
	for i := range e.QPs {
		order = append(order, i)
	}
	if e.Op != Send {
		order = append(order, 0)
	}
	for _, i := range order {
		if err := e.control.syncWith(i); err != nil {
			return err
		}
	}
	return nil
}

// peerBuffer returns the peer's memory for a message of a size on queue pair i.
func (e *end) peerBuffer(i, size int) ibverbs.RemoteBuffer { return e.peers[i].Sub(0, uint64(size)) }

// mine returns the memory from which a message of a size is sent.
func (e *end) mine(size int) ibverbs.Segment { return e.mr.Sub(0, size) }

// theirs returns the memory in which a message of a size is received, after the
// header of a datagram.
func (e *end) theirs(size int) ibverbs.Segment {
	if e.Transport == ibverbs.QPTypeUD {
		size += ibverbs.GRHLen
	}
	return e.mr.Sub(e.half, size)
}

// add adds a request of queue pair i to a batch.
func (e *end) add(b *ibverbs.SendBatch, i, size int, flags ibverbs.SendFlags) error {
	if size <= e.Inline && !e.Op.oneSided() {
		flags |= ibverbs.SendInline
	}
	id, mine := sendID(i), e.mine(size)
	switch e.Op {
	case Send:
		if e.Transport == ibverbs.QPTypeUD {
			return b.SendTo(id, e.to[i], flags, mine)
		}
		return b.Send(id, flags, mine)
	case Write:
		return b.Write(id, e.peerBuffer(i, size), flags, mine)
	case WriteImm:
		return b.WriteImm(id, e.peerBuffer(i, size), uint32(size), flags, mine)
	case Read:
		return b.Read(id, e.peerBuffer(i, size), flags, mine)
	case FetchAdd:
		return b.FetchAdd(id, e.peerBuffer(i, size), 1, flags, mine)
	case CompSwap:
		return b.CompareSwap(id, e.peerBuffer(i, size), 0, 0, flags, mine)
	}
	return fmt.Errorf("unknown operation %q", e.Op)
}

// sendID returns the ID of the send requests of queue pair i. The lowest bit of
// an ID is set for receives.
func sendID(i int) uint64 { return uint64(i) << 1 }
func recvID(i int) uint64 { return uint64(i)<<1 | 1 }

// ofID returns the queue pair of a request's ID, and whether the request is a
// receive.
func ofID(id uint64) (i int, isReceive bool) { return int(id >> 1), id&1 != 0 }

// batch makes a batch of n requests of queue pair i. last has the flags of the
// last request.
func (e *end) batch(i, n, size int, last ibverbs.SendFlags) (*ibverbs.SendBatch, error) {
	b, err := ibverbs.NewSendBatch(n, 1)
	for j := 0; j < n && err == nil; j++ {
		flags := ibverbs.SendFlags(0)
		if j == n-1 {
			flags = last
		}
		err = e.add(b, i, size, flags)
	}
	return b, err
}

// receives makes a batch of n receives of queue pair i.
func (e *end) receives(i, n, size int) (*ibverbs.RecvBatch, error) {
	b, err := ibverbs.NewRecvBatch(n, 1)
	for j := 0; j < n && err == nil; j++ {
		err = b.Recv(recvID(i), e.theirs(size))
	}
	return b, err
}
