package rdmacm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// Endpoint is an id whose calls wait for what they start: the synchronous way
// to work with rdma_cm(7). No wait holds a thread in C, and its context ends
// it. What was started then goes on: its event comes from Next, unless the
// endpoint is closed. Methods may be called from any goroutine.
//
// Options, and what else does not wait, are methods of its ID. That the id's
// asynchronous calls work too, with events that come from Next, is seldom of
// use.
type Endpoint struct {
	id         *ID
	dispatcher *dispatcher
	inbox      inbox

	// Of an endpoint from CreateEndpoint that listens, what its requests get.
	requestPD *ibverbs.PD
	requestQP *ibverbs.QPConfig

	// mu is held while what the endpoint has is made or closed. It is taken
	// before id.mu, and never by the handler of its events.
	mu         sync.Mutex
	connect    []byte      // of an AddrInfo, to be put before private data
	pd         *ibverbs.PD // its own or the caller's
	moved      bool        // by Migrate
	unanswered []*Endpoint // requests that Close has found
	closer     closer
	leaving    closer
	owned
}

// errEndpointClosed is what calls that wait get from Close.
var errEndpointClosed = fmt.Errorf("endpoint: %w", os.ErrClosed)

// NewEndpoint makes an endpoint; see rdma_create_id(3). CreateEndpoint does
// more of what has to follow.
func NewEndpoint(ps PortSpace) (*Endpoint, error) {
	d, id, err := newDispatchedID(ps, useDispatcher)
	if err != nil {
		return nil, err
	}
	return newEndpoint(d, id), nil
}

// newEndpoint makes the endpoint of an id on the dispatcher's channel, or that
// is about to come there. It becomes the endpoint's, and so does one use of
// the dispatcher.
func newEndpoint(d *dispatcher, id *ID) *Endpoint {
	id.endpoint.Store(true)
	ep := &Endpoint{id: id, dispatcher: d}
	ep.inbox.changed = make(chan struct{})
	d.handle(id, func(ev *Event) { ep.handle(d, ev) })
	return ep
}

// move makes another dispatcher hand out the id's events.
func (ep *Endpoint) move(use func() (*dispatcher, error)) error {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	if err := ep.usable(); err != nil { // meanwhile
		return err
	}
	d, err := ep.dispatcher.move(ep.id, use, ep.handle)
	if d != nil {
		ep.dispatcher = d
	}
	return err
}

// leave ends the endpoint's use of the dispatcher.
func (ep *Endpoint) leave() error {
	return ep.leaving.do(func() error {
		ep.dispatcher.forget(ep.id)
		ep.id.endpoint.Store(false)
		return ep.dispatcher.release()
	})
}

// usable returns nil, or why the endpoint cannot wait for anything.
func (ep *Endpoint) usable() error {
	id := ep.ID()
	if err := id.self().Use(); err != nil {
		return err
	}
	defer id.object.Done()
	return ep.inbox.err()
}

// ID returns the endpoint's id, for the calls that do not wait.
func (ep *Endpoint) ID() *ID {
	if ep == nil {
		return nil
	}
	return ep.id
}

// Close ends the connection and closes what the endpoint has: its id, and the
// queues, the memory regions and the protection domain that it has made. A
// request that nobody has answered is rejected. Calls that wait end with an
// error that is os.ErrClosed. See rdma_destroy_ep(3). The peer is told of the end
// once, and hears nothing if that message is lost; Disconnect tells it until it
// answers.
//
// While something else that the caller has made needs one of them, Close
// returns a BusyError, and can be called again. After Migrate the id is left
// alone.
func (ep *Endpoint) Close() error {
	if ep.ID() == nil {
		return ep.ID().self().Use()
	}
	_, requests := ep.inbox.end(errEndpointClosed)
	ep.mu.Lock()
	defer ep.mu.Unlock()
	ep.unanswered = append(ep.unanswered, requests...)
	return ep.closer.do(ep.release)
}

// release closes what the endpoint has, in the order that C needs. After an
// error it can be called again.
func (ep *Endpoint) release() error {
	for len(ep.unanswered) > 0 {
		if err := ep.unanswered[0].Close(); err != nil {
			return err
		}
		ep.unanswered = ep.unanswered[1:]
	}
	if !ep.moved && ep.id.wasUp() {
		_ = ep.id.Disconnect() // it may be over already
	}
	if err := ep.closeQueues(); err != nil {
		return err
	}
	if err := ep.closeRegions(); err != nil {
		return err
	}
	if !ep.moved {
		if err := ep.id.Close(); err != nil {
			return err
		}
	}
	if err := ep.closePD(); err != nil {
		return err
	}
	return ep.leave()
}

// Next waits for an event that no call has asked for, such as EventDisconnected
// when the peer has ended the connection, EventTimewaitExit, EventAddrChange,
// EventDeviceRemoval or EventUser.
func (ep *Endpoint) Next(ctx context.Context) (*Event, error) {
	if err := ep.usable(); err != nil {
		return nil, err
	}
	if ctx == nil {
		return nil, cerr.Nil("Endpoint.Next", "ctx")
	}
	ev, err := ep.inbox.next(ctx)
	if err != nil {
		return nil, ep.failure("next event", err)
	}
	return ev, nil
}

// CreateEndpoint makes an endpoint for what GetAddrInfo has found; see
// rdma_create_ep(3).
//
// With AddrPassive it has the source as its address then; Listen follows, and
// each endpoint from GetRequest has a queue pair as the config says, on pd.
// Otherwise the address and the route are resolved, the endpoint itself has the
// queue pair, and Connect follows.
//
// The config may be nil, for no queue pair; its type is the info's. What pd and
// the config lack is made by the endpoint, as CreateQP says.
//
// This is the way to extended reliable connections, for which the info has
// PortSpaceIB and ibverbs.QPTypeXRCSend, or ibverbs.QPTypeXRCRecv with
// AddrPassive.
func CreateEndpoint(ctx context.Context, info AddrInfo, pd *ibverbs.PD, config *ibverbs.QPConfig) (*Endpoint, error) {
	if config != nil {
		own := *config
		config = &own
		if info.QPType != 0 {
			config.Type = info.QPType
		}
	}
	ep, err := newTypedEndpoint(info)
	if err != nil {
		return nil, err
	}
	if info.Flags&AddrPassive != 0 {
		err = ep.passive(info, pd, config)
	} else {
		err = ep.active(ctx, info, pd, config)
	}
	if err != nil {
		return nil, errors.Join(err, ep.Close())
	}
	return ep, nil
}

func newTypedEndpoint(info AddrInfo) (*Endpoint, error) {
	ps, t := info.PortSpace, info.QPType
	if isXRC(t) {
		return newXRCEndpoint(info)
	}
	switch {
	case ps != 0:
	case t == ibverbs.QPTypeUD:
		ps = PortSpaceUDP
	default:
		ps = PortSpaceTCP
	}
	ep, err := NewEndpoint(ps)
	if err != nil {
		return nil, err
	}
	if has := ep.id.qpType; t != 0 && t != has {
		err := cerr.Refuse("rdma_create_ep", "", "queue pairs of type %v in port space %v, which has %v", t, ps, has)
		return nil, errors.Join(err, ep.Close())
	}
	return ep, nil
}

func (ep *Endpoint) passive(info AddrInfo, pd *ibverbs.PD, config *ibverbs.QPConfig) error {
	ep.pd, ep.requestPD, ep.requestQP = pd, pd, config
	if info.Family != FamilyIB && !info.Src.IsValid() {
		return cerr.Refuse("rdma_create_ep", "", "no source to listen on: AddrInfo.Src is needed")
	}
	if isXRC(info.QPType) { // which has the address already
		return nil
	}
	return ep.id.bindInfo(info)
}

func (ep *Endpoint) active(ctx context.Context, info AddrInfo, pd *ibverbs.PD, config *ibverbs.QPConfig) error {
	if err := ep.Resolve(ctx, info); err != nil || config == nil {
		return err
	}
	_, err := ep.CreateQP(pd, *config)
	return err
}

// Resolve finds the device and the route for what GetAddrInfo has found, as
// CreateEndpoint does: for an endpoint whose options had to be set before.
func (ep *Endpoint) Resolve(ctx context.Context, info AddrInfo) error {
	_, err := ep.do(ctx, "rdma_resolve_addr", func() error { return ep.id.resolveInfo(info, left(ctx)) },
		anyOf(EventAddrResolved, EventAddrError))
	if err != nil {
		return err
	}
	if err := ep.route(ctx, "rdma_resolve_route", func() error { return ep.id.routeInfo(info, left(ctx)) }); err != nil {
		return err
	}
	ep.mu.Lock()
	defer ep.mu.Unlock()
	ep.connect = info.Connect
	return nil
}

// left returns how long C may try: what is left until ctx ends.
func left(ctx context.Context) time.Duration {
	if ctx != nil {
		if deadline, ok := ctx.Deadline(); ok {
			return time.Until(deadline)
		}
	}
	return defaultResolve
}

// ResolveAddr finds the device and the hardware address for a destination; see
// rdma_resolve_addr(3). The source may be the zero value. Without a deadline of
// ctx, C gives up after 2 s.
func (ep *Endpoint) ResolveAddr(ctx context.Context, src, dst netip.AddrPort) error {
	_, err := ep.do(ctx, "rdma_resolve_addr", func() error {
		return ep.id.ResolveAddr(src, dst, left(ctx))
	}, anyOf(EventAddrResolved, EventAddrError))
	return err
}

// ResolveIB is ResolveAddr for addresses of InfiniBand's. src may be nil.
func (ep *Endpoint) ResolveIB(ctx context.Context, src *IBAddr, dst IBAddr) error {
	_, err := ep.do(ctx, "rdma_resolve_addr", func() error {
		return ep.id.ResolveIB(src, dst, left(ctx))
	}, anyOf(EventAddrResolved, EventAddrError))
	return err
}

// ResolveRoute finds the path to the destination; see rdma_resolve_route(3).
// Without a deadline of ctx, C gives up after 2 s.
func (ep *Endpoint) ResolveRoute(ctx context.Context) error {
	return ep.route(ctx, "rdma_resolve_route", func() error { return ep.id.ResolveRoute(left(ctx)) })
}

// SetIBPaths gives the endpoint paths to the peer, in place of ResolveRoute;
// see rdma_set_option(3). The first is used.
func (ep *Endpoint) SetIBPaths(ctx context.Context, paths ...libibverbs.PathData) error {
	return ep.route(ctx, "rdma_set_option", func() error { return ep.id.SetIBPaths(paths...) })
}

func (ep *Endpoint) route(ctx context.Context, op string, start func() error) error {
	_, err := ep.do(ctx, op, start, anyOf(EventRouteResolved, EventRouteError))
	return err
}

// ResolveAddrInfo looks up a host and a service; see rdma_resolve_addrinfo(3).
// It needs rdma-core 60 and a kernel in which programs can write events, which
// is Linux 6.17. Asking DNS holds a thread, also after ctx has ended.
func (ep *Endpoint) ResolveAddrInfo(ctx context.Context, host, service string, hints *AddrInfo) ([]AddrInfo, error) {
	const op = "rdma_resolve_addrinfo"
	if err := ep.ready(ctx, op); err != nil {
		return nil, err
	}
	hints = hints.clone() // ctx may end first
	done := make(chan error, 1)
	go func() {
		_, err := ep.do(ctx, op, func() error { return ep.id.ResolveAddrInfo(host, service, hints) },
			anyOf(EventAddrInfoResolved, EventAddrInfoError))
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			return nil, err
		}
		return ep.id.QueryAddrInfo()
	case <-ctx.Done():
		return nil, ep.failure(op, contextError(ctx))
	}
}

// handle is the handler of the id's events.
func (ep *Endpoint) handle(d *dispatcher, ev *Event) {
	if ev.Type != EventConnectRequest {
		ep.inbox.put(ev)
		return
	}
	in := &ep.inbox
	d.keep(ev.ID, &in.mu, func() bool { return in.hasRoom(int(ep.id.backlog.Load())) }, func() { in.add(newEndpoint(d, ev.ID)) })
}

// Connect asks the peer for a connection and waits until it is up; see
// rdma_connect(3). The event has what the peer gave. If the endpoint has no
// queue pair, it is EventConnectResponse, and Establish of the id has to
// follow. It fails with a *RejectedError if the peer refuses. An endpoint for
// datagrams asks for the peer's queue pair, which the event has.
func (ep *Endpoint) Connect(ctx context.Context, p ConnParam) (*Event, error) {
	return ep.do(ctx, "rdma_connect", func() error {
		ep.mu.Lock()
		p.PrivateData = slices.Concat(ep.connect, p.PrivateData)
		ep.mu.Unlock()
		return ep.id.Connect(p)
	}, anyOf(EventEstablished, EventConnectResponse, EventRejected, EventUnreachable, EventDisconnected))
}

// Listen makes the endpoint wait for connection requests, which GetRequest
// takes; see rdma_listen(3). Up to backlog of them wait, 128 for 0, and further
// ones are rejected.
func (ep *Endpoint) Listen(backlog int) error {
	if err := ep.usable(); err != nil {
		return err
	}
	if ep.id.backlog.Load() == 0 { // requests come with the channel's other events
		if err := ep.move(ownDispatcher); err != nil {
			return err
		}
	}
	return ep.id.listen(backlogOf(backlog), unread)
}

// GetRequest waits for a connection request and returns its endpoint, to be
// accepted or rejected, and to be closed; see rdma_get_request(3). If the
// endpoint is from CreateEndpoint with a queue pair, the new one has such a
// queue pair too; if that cannot be made, the request is rejected.
func (ep *Endpoint) GetRequest(ctx context.Context) (*Endpoint, error) {
	const op = "rdma_get_request"
	if err := ep.usable(); err != nil {
		return nil, err
	}
	if ctx == nil {
		return nil, cerr.Nil(op, "ctx")
	}
	if ep.id.backlog.Load() == 0 {
		return nil, errStep(op, ep.id.name(), "listen")
	}
	request, err := ep.inbox.nextRequest(ctx)
	if err != nil {
		return nil, ep.failure(op, err)
	}
	if err := request.move(useDispatcher); err != nil { // away from where more requests come
		return nil, errors.Join(err, request.Close())
	}
	if ep.requestQP != nil {
		if _, err := request.CreateQP(ep.requestPD, *ep.requestQP); err != nil {
			return nil, errors.Join(err, request.Close())
		}
	}
	return request, nil
}

// Accept answers the connection request that the endpoint is from GetRequest
// for, and waits until the connection is up; see rdma_accept(3). For datagrams
// there is nothing to wait for.
func (ep *Endpoint) Accept(ctx context.Context, p ConnParam) error {
	if err := ep.usable(); err != nil {
		return err
	}
	if ep.id.isDatagram() {
		return ep.id.Accept(p)
	}
	_, err := ep.do(ctx, "rdma_accept", func() error { return ep.id.Accept(p) },
		anyOf(EventEstablished, EventRejected, EventUnreachable, EventDisconnected))
	return err
}

// Disconnect ends the connection and waits until the peer has answered, with
// Disconnect or Close of its own; see rdma_disconnect(3). If the peer has ended
// it before, there is nothing to wait for. A peer that is gone is known to be
// after some time only, so give ctx a deadline.
func (ep *Endpoint) Disconnect(ctx context.Context) error {
	const op = "rdma_disconnect"
	if err := ep.usable(); err != nil {
		return err
	}
	if !ep.id.wasUp() {
		return errStep(op, ep.id.name(), "connect")
	}
	if ep.id.isDatagram() {
		return ep.id.Disconnect() // which has no event
	}
	_, err := ep.do(ctx, op, func() error {
		over := ep.id.isOver() // not before events are waited for: one could come in between
		if err := ep.id.Disconnect(); err != nil {
			return err
		}
		if over {
			return errOver
		}
		return nil
	}, anyOf(EventDisconnected))
	if err == errOver {
		return nil
	}
	if ended, ok := errors.AsType[*EventError](err); ok && ended.Type == EventDisconnected && ended.Status == 0 {
		return nil
	}
	return err
}

// errOver says that an end has had its event, after which no other comes.
var errOver = errors.New("the connection is over")

// ready returns nil, or why no call can begin that waits.
func (ep *Endpoint) ready(ctx context.Context, op string) error {
	if err := ep.usable(); err != nil {
		return err
	}
	switch {
	case ctx == nil:
		return cerr.Nil(op, "ctx")
	case ctx.Err() != nil:
		return ep.failure(op, contextError(ctx))
	}
	return nil
}

// do starts something and waits for the event that answers it. An event that
// reports a failure is returned as an error.
func (ep *Endpoint) do(ctx context.Context, op string, start func() error, answers func(*Event) bool) (*Event, error) {
	c, err := ep.begin(ctx, op, start, answers)
	if err != nil {
		return nil, err
	}
	return ep.finish(ctx, op, c)
}

// begin is the first half of do.
func (ep *Endpoint) begin(ctx context.Context, op string, start func() error, answers func(*Event) bool) (*call, error) {
	if err := ep.ready(ctx, op); err != nil {
		return nil, err
	}
	c := ep.inbox.expect(answers)
	if err := start(); err != nil {
		ep.inbox.cancel(c)
		return nil, err
	}
	return c, nil
}

// finish is the second half of do.
func (ep *Endpoint) finish(ctx context.Context, op string, c *call) (*Event, error) {
	ev, err := ep.inbox.await(ctx, c)
	if err == nil {
		err = ev.Err()
	}
	if err != nil {
		return nil, ep.failure(op, err)
	}
	return ev, nil
}

// failure names the operation and the endpoint in an error.
func (ep *Endpoint) failure(op string, err error) error {
	return fmt.Errorf("%s (%s): %w", op, ep.id.name(), err)
}

// owned is what an endpoint has made, and closes with itself.
type owned struct {
	ownPD    *ibverbs.PD
	srq      *ibverbs.SRQ
	qp       *ibverbs.QP
	cqs      []*ibverbs.CQ
	channels []*ibverbs.CompChannel
	regions  regions
	xrc      xrcQueues
	send     *ibverbs.SendBatch
	recv     *ibverbs.RecvBatch
}

// CreateQP makes a queue pair whose states follow the connection; see
// rdma_create_qp(3). A nil pd stands for a protection domain of the endpoint's
// own, and a completion queue that the config lacks for one of its own with
// room for all requests, for SendComp and RecvComp. The type is that of the
// endpoint's port space unless the config says otherwise. All is closed with
// the endpoint.
//
// A queue pair that receives for extended reliable connections gets a domain of
// its own if the config has none; its shared receive queue is from CreateSRQ.
func (ep *Endpoint) CreateQP(pd *ibverbs.PD, config ibverbs.QPConfig) (*ibverbs.QP, error) {
	device, err := ep.device("rdma_create_qp")
	if err != nil {
		return nil, err
	}
	ep.mu.Lock()
	defer ep.mu.Unlock()
	if err := ep.usable(); err != nil {
		return nil, err
	}
	if ep.id.QP() != nil {
		return nil, errExists(opCreateQP, ep.id.name(), "queue pair")
	}
	if err := ep.closeQueues(); err != nil { // of one that the caller has closed
		return nil, err
	}
	if pd == nil {
		if pd, err = ep.domain(device); err != nil {
			return nil, err
		}
	}
	if config.Type == 0 {
		config.Type = ep.id.qpType
	}
	if config.SRQ == nil && !isXRC(config.Type) {
		config.SRQ = ep.srq
	}
	made := len(ep.cqs)
	qp, err := ep.createQP(device, pd, config)
	if err != nil {
		return nil, errors.Join(err, ep.closeCQs(made))
	}
	ep.qp, ep.pd = qp, pd
	return qp, nil
}

func (ep *Endpoint) createQP(device *ibverbs.Device, pd *ibverbs.PD, config ibverbs.QPConfig) (qp *ibverbs.QP, err error) {
	if config.SendCQ == nil && config.Type != ibverbs.QPTypeXRCRecv {
		if config.SendCQ, err = ep.createCQ(device, config.MaxSendWR); err != nil {
			return nil, err
		}
	}
	if config.RecvCQ == nil && config.Type != ibverbs.QPTypeXRCRecv && config.Type != ibverbs.QPTypeXRCSend {
		entries := config.MaxRecvWR
		if config.SRQ != nil {
			attr, err := config.SRQ.Query()
			if err != nil {
				return nil, err
			}
			entries = max(entries, attr.MaxWR)
		}
		if config.RecvCQ, err = ep.createCQ(device, entries); err != nil {
			return nil, err
		}
	}
	if !isXRC(config.Type) {
		return ep.id.CreateQP(pd, config)
	}
	if config.Type == ibverbs.QPTypeXRCRecv && config.XRCD == nil {
		if config.XRCD, err = ep.xrc.open(device); err != nil {
			return nil, err
		}
	}
	qp, err = ep.id.CreateQP(pd, config)
	return qp, explainXRC(device, err)
}

func (ep *Endpoint) createCQ(device *ibverbs.Device, entries int) (*ibverbs.CQ, error) {
	channel, err := device.CreateCompChannel()
	if err != nil {
		return nil, err
	}
	cq, err := device.CreateCQ(ibverbs.CQConfig{Entries: max(entries, 1), Channel: channel})
	if err != nil {
		return nil, errors.Join(err, channel.Close())
	}
	ep.cqs, ep.channels = append(ep.cqs, cq), append(ep.channels, channel)
	return cq, nil
}

// CreateSRQ makes a shared receive queue, from which queue pairs that CreateQP
// makes then take their receives; see rdma_create_srq(3). A nil pd stands for a
// protection domain of the endpoint's own. It is closed with the endpoint.
//
// That of an endpoint which receives for extended reliable connections is for
// these: its completions come from RecvComp, and its number is what peers need to
// send to it.
func (ep *Endpoint) CreateSRQ(pd *ibverbs.PD, config ibverbs.SRQConfig) (*ibverbs.SRQ, error) {
	device, err := ep.device("rdma_create_srq")
	if err != nil {
		return nil, err
	}
	ep.mu.Lock()
	defer ep.mu.Unlock()
	if err := ep.usable(); err != nil {
		return nil, err
	}
	if ep.srq != nil {
		return nil, errExists("rdma_create_srq", ep.id.name(), "shared receive queue")
	}
	if pd == nil {
		if pd, err = ep.domain(device); err != nil {
			return nil, err
		}
	}
	if ep.id.qpType == ibverbs.QPTypeXRCRecv {
		ep.srq, err = ep.xrc.createSRQ(device, pd, config)
	} else {
		ep.srq, err = pd.CreateSRQ(config)
	}
	return ep.srq, err
}

// device returns the endpoint's device, for an operation that needs one.
func (ep *Endpoint) device(op string) (*ibverbs.Device, error) {
	if err := ep.ID().callBound(op, "bind or resolve the address", func() error { return nil }); err != nil {
		return nil, err
	}
	return ep.id.Context()
}

// domain returns the endpoint's protection domain, which it makes if there is
// none. The caller holds mu.
func (ep *Endpoint) domain(device *ibverbs.Device) (*ibverbs.PD, error) {
	if ep.pd == nil {
		pd, err := device.AllocPD()
		if err != nil {
			return nil, err
		}
		ep.pd, ep.ownPD = pd, pd
	}
	return ep.pd, nil
}

// PD returns the endpoint's protection domain, nil while it has none.
func (ep *Endpoint) PD() *ibverbs.PD {
	if ep == nil {
		return nil
	}
	ep.mu.Lock()
	defer ep.mu.Unlock()
	return ep.pd
}

// QP returns the endpoint's queue pair, nil while it has none.
func (ep *Endpoint) QP() *ibverbs.QP {
	return ep.ID().QP()
}

// closeQueues closes the queue pair and its completion queues.
func (ep *Endpoint) closeQueues() error {
	if ep.qp != nil {
		if err := ep.qp.Close(); err != nil {
			return err
		}
		ep.qp, ep.send, ep.recv = nil, nil, nil // those are as large as the queue pair's requests
	}
	return ep.closeCQs(0)
}

// closeCQs closes the completion queues but the first n.
func (ep *Endpoint) closeCQs(n int) error {
	for last := len(ep.cqs) - 1; last >= n; last-- {
		if err := ep.cqs[last].Close(); err != nil {
			return err
		}
		if err := ep.channels[last].Close(); err != nil {
			return err
		}
		ep.cqs, ep.channels = ep.cqs[:last], ep.channels[:last]
	}
	return nil
}

// closeRegions closes the memory and the shared receive queue.
func (ep *Endpoint) closeRegions() error {
	if err := ep.regions.close(); err != nil {
		return err
	}
	if ep.srq != nil {
		if err := ep.srq.Close(); err != nil {
			return err
		}
	}
	return ep.xrc.close()
}

func (ep *Endpoint) closePD() error {
	if ep.ownPD == nil {
		return nil
	}
	return ep.ownPD.Close()
}

// RegMsgs registers memory to send messages from, and to receive them into; see
// rdma_reg_msgs(3). It is closed with the endpoint, if not before.
func (ep *Endpoint) RegMsgs(b []byte) (*ibverbs.MR, error) {
	return ep.register("rdma_reg_msgs", b, ibverbs.AccessLocalWrite)
}

// RegRead registers memory that the peer may read; see rdma_reg_read(3).
func (ep *Endpoint) RegRead(b []byte) (*ibverbs.MR, error) {
	return ep.register("rdma_reg_read", b, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteRead)
}

// RegWrite registers memory that the peer may write; see rdma_reg_write(3).
func (ep *Endpoint) RegWrite(b []byte) (*ibverbs.MR, error) {
	return ep.register("rdma_reg_write", b, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteWrite)
}

func (ep *Endpoint) register(op string, b []byte, access ibverbs.AccessFlags) (*ibverbs.MR, error) {
	var mr *ibverbs.MR
	err := ep.withQP(op, func(qp queuePair) (err error) {
		if mr, err = qp.PD().Register(b, access); err == nil {
			ep.regions.add(mr)
		}
		return err
	})
	return mr, err
}

// PostRecv posts a receive: the next message that no earlier one takes goes
// into the segments, in order, and its completion, with the id, to RecvComp.
// See rdma_post_recv(3). It does not wait.
func (ep *Endpoint) PostRecv(id uint64, segments ...ibverbs.Segment) error {
	return ep.post("rdma_post_recv", func(qp queuePair) error {
		srq := qp.srq
		if qp.Type() == ibverbs.QPTypeXRCRecv {
			if srq = ep.srq; srq == nil {
				return errStep("rdma_post_srq_recv", ep.id.name(), "create a shared receive queue")
			}
		}
		if ep.recv == nil {
			n := qp.Cap().MaxRecvSGE
			if srq != nil {
				attr, err := srq.Query()
				if err != nil {
					return err
				}
				n = attr.MaxSGE
			}
			batch, err := ibverbs.NewRecvBatch(1, n)
			if err != nil {
				return err
			}
			ep.recv = batch
		}
		ep.recv.Reset()
		if err := ep.recv.Recv(id, segments...); err != nil {
			return err
		}
		post := qp.PostRecv
		if srq != nil {
			post = srq.PostRecv
		}
		_, err := post(ep.recv)
		return err
	})
}

// PostSend sends a message made of the segments. With ibverbs.SendSignaled, or
// if the queue pair signals all, a completion with the id goes to SendComp. See
// rdma_post_send(3). It does not wait.
func (ep *Endpoint) PostSend(id uint64, flags ibverbs.SendFlags, segments ...ibverbs.Segment) error {
	return ep.postSend("rdma_post_send", func(b *ibverbs.SendBatch) error {
		return b.Send(id, flags, segments...)
	})
}

// PostRead reads a peer's memory into the segments, as PostSend sends; see
// rdma_post_read(3).
func (ep *Endpoint) PostRead(id uint64, from ibverbs.RemoteBuffer, flags ibverbs.SendFlags, segments ...ibverbs.Segment) error {
	return ep.postSend("rdma_post_read", func(b *ibverbs.SendBatch) error {
		return b.Read(id, from, flags, segments...)
	})
}

// PostWrite writes the segments to a peer's memory, as PostSend sends; see
// rdma_post_write(3).
func (ep *Endpoint) PostWrite(id uint64, to ibverbs.RemoteBuffer, flags ibverbs.SendFlags, segments ...ibverbs.Segment) error {
	return ep.postSend("rdma_post_write", func(b *ibverbs.SendBatch) error {
		return b.Write(id, to, flags, segments...)
	})
}

// PostUDSend sends a datagram to a queue pair of rdma_cm(7), as PostSend sends;
// see rdma_post_ud_send(3).
func (ep *Endpoint) PostUDSend(id uint64, ah *ibverbs.AH, qpNum uint32, flags ibverbs.SendFlags, segments ...ibverbs.Segment) error {
	to := ibverbs.Destination{AH: ah, QPNum: qpNum, QKey: librdmacm.RDMA_UDP_QKEY}
	return ep.postSend("rdma_post_ud_send", func(b *ibverbs.SendBatch) error {
		return b.SendTo(id, to, flags, segments...)
	})
}

func (ep *Endpoint) postSend(op string, fill func(*ibverbs.SendBatch) error) error {
	return ep.post(op, func(qp queuePair) error {
		if ep.send == nil {
			batch, err := ibverbs.NewSendBatch(1, qp.Cap().MaxSendSGE)
			if err != nil {
				return err
			}
			ep.send = batch
		}
		ep.send.Reset()
		if err := fill(ep.send); err != nil {
			return err
		}
		_, err := qp.PostSend(ep.send)
		return err
	})
}

// needQP returns the queue pair for an operation that needs one.
func (ep *Endpoint) needQP(op string) (queuePair, error) {
	qp, err := ep.ID().needQP(op)
	if err != nil && ep.ID() != nil && ep.inbox.err() == errEndpointClosed {
		err = errEndpointClosed // which closes the queue pair before the id
	}
	return qp, err
}

// withQP calls f with the queue pair, and with mu held.
func (ep *Endpoint) withQP(op string, f func(qp queuePair) error) error {
	if ep.ID() == nil {
		return ep.ID().self().Use()
	}
	ep.mu.Lock()
	defer ep.mu.Unlock()
	qp, err := ep.needQP(op)
	if err != nil {
		return err
	}
	return f(qp)
}

// post calls f with the queue pair and the batches its own. Errors name the
// operation.
func (ep *Endpoint) post(op string, f func(qp queuePair) error) error {
	return ep.withQP(op, func(qp queuePair) error {
		if err := f(qp); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
		return nil
	})
}

// SendComp waits for the completion of a request that was sent; see
// rdma_get_send_comp(3). If the request has failed, the error is an
// *ibverbs.WCError, and the completion is there as well. A wait on a completion
// queue of the caller's ends with that, not with the endpoint.
func (ep *Endpoint) SendComp(ctx context.Context) (ibverbs.WC, error) {
	return ep.completion(ctx, "rdma_get_send_comp", func(qp queuePair) *ibverbs.CQ { return qp.send })
}

// RecvComp waits for the completion of a receive; see rdma_get_recv_comp(3). If
// that has failed, the error is an *ibverbs.WCError, and the completion is there
// as well. A wait on a completion queue of the caller's ends with that, not with
// the endpoint.
func (ep *Endpoint) RecvComp(ctx context.Context) (ibverbs.WC, error) {
	return ep.completion(ctx, "rdma_get_recv_comp", func(qp queuePair) *ibverbs.CQ {
		if qp.Type() == ibverbs.QPTypeXRCRecv {
			return ep.srqCQ()
		}
		return qp.recv
	})
}

func (ep *Endpoint) completion(ctx context.Context, op string, queue func(queuePair) *ibverbs.CQ) (ibverbs.WC, error) {
	qp, err := ep.needQP(op)
	if err != nil {
		return ibverbs.WC{}, err
	}
	cq := queue(qp)
	if cq == nil { // as one end of extended reliable connections may
		return ibverbs.WC{}, cerr.Refuse(op, ep.id.name(), "the %v queue pair has no completion queue for that", qp.Type())
	}
	return cq.WaitOne(ctx)
}

// JoinMulticast makes the endpoint, which must be for datagrams, a member of a
// multicast group and waits until it is one; see rdma_join_multicast_ex(3). The
// event has the way to the group. If ctx ends before, the group is left.
func (ep *Endpoint) JoinMulticast(ctx context.Context, group netip.Addr, flags JoinFlags) (*Event, error) {
	return ep.joinGroup(ctx, func(value any) error { return ep.id.JoinMulticast(group, flags, value) },
		func() error { return ep.id.LeaveMulticast(group) })
}

// JoinMulticastIB is JoinMulticast for an address of InfiniBand's.
func (ep *Endpoint) JoinMulticastIB(ctx context.Context, group IBAddr, flags JoinFlags) (*Event, error) {
	return ep.joinGroup(ctx, func(value any) error { return ep.id.JoinMulticastIB(group, flags, value) },
		func() error { return ep.id.LeaveMulticastIB(group) })
}

func (ep *Endpoint) joinGroup(ctx context.Context, join func(value any) error, leave func() error) (*Event, error) {
	const op = "rdma_join_multicast"
	value := new(int) // not to be mistaken for any other's
	c, err := ep.begin(ctx, op, func() error { return join(value) }, func(ev *Event) bool {
		return (ev.Type == EventMulticastJoin || ev.Type == EventMulticastError) && ev.Value == value
	})
	if err != nil {
		return nil, err
	}
	ev, err := ep.finish(ctx, op, c)
	if err != nil {
		_ = leave()        // which fails if the id was closed
		ep.inbox.cancel(c) // no answer comes any more
	}
	return ev, err
}

func isXRC(t ibverbs.QPType) bool { return t == ibverbs.QPTypeXRCSend || t == ibverbs.QPTypeXRCRecv }

// newXRCEndpoint makes an endpoint for an end of extended reliable connections,
// with an address.
func newXRCEndpoint(info AddrInfo) (*Endpoint, error) {
	if ps := cmp.Or(info.PortSpace, PortSpaceIB); ps != PortSpaceIB {
		return nil, cerr.Refuse("rdma_create_ep", "", "queue pairs of type %v are for port space %v, not %v",
			info.QPType, PortSpaceIB, ps)
	}
	src, err := info.bindTo()
	if err != nil {
		return nil, err
	}
	d, err := useDispatcher()
	if err != nil {
		return nil, err
	}
	id, err := d.channel.newXRCID(info.QPType, src)
	if err != nil {
		return nil, errors.Join(err, d.release())
	}
	return newEndpoint(d, id), nil
}

// bindTo returns an address to have before the destination's is resolved.
func (a AddrInfo) bindTo() (*sockaddr, error) {
	switch {
	case a.Family == FamilyIB:
		return a.SrcIB.sockaddr(), nil
	case !a.Src.IsValid() && a.Dst.Addr().Unmap().Is4():
		return newSockaddr(netip.AddrPortFrom(netip.IPv4Unspecified(), 0))
	}
	return newSockaddr(a.Src)
}

// newXRCID makes an id of a type that rdma_create_id cannot be told of, but
// rdma_create_ep can. That does not wait for anything when it is to listen; the
// id can connect all the same.
func (ch *EventChannel) newXRCID(t ibverbs.QPType, src *sockaddr) (*ID, error) {
	if err := ch.self().Use(); err != nil {
		return nil, err
	}
	defer ch.object.Done()
	info := &librdmacm.Addrinfo{
		AiFlags: librdmacm.RAI_PASSIVE, AiPortSpace: int32(PortSpaceIB), AiQpType: int32(t),
		AiSrcAddr: src.ptr(), AiSrcLen: src.size(),
	}
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(info.AiSrcAddr)
	raw, err := librdmacm.CreateEp(info, nil, nil)
	if err != nil {
		return nil, wrap(ch.object.Name(), err)
	}
	if err := librdmacm.MigrateId(raw, ch.raw); err != nil {
		return nil, errors.Join(wrap(ch.object.Name(), err), librdmacm.DestroyEp(raw))
	}
	ch.mu.Lock()
	defer ch.mu.Unlock()
	return ch.adopt(raw), nil
}

// explainXRC says what it means that a device does not support an operation.
func explainXRC(device *ibverbs.Device, err error) error {
	if errors.Is(err, errors.ErrUnsupported) {
		return fmt.Errorf("%s has no extended reliable connections (XRC): %w", device.Name(), err)
	}
	return err
}

// xrcQueues is what an endpoint that receives for extended reliable connections
// has beside others. All but recv is its own.
type xrcQueues struct {
	recv *ibverbs.CQ // of the shared receive queue

	domain  *ibverbs.XRCD
	channel *ibverbs.CompChannel
	cq      *ibverbs.CQ
}

// open returns the domain, which it opens if there is none.
func (x *xrcQueues) open(device *ibverbs.Device) (*ibverbs.XRCD, error) {
	if x.domain == nil {
		domain, err := device.OpenXRCD(ibverbs.XRCDConfig{})
		if err != nil {
			return nil, explainXRC(device, err)
		}
		x.domain = domain
	}
	return x.domain, nil
}

// createSRQ makes the shared receive queue, and what the config lacks.
func (x *xrcQueues) createSRQ(device *ibverbs.Device, pd *ibverbs.PD, config ibverbs.SRQConfig) (*ibverbs.SRQ, error) {
	config.Type = ibverbs.SRQTypeXRC
	var err error
	if config.XRCD == nil {
		if config.XRCD, err = x.open(device); err != nil {
			return nil, err
		}
	}
	if config.CQ == nil {
		if err := x.createCQ(device, config.MaxWR); err != nil {
			return nil, err
		}
		config.CQ = x.cq
	}
	srq, err := pd.CreateSRQ(config)
	if err != nil {
		return nil, explainXRC(device, err)
	}
	x.recv = config.CQ
	return srq, nil
}

func (x *xrcQueues) createCQ(device *ibverbs.Device, entries int) (err error) {
	if x.cq != nil { // of an attempt before
		return nil
	}
	if x.channel == nil {
		if x.channel, err = device.CreateCompChannel(); err != nil {
			return err
		}
	}
	x.cq, err = device.CreateCQ(ibverbs.CQConfig{Entries: max(entries, 1), Channel: x.channel})
	return err
}

// close closes everything, when the queue pair and the shared receive queue are
// closed.
func (x *xrcQueues) close() error {
	if x.cq != nil {
		if err := x.cq.Close(); err != nil {
			return err
		}
	}
	if x.channel != nil {
		if err := x.channel.Close(); err != nil {
			return err
		}
	}
	if x.domain != nil {
		return x.domain.Close()
	}
	return nil
}

// srqCQ returns the completion queue of a shared receive queue for extended
// reliable connections.
func (ep *Endpoint) srqCQ() *ibverbs.CQ {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	return ep.xrc.recv
}

// errMigrated is what an endpoint answers after Migrate.
var errMigrated = cerr.Refuse("Endpoint", "", "the endpoint was migrated: use the ID that Migrate has returned")

// Endpoint makes the id synchronous; see rdma_migrate_id(3), whose channel is
// NULL for this. Events that nobody has read move with it. The id stays what
// it is, and is closed with the endpoint. A queue pair that CreateQP has made
// for it is used, but remains the caller's to close, before the endpoint.
func (id *ID) Endpoint() (*Endpoint, error) {
	if err := id.checkOwnEvents(); err != nil {
		return nil, err
	}
	if id.endpoint.Swap(true) {
		return nil, cerr.Refuse("rdma_migrate_id", id.name(), "the id has an endpoint already")
	}
	use := useDispatcher
	if id.backlog.Load() != 0 {
		use = ownDispatcher
	}
	d, err := use()
	if err != nil {
		id.endpoint.Store(false)
		return nil, err
	}
	ep := newEndpoint(d, id) // which knows the id before its first event
	resume := d.channel.pause()
	defer resume()
	if err := id.migrate(d.channel); err != nil {
		d.forget(id)
		id.endpoint.Store(false)
		return nil, errors.Join(err, d.release())
	}
	return ep, nil
}

// Migrate makes the endpoint's id asynchronous, with its events on a channel;
// see rdma_migrate_id(3). Those that nobody has taken move with it, and so do
// connection requests. Calls that wait end with an error, as do further ones.
//
// What the endpoint has made, such as its queue pair, remains its own: it can
// still be used, and is closed with the endpoint, which must come before the
// id's Close.
func (ep *Endpoint) Migrate(to *EventChannel) (*ID, error) {
	if err := ep.usable(); err != nil {
		return nil, err
	}
	ep.mu.Lock()
	defer ep.mu.Unlock()
	if err := ep.usable(); err != nil { // meanwhile
		return nil, err
	}
	if err := to.self().Use(); err != nil {
		return nil, fmt.Errorf("rdma_migrate_id: channel: %w", err)
	}
	defer to.object.Done()
	defer to.pause()()
	if err := ep.id.migrate(to); err != nil {
		return nil, err
	}
	ep.moved = true
	ep.settle()
	events, requests := ep.inbox.end(errMigrated)
	for _, request := range requests {
		events = append(events, request.id.request)
	}
	ep.id.bring(to, events)
	var err error
	for _, request := range requests {
		request.inbox.end(errMigrated)
		err = errors.Join(err, request.leave())
	}
	return ep.id, errors.Join(err, ep.leave())
}

// settle returns when the dispatcher has handed out every event of the id that
// it had read from its channel before the id left that.
func (ep *Endpoint) settle() {
	const none = ^EventType(0) // which no other call waits for
	last := &Event{ID: ep.id, Type: none}
	done := ep.inbox.expect(func(ev *Event) bool { return ev == last })
	ch := ep.dispatcher.channel
	ch.mu.Lock()
	ch.ahead = append(ch.ahead, last)
	ch.mu.Unlock()
	ch.fd.Kick()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() {
		select {
		case <-ep.dispatcher.done: // it has failed
			stop()
		case <-ctx.Done():
		}
	}()
	_, _ = ep.inbox.await(ctx, done)
}
