// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/netpoll"
	"github.com/verbena-go/verbena/internal/object"
	"github.com/verbena-go/verbena/internal/owned"
	"github.com/verbena-go/verbena/internal/sealed"
	"github.com/verbena-go/verbena/rdmacm"
)

// Endpoint is a synchronous ID: each call waits until the operation that it
// starts has completed. No wait occupies an OS thread. When the context of a
// call ends, the call returns, but the operation goes on. Next returns the
// operation's event later, unless the endpoint is closed. Methods may be called
// from any goroutine.
//
// The methods of the endpoint's ID set options or do not wait. The ID's
// asynchronous calls work too, and Next returns their events, but few programs
// need them.
type Endpoint struct {
	id    *rdmacm.ID
	inbox inbox

	// Protection domain and queue pair config for requests, if the endpoint
	// is from Create and listens; may be nil.
	requestPD *ibverbs.PD
	requestQP *ibverbs.QPConfig

	// mu is held while the endpoint's objects are created or closed, and
	// while the ID moves to another channel. The functions that receive its
	// events never take mu.
	mu         sync.Mutex
	connect    []byte      // AddrInfo.Connect, sent before the private data
	pd         *ibverbs.PD // protection domain, created by the endpoint or the caller
	moved      bool        // whether Migrate has moved the ID
	unanswered []*Endpoint // requests that Close must reject
	closer     owned.Closer
	leaving    owned.Closer
	creations
}

// errEndpointClosed is the error of calls that wait when Close is called.
var errEndpointClosed = fmt.Errorf("endpoint: %w", os.ErrClosed)

// New creates an endpoint without an address and without a queue pair; see
// rdma_create_id(3). Create also resolves an address and creates the queue
// pair.
func New(ps rdmacm.PortSpace) (*Endpoint, error) {
	id := new(rdmacm.ID)
	if err := sealed.Open(id.Internals()).Init(ps); err != nil {
		return nil, err
	}
	return newEndpoint(id), nil
}

// newEndpoint returns an endpoint for the ID, whose events go to the endpoint
// from now on.
func newEndpoint(id *rdmacm.ID) *Endpoint {
	ep := unstarted(id)
	sealed.Open(id.Internals()).Start(sink{ep})
	return ep
}

// unstarted returns an endpoint for the ID that gets no events yet.
func unstarted(id *rdmacm.ID) *Endpoint {
	ep := &Endpoint{id: id}
	ep.inbox.changed = make(chan struct{})
	return ep
}

// FromID returns a synchronous endpoint for an ID; see rdma_migrate_id(3) with
// a NULL channel. Unread events move to the endpoint. The ID stays valid and is
// closed with the endpoint. The endpoint uses a queue pair that
// rdmacm.ID.CreateQP has created, but the caller must close that queue pair,
// before the endpoint.
func FromID(id *rdmacm.ID) (*Endpoint, error) {
	ep := unstarted(id)
	if err := sealed.Open(id.Internals()).Take(sink{ep}); err != nil {
		return nil, err
	}
	return ep, nil
}

// move calls f with mu held. f makes another dispatcher read the ID's events.
func (ep *Endpoint) move(f func() error) error {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	if err := ep.usable(); err != nil { // the endpoint may have ended meanwhile
		return err
	}
	return f()
}

// objectOf returns the object.Object that manages an ID's lifetime, or nil for
// a nil pointer.
func objectOf(id *rdmacm.ID) *object.Object { return sealed.Open(id.Internals()).Object() }

// leave ends the endpoint's use of the dispatcher that reads the ID's events.
func (ep *Endpoint) leave() error { return ep.leaving.Do(sealed.Open(ep.id.Internals()).Release) }

// usable returns the reason why the endpoint cannot wait for anything, or nil.
func (ep *Endpoint) usable() error {
	object := objectOf(ep.ID())
	if err := object.Use(); err != nil {
		return err
	}
	defer object.Done()
	return ep.inbox.err()
}

// ID returns the endpoint's ID, for calls that do not wait.
func (ep *Endpoint) ID() *rdmacm.ID {
	if ep == nil {
		return nil
	}
	return ep.id
}

// Close ends the connection and closes the ID and everything that the endpoint
// has created: queues, memory regions and a protection domain. It rejects a
// request that was not answered. Waiting calls fail with an error matching
// os.ErrClosed. See rdma_destroy_ep(3). Close tells the peer only once, so the
// peer learns nothing if that message is lost; Disconnect repeats it until the
// peer answers.
//
// While an object that the caller has created depends on one of these, Close
// returns an *ibverbs.BusyError, and can be called again. After Migrate, Close
// leaves the ID open.
func (ep *Endpoint) Close() error {
	if ep.ID() == nil {
		return objectOf(ep.ID()).Use()
	}
	_, requests := ep.inbox.end(errEndpointClosed)
	ep.mu.Lock()
	defer ep.mu.Unlock()
	ep.unanswered = append(ep.unanswered, requests...)
	return ep.closer.Do(ep.release)
}

// release closes what the endpoint has created, in the order that C needs.
// After an error, it can be called again.
func (ep *Endpoint) release() error {
	for len(ep.unanswered) > 0 {
		if err := ep.unanswered[0].Close(); err != nil {
			return err
		}
		ep.unanswered = ep.unanswered[1:]
	}
	if !ep.moved && sealed.Open(ep.id.Internals()).WasUp() {
		_ = ep.id.Disconnect() // the connection may be over already
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

// Next waits for an event that no call waits for, such as EventDisconnected
// when the peer ends the connection, EventTimewaitExit, EventAddrChange,
// EventDeviceRemoval or EventUser.
func (ep *Endpoint) Next(ctx context.Context) (*rdmacm.Event, error) {
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

// Create creates an endpoint from a result of rdmacm.GetAddrInfo; see
// rdma_create_ep(3).
//
// With rdmacm.AddrPassive, it binds the endpoint to the source address. Call
// Listen next. Each endpoint that GetRequest returns has a queue pair on pd
// with this config. Otherwise, it resolves the address and the route and
// creates the queue pair. Call Connect next.
//
// If config is nil, there is no queue pair. The queue pair's type is
// info.QPType, if that is set. If pd is nil, or config lacks completion queues,
// the endpoint creates these as CreateQP does.
//
// For extended reliable connections (XRC), info must have rdmacm.PortSpaceIB
// and ibverbs.QPTypeXRCSend, or ibverbs.QPTypeXRCRecv with rdmacm.AddrPassive.
func Create(ctx context.Context, info rdmacm.AddrInfo, pd *ibverbs.PD, config *ibverbs.QPConfig) (*Endpoint, error) {
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
	if info.Flags&rdmacm.AddrPassive != 0 {
		err = ep.passive(info, pd, config)
	} else {
		err = ep.active(ctx, info, pd, config)
	}
	if err != nil {
		return nil, errors.Join(err, ep.Close())
	}
	return ep, nil
}

func newTypedEndpoint(info rdmacm.AddrInfo) (*Endpoint, error) {
	ps, t := info.PortSpace, info.QPType
	if isXRC(t) {
		return newXRCEndpoint(info)
	}
	switch {
	case ps != 0:
	case t == ibverbs.QPTypeUD:
		ps = rdmacm.PortSpaceUDP
	default:
		ps = rdmacm.PortSpaceTCP
	}
	ep, err := New(ps)
	if err != nil {
		return nil, err
	}
	if has := sealed.Open(ep.id.Internals()).QPType(); t != 0 && t != has {
		err := cerr.Refuse("rdma_create_ep", "", "AddrInfo.QPType is %v, but port space %v has queue pairs of type %v", t, ps, has)
		return nil, errors.Join(err, ep.Close())
	}
	return ep, nil
}

func (ep *Endpoint) passive(info rdmacm.AddrInfo, pd *ibverbs.PD, config *ibverbs.QPConfig) error {
	ep.pd, ep.requestPD, ep.requestQP = pd, pd, config
	if info.Family != rdmacm.FamilyIB && !info.Src.IsValid() {
		return cerr.Refuse("rdma_create_ep", "", "AddrInfo.Src is not set; set it to the address to listen on")
	}
	if isXRC(info.QPType) { // newXRCEndpoint has bound the ID already
		return nil
	}
	return sealed.Open(ep.id.Internals()).Bind(info)
}

func (ep *Endpoint) active(ctx context.Context, info rdmacm.AddrInfo, pd *ibverbs.PD, config *ibverbs.QPConfig) error {
	if err := ep.Resolve(ctx, info); err != nil || config == nil {
		return err
	}
	_, err := ep.CreateQP(pd, *config)
	return err
}

// Resolve finds the device and the route for a result of rdmacm.GetAddrInfo. If
// info has Paths, it uses the first of them instead of looking for a route. Use
// Resolve instead of Create for an endpoint whose options must be set first,
// and for native InfiniBand addresses.
func (ep *Endpoint) Resolve(ctx context.Context, info rdmacm.AddrInfo) error {
	_, err := ep.do(ctx, "rdma_resolve_addr", func() error { return sealed.Open(ep.id.Internals()).ResolveAddr(info, left(ctx)) },
		anyOf(rdmacm.EventAddrResolved, rdmacm.EventAddrError))
	if err != nil {
		return err
	}
	if err := ep.route(ctx, "rdma_resolve_route", func() error { return sealed.Open(ep.id.Internals()).ResolveRoute(info, left(ctx)) }); err != nil {
		return err
	}
	ep.mu.Lock()
	defer ep.mu.Unlock()
	ep.connect = info.Connect
	return nil
}

// left returns the time until the deadline of ctx, or defaultResolve if there
// is no deadline.
func left(ctx context.Context) time.Duration {
	if ctx != nil {
		if deadline, ok := ctx.Deadline(); ok {
			return time.Until(deadline)
		}
	}
	return defaultResolve
}

// defaultResolve is the maximum time for resolving an address or a route if the
// context has no deadline.
const defaultResolve = 2 * time.Second

// ResolveAddr finds the device and the hardware address for a destination; see
// rdma_resolve_addr(3). src may be the zero value. If ctx has no deadline,
// ResolveAddr gives up after 2 s.
func (ep *Endpoint) ResolveAddr(ctx context.Context, src, dst netip.AddrPort) error {
	_, err := ep.do(ctx, "rdma_resolve_addr", func() error {
		return ep.id.ResolveAddr(src, dst, left(ctx))
	}, anyOf(rdmacm.EventAddrResolved, rdmacm.EventAddrError))
	return err
}

// ResolveRoute finds the path to the destination; see rdma_resolve_route(3). If
// ctx has no deadline, ResolveRoute gives up after 2 s.
func (ep *Endpoint) ResolveRoute(ctx context.Context) error {
	return ep.route(ctx, "rdma_resolve_route", func() error { return ep.id.ResolveRoute(left(ctx)) })
}

func (ep *Endpoint) route(ctx context.Context, op string, start func() error) error {
	_, err := ep.do(ctx, op, start, anyOf(rdmacm.EventRouteResolved, rdmacm.EventRouteError))
	return err
}

// ResolveAddrInfo looks up a host and a service; see rdma_resolve_addrinfo(3).
// It needs rdma-core 60, and Linux 6.17, in which librdmacm can write the event
// that reports the result. The DNS query occupies an OS thread, even after ctx
// has ended.
func (ep *Endpoint) ResolveAddrInfo(ctx context.Context, host, service string, hints *rdmacm.AddrInfo) ([]rdmacm.AddrInfo, error) {
	const op = "rdma_resolve_addrinfo"
	if err := ep.ready(ctx, op); err != nil {
		return nil, err
	}
	if hints != nil {
		own := *hints // the caller may change its hints when ctx has ended
		hints = &own
	}
	if err := ep.lookUp(ctx, op, func() error { return ep.id.ResolveAddrInfo(host, service, hints) }); err != nil {
		return nil, err
	}
	return ep.id.QueryAddrInfo()
}

// lookUp does a lookup with start, which may block.
func (ep *Endpoint) lookUp(ctx context.Context, op string, start func() error) error {
	done := make(chan error, 1)
	go func() {
		_, err := ep.do(ctx, op, start, anyOf(rdmacm.EventAddrInfoResolved, rdmacm.EventAddrInfoError))
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ep.failure(op, netpoll.ContextError(ctx))
	}
}

// Connect asks the peer for a connection and waits until it is up; see
// rdma_connect(3). The event holds the peer's parameters. If the endpoint has
// no queue pair, the event is EventConnectResponse, and the caller must call
// rdmacm.ID.Establish. Connect fails with a *rdmacm.RejectedError if the peer
// rejects. For datagrams, Connect asks for the peer's queue pair, which the
// event holds.
func (ep *Endpoint) Connect(ctx context.Context, p rdmacm.ConnParam) (*rdmacm.Event, error) {
	return ep.do(ctx, "rdma_connect", func() error {
		ep.mu.Lock()
		p.PrivateData = slices.Concat(ep.connect, p.PrivateData)
		ep.mu.Unlock()
		return ep.id.Connect(p)
	}, anyOf(rdmacm.EventEstablished, rdmacm.EventConnectResponse, rdmacm.EventRejected, rdmacm.EventUnreachable, rdmacm.EventDisconnected))
}

// Listen starts listening for connection requests, which GetRequest returns;
// see rdma_listen(3). backlog is the maximum number of requests that wait, up
// to 65536; 0 means the system's net.core.somaxconn. Further requests are
// rejected, and tried again by rdmacm.Dial; see rdmacm.ErrBacklogFull.
func (ep *Endpoint) Listen(backlog int) error {
	if err := ep.usable(); err != nil {
		return err
	}
	id := sealed.Open(ep.id.Internals())
	if !id.IsListening() { // requests share a channel with other events
		if err := ep.move(id.Own); err != nil {
			return err
		}
	}
	return id.Listen(backlog)
}

// GetRequest waits for a connection request and returns an endpoint for it; see
// rdma_get_request(3). ID().Request has the peer's private data. The caller
// must call Accept or ID().Reject, and close the endpoint. If Create got a
// queue pair config, the new endpoint has a queue pair with that config; if
// creating that fails, the request is rejected.
func (ep *Endpoint) GetRequest(ctx context.Context) (*Endpoint, error) {
	const op = "rdma_get_request"
	if err := ep.usable(); err != nil {
		return nil, err
	}
	if ctx == nil {
		return nil, cerr.Nil(op, "ctx")
	}
	if !sealed.Open(ep.id.Internals()).IsListening() {
		return nil, errStep(op, ep.name(), "listen")
	}
	request, err := ep.inbox.nextRequest(ctx)
	if err != nil {
		return nil, ep.failure(op, err)
	}
	if err := request.move(sealed.Open(request.id.Internals()).Share); err != nil { // moves the request off the listener's channel
		return nil, errors.Join(err, request.Close())
	}
	if ep.requestQP != nil {
		if _, err := request.CreateQP(ep.requestPD, *ep.requestQP); err != nil {
			return nil, errors.Join(err, request.Close())
		}
	}
	return request, nil
}

// Accept accepts the connection request of an endpoint from GetRequest, and
// waits until the connection is up; see rdma_accept(3). For datagrams, Accept
// returns at once.
func (ep *Endpoint) Accept(ctx context.Context, p rdmacm.ConnParam) error {
	if err := ep.usable(); err != nil {
		return err
	}
	if ep.isDatagram() {
		return ep.id.Accept(p)
	}
	_, err := ep.do(ctx, "rdma_accept", func() error { return ep.id.Accept(p) },
		anyOf(rdmacm.EventEstablished, rdmacm.EventRejected, rdmacm.EventUnreachable, rdmacm.EventDisconnected))
	return err
}

// Disconnect ends the connection and waits until the peer answers with
// Disconnect or Close; see rdma_disconnect(3). It returns at once if the peer
// has already ended the connection. Disconnect can take long to notice that the
// peer does not exist any more, so give ctx a deadline.
func (ep *Endpoint) Disconnect(ctx context.Context) error {
	const op = "rdma_disconnect"
	if err := ep.usable(); err != nil {
		return err
	}
	if !sealed.Open(ep.id.Internals()).WasUp() {
		return errStep(op, ep.name(), "connect")
	}
	if ep.isDatagram() {
		return ep.id.Disconnect() // no event follows
	}
	_, err := ep.do(ctx, op, func() error {
		over := sealed.Open(ep.id.Internals()).IsOver() // read after do has begun to expect the event, so that none is missed
		if err := ep.id.Disconnect(); err != nil {
			return err
		}
		if over {
			return errOver
		}
		return nil
	}, anyOf(rdmacm.EventDisconnected))
	if err == errOver {
		return nil
	}
	if ended, ok := errors.AsType[*rdmacm.EventError](err); ok && ended.Type == rdmacm.EventDisconnected && ended.Status == 0 {
		return nil
	}
	return err
}

// errOver reports that the event for the connection's end has already come. No
// second such event follows.
var errOver = errors.New("the connection is over")

// ready returns the reason why no call that waits can begin, or nil.
func (ep *Endpoint) ready(ctx context.Context, op string) error {
	if err := ep.usable(); err != nil {
		return err
	}
	switch {
	case ctx == nil:
		return cerr.Nil(op, "ctx")
	case ctx.Err() != nil:
		return ep.failure(op, netpoll.ContextError(ctx))
	}
	return nil
}

// do calls start, which starts an operation, and waits for the event that
// answers it. answers reports whether an event does. If the event reports a
// failure, do returns that as an error.
func (ep *Endpoint) do(ctx context.Context, op string, start func() error, answers func(*rdmacm.Event) bool) (*rdmacm.Event, error) {
	c, err := ep.begin(ctx, op, start, answers)
	if err != nil {
		return nil, err
	}
	return ep.finish(ctx, op, c)
}

// begin is the first half of do: it starts the operation.
func (ep *Endpoint) begin(ctx context.Context, op string, start func() error, answers func(*rdmacm.Event) bool) (*call, error) {
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

// finish is the second half of do: it waits for the event.
func (ep *Endpoint) finish(ctx context.Context, op string, c *call) (*rdmacm.Event, error) {
	ev, err := ep.inbox.await(ctx, c)
	if err == nil {
		err = ev.Err()
	}
	if err != nil {
		return nil, ep.failure(op, err)
	}
	return ev, nil
}

// isDatagram reports whether the endpoint is for datagrams.
func (ep *Endpoint) isDatagram() bool {
	return sealed.Open(ep.id.Internals()).QPType() == ibverbs.QPTypeUD
}

// name returns the endpoint's name in errors.
func (ep *Endpoint) name() string { return sealed.Open(ep.id.Internals()).Name() }

// errStep returns the error for a call that came too early. missing is the step
// that must come first.
func errStep(op, object, missing string) error { return cerr.Refuse(op, object, "%s first", missing) }

// errExists returns the error for creating an object that the endpoint already
// has. what is the kind of object.
func errExists(op, object, what string) error {
	return cerr.Refuse(op, object, "the id has a %s already", what)
}

// failure adds the operation and the endpoint's name to an error.
func (ep *Endpoint) failure(op string, err error) error {
	return fmt.Errorf("%s (%s): %w", op, ep.name(), err)
}

// creations holds the objects that the endpoint has created, and that Close
// closes.
type creations struct {
	ownPD    *ibverbs.PD
	srq      *ibverbs.SRQ
	qp       *ibverbs.QP
	cqs      []*ibverbs.CQ
	channels []*ibverbs.CompChannel
	regions  owned.Regions
	xrc      xrcQueues
	send     *ibverbs.SendBatch
	recv     *ibverbs.RecvBatch
}

// CreateQP creates a queue pair that librdmacm moves through its states as the
// connection is made and ends; see rdma_create_qp(3). If pd is nil, the
// endpoint creates a protection domain. For each completion queue that config
// lacks, it creates one with room for all requests; SendComp and RecvComp use
// that queue. A zero type means that of the endpoint's port space. Close closes
// all of these.
//
// For XRC, a queue pair that receives gets a new XRC domain if config has none.
// It takes its receives from the queue that CreateSRQ creates.
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
		return nil, errExists("rdma_create_qp", ep.name(), "queue pair")
	}
	if err := ep.closeQueues(); err != nil { // closes what is left of an earlier queue pair, which the caller has closed
		return nil, err
	}
	if pd == nil {
		if pd, err = ep.domain(device); err != nil {
			return nil, err
		}
	}
	if config.Type == 0 {
		config.Type = sealed.Open(ep.id.Internals()).QPType()
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
		if config.SendCQ, err = ep.createCQ(device, config.SendQueue); err != nil {
			return nil, err
		}
	}
	if config.RecvCQ == nil && config.Type != ibverbs.QPTypeXRCRecv && config.Type != ibverbs.QPTypeXRCSend {
		entries := config.RecvQueue
		if config.SRQ != nil {
			attr, err := config.SRQ.Query()
			if err != nil {
				return nil, err
			}
			entries = max(entries, attr.RecvQueue)
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
	cq, err := device.CreateCQ(ibverbs.CQConfig{CompQueue: max(entries, 1), Channel: channel})
	if err != nil {
		return nil, errors.Join(err, channel.Close())
	}
	ep.cqs, ep.channels = append(ep.cqs, cq), append(ep.channels, channel)
	return cq, nil
}

// CreateSRQ creates a shared receive queue; see rdma_create_srq(3). Queue pairs
// that CreateQP creates afterwards take their receives from it. If pd is nil,
// the endpoint creates a protection domain. Close closes the queue.
//
// If the endpoint receives for XRC, RecvComp returns the queue's completions,
// and peers need the queue's number to send to it.
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
		return nil, errExists("rdma_create_srq", ep.name(), "shared receive queue")
	}
	if pd == nil {
		if pd, err = ep.domain(device); err != nil {
			return nil, err
		}
	}
	if sealed.Open(ep.id.Internals()).QPType() == ibverbs.QPTypeXRCRecv {
		ep.srq, err = ep.xrc.createSRQ(device, pd, config)
	} else {
		ep.srq, err = pd.CreateSRQ(config)
	}
	return ep.srq, err
}

// device returns the endpoint's device for the operation op. It fails if there
// is no device yet.
func (ep *Endpoint) device(op string) (*ibverbs.Device, error) {
	if ep.ID() == nil {
		return nil, objectOf(nil).Use()
	}
	return sealed.Open(ep.id.Internals()).Device(op)
}

// domain returns the endpoint's protection domain, which it creates if there is
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

// PD returns the endpoint's protection domain, or nil if it has none.
func (ep *Endpoint) PD() *ibverbs.PD {
	if ep == nil {
		return nil
	}
	ep.mu.Lock()
	defer ep.mu.Unlock()
	return ep.pd
}

// QP returns the endpoint's queue pair, or nil if it has none.
func (ep *Endpoint) QP() *ibverbs.QP {
	return ep.ID().QP()
}

// closeQueues closes the queue pair and its completion queues.
func (ep *Endpoint) closeQueues() error {
	if ep.qp != nil {
		if err := ep.qp.Close(); err != nil {
			return err
		}
		ep.qp, ep.send, ep.recv = nil, nil, nil // the batches were sized for this queue pair
	}
	return ep.closeCQs(0)
}

// closeCQs closes all completion queues except the first n.
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

// closeRegions closes the memory regions and the shared receive queue.
func (ep *Endpoint) closeRegions() error {
	if err := ep.regions.Close(); err != nil {
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

// RegMsgs registers memory to send messages from and receive them into; see
// rdma_reg_msgs(3). Close closes the region if the caller has not.
func (ep *Endpoint) RegMsgs(b []byte) (*ibverbs.MR, error) {
	return ep.register("rdma_reg_msgs", b, ibverbs.AccessLocalWrite)
}

// RegRead registers memory that the peer may read; see rdma_reg_read(3). Close
// closes the region if the caller has not.
func (ep *Endpoint) RegRead(b []byte) (*ibverbs.MR, error) {
	return ep.register("rdma_reg_read", b, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteRead)
}

// RegWrite registers memory that the peer may write; see rdma_reg_write(3).
// Close closes the region if the caller has not.
func (ep *Endpoint) RegWrite(b []byte) (*ibverbs.MR, error) {
	return ep.register("rdma_reg_write", b, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteWrite)
}

func (ep *Endpoint) register(op string, b []byte, access ibverbs.AccessFlags) (*ibverbs.MR, error) {
	var mr *ibverbs.MR
	err := ep.withQP(op, func(qp queuePair) (err error) {
		if mr, err = qp.PD().Register(b, access); err == nil {
			ep.regions.Add(mr)
		}
		return err
	})
	return mr, err
}

// PostRecv posts a receive and does not wait; see rdma_post_recv(3). The next
// message that no earlier receive takes fills the segments in order, and
// RecvComp returns a completion with this id.
func (ep *Endpoint) PostRecv(id uint64, segments ...ibverbs.Segment) error {
	return ep.post("rdma_post_recv", func(qp queuePair) error {
		srq := qp.srq
		if qp.Type() == ibverbs.QPTypeXRCRecv {
			if srq = ep.srq; srq == nil {
				return errStep("rdma_post_srq_recv", ep.name(), "create a shared receive queue")
			}
		}
		if ep.recv == nil {
			n := qp.Cap().RecvSegments
			if srq != nil {
				attr, err := srq.Query()
				if err != nil {
					return err
				}
				n = attr.RecvSegments
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

// PostSend sends the segments as one message and does not wait; see
// rdma_post_send(3). With ibverbs.SendSignaled, or if the queue pair signals
// every request, SendComp returns a completion with this id.
func (ep *Endpoint) PostSend(id uint64, flags ibverbs.SendFlags, segments ...ibverbs.Segment) error {
	return ep.postSend("rdma_post_send", func(b *ibverbs.SendBatch) error {
		return b.Send(id, flags, segments...)
	})
}

// PostRead reads a peer's memory into the segments and does not wait; see
// rdma_post_read(3). It completes like PostSend.
func (ep *Endpoint) PostRead(id uint64, from ibverbs.RemoteBuffer, flags ibverbs.SendFlags, segments ...ibverbs.Segment) error {
	return ep.postSend("rdma_post_read", func(b *ibverbs.SendBatch) error {
		return b.Read(id, from, flags, segments...)
	})
}

// PostWrite writes the segments to a peer's memory and does not wait; see
// rdma_post_write(3). It completes like PostSend.
func (ep *Endpoint) PostWrite(id uint64, to ibverbs.RemoteBuffer, flags ibverbs.SendFlags, segments ...ibverbs.Segment) error {
	return ep.postSend("rdma_post_write", func(b *ibverbs.SendBatch) error {
		return b.Write(id, to, flags, segments...)
	})
}

// PostUDSend sends the segments as a datagram to a queue pair created with
// rdma_cm(7), and does not wait; see rdma_post_ud_send(3). It completes like
// PostSend.
func (ep *Endpoint) PostUDSend(id uint64, ah *ibverbs.AH, qpNum uint32, flags ibverbs.SendFlags, segments ...ibverbs.Segment) error {
	to := ibverbs.Destination{AH: ah, QPNum: qpNum, QKey: librdmacm.RDMA_UDP_QKEY}
	return ep.postSend("rdma_post_ud_send", func(b *ibverbs.SendBatch) error {
		return b.SendTo(id, to, flags, segments...)
	})
}

func (ep *Endpoint) postSend(op string, fill func(*ibverbs.SendBatch) error) error {
	return ep.post(op, func(qp queuePair) error {
		if ep.send == nil {
			batch, err := ibverbs.NewSendBatch(1, qp.Cap().SendSegments)
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

// needQP returns the queue pair for the operation op. It fails if there is
// none.
func (ep *Endpoint) needQP(op string) (queuePair, error) {
	if ep.ID() == nil {
		return queuePair{}, objectOf(nil).Use()
	}
	qp, send, recv, srq, err := sealed.Open(ep.id.Internals()).QP(op)
	if err != nil && ep.inbox.err() == errEndpointClosed {
		err = errEndpointClosed // Close closes the queue pair before the ID
	}
	return queuePair{qp, send, recv, srq}, err
}

// queuePair is a queue pair with its completion queues.
type queuePair struct {
	*ibverbs.QP
	send, recv *ibverbs.CQ
	srq        *ibverbs.SRQ
}

// withQP calls f with the queue pair, and with mu held.
func (ep *Endpoint) withQP(op string, f func(qp queuePair) error) error {
	if ep.ID() == nil {
		return objectOf(ep.ID()).Use()
	}
	ep.mu.Lock()
	defer ep.mu.Unlock()
	qp, err := ep.needQP(op)
	if err != nil {
		return err
	}
	return f(qp)
}

// post calls f with the queue pair, and with mu held, which guards the batches.
// It adds the operation to an error.
func (ep *Endpoint) post(op string, f func(qp queuePair) error) error {
	return ep.withQP(op, func(qp queuePair) error {
		if err := f(qp); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
		return nil
	})
}

// SendComp waits for the completion of a request of the send queue; see
// rdma_get_send_comp(3). If the request failed, SendComp returns both the
// completion and an *ibverbs.WCError. Its status is WCFlushed if the peer ended
// the connection first; the peer may have received the message nevertheless.
// Closing the endpoint does not end a wait on a completion queue that the
// caller has created; closing that queue does.
func (ep *Endpoint) SendComp(ctx context.Context) (ibverbs.WC, error) {
	return ep.completion(ctx, "rdma_get_send_comp", func(qp queuePair) *ibverbs.CQ { return qp.send })
}

// RecvComp waits for the completion of a receive; see rdma_get_recv_comp(3). If
// the receive failed, RecvComp returns both the completion and an
// *ibverbs.WCError. Its status is WCFlushed if the peer ended the connection,
// unless the queue pair takes its receives from a shared queue. Closing the
// endpoint does not end a wait on a completion queue that the caller has
// created; closing that queue does.
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
	if cq == nil { // an XRC queue pair has only one completion queue
		return ibverbs.WC{}, cerr.Refuse(op, ep.name(), "a queue pair of type %v has no such completion queue", qp.Type())
	}
	return cq.WaitOne(ctx)
}

// JoinMulticast joins a multicast group and waits until the join completes; see
// rdma_join_multicast_ex(3). The endpoint must be for datagrams. The event
// holds the path to the group. If ctx ends first, the endpoint leaves the
// group.
func (ep *Endpoint) JoinMulticast(ctx context.Context, group netip.Addr, flags rdmacm.JoinFlags) (*rdmacm.Event, error) {
	return ep.joinGroup(ctx, func(value *int) error { return ep.id.JoinMulticast(group, flags, value) },
		func() error { return ep.id.LeaveMulticast(group) })
}

// JoinMulticastIB joins the multicast group of an InfiniBand address, like
// JoinMulticast.
func (ep *Endpoint) JoinMulticastIB(ctx context.Context, group rdmacm.IBAddr, flags rdmacm.JoinFlags) (*rdmacm.Event, error) {
	return ep.joinGroup(ctx, func(value *int) error { return ep.id.JoinMulticastIB(group, flags, value) },
		func() error { return ep.id.LeaveMulticastIB(group) })
}

func (ep *Endpoint) joinGroup(ctx context.Context, join func(value *int) error, leave func() error) (*rdmacm.Event, error) {
	const op = "rdma_join_multicast"
	value := new(int) // unique to this join
	c, err := ep.begin(ctx, op, func() error { return join(value) }, func(ev *rdmacm.Event) bool {
		return (ev.Type == rdmacm.EventMulticastJoin || ev.Type == rdmacm.EventMulticastError) && ev.Value == value
	})
	if err != nil {
		return nil, err
	}
	ev, err := ep.finish(ctx, op, c)
	if err != nil {
		_ = leave()        // fails if the ID was closed
		ep.inbox.cancel(c) // no event follows any more
	}
	return ev, err
}

func isXRC(t ibverbs.QPType) bool { return t == ibverbs.QPTypeXRCSend || t == ibverbs.QPTypeXRCRecv }

// newXRCEndpoint returns an endpoint for one end of an extended reliable
// connection (XRC), bound to the source of info.
func newXRCEndpoint(info rdmacm.AddrInfo) (*Endpoint, error) {
	if ps := cmp.Or(info.PortSpace, rdmacm.PortSpaceIB); ps != rdmacm.PortSpaceIB {
		return nil, cerr.Refuse("rdma_create_ep", "", "AddrInfo.QPType is %v, which needs port space %v, not %v",
			info.QPType, rdmacm.PortSpaceIB, ps)
	}
	id := new(rdmacm.ID)
	if err := sealed.Open(id.Internals()).InitXRC(info); err != nil {
		return nil, err
	}
	return newEndpoint(id), nil
}

// explainXRC adds to err that the device does not support XRC, if err matches
// errors.ErrUnsupported.
func explainXRC(device *ibverbs.Device, err error) error {
	if errors.Is(err, errors.ErrUnsupported) {
		return fmt.Errorf("%s does not support extended reliable connections (XRC): %w", device.Name(), err)
	}
	return err
}

// xrcQueues holds the additional objects of an endpoint that receives for XRC.
// The endpoint has created all of them except, perhaps, recv.
type xrcQueues struct {
	recv *ibverbs.CQ // completion queue of the shared receive queue

	domain  *ibverbs.XRCD
	channel *ibverbs.CompChannel
	cq      *ibverbs.CQ
}

// open returns the XRC domain, and opens it if there is none.
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

// createSRQ creates the shared receive queue, and the XRC domain and completion
// queue if config lacks them.
func (x *xrcQueues) createSRQ(device *ibverbs.Device, pd *ibverbs.PD, config ibverbs.SRQConfig) (*ibverbs.SRQ, error) {
	config.Type = ibverbs.SRQTypeXRC
	var err error
	if config.XRCD == nil {
		if config.XRCD, err = x.open(device); err != nil {
			return nil, err
		}
	}
	if config.CQ == nil {
		if err := x.createCQ(device, config.RecvQueue); err != nil {
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
	if x.cq != nil { // left from an earlier attempt
		return nil
	}
	if x.channel == nil {
		if x.channel, err = device.CreateCompChannel(); err != nil {
			return err
		}
	}
	x.cq, err = device.CreateCQ(ibverbs.CQConfig{CompQueue: max(entries, 1), Channel: x.channel})
	return err
}

// close closes everything, after the queue pair and the shared receive queue.
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

// srqCQ returns the completion queue of the XRC shared receive queue.
func (ep *Endpoint) srqCQ() *ibverbs.CQ {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	return ep.xrc.recv
}

// errMigrated is the error of an endpoint after Migrate.
var errMigrated = cerr.Refuse("Endpoint", "", "the endpoint was migrated: use the ID that Migrate has returned")

// Migrate makes the endpoint's ID asynchronous, with events on the channel; see
// rdma_migrate_id(3). Unread events and connection requests move to the channel
// too. Waiting and later calls of the endpoint fail.
//
// The endpoint keeps the objects that it has created, such as its queue pair,
// which can still be used. Endpoint.Close closes those, and must be called
// before ID.Close.
func (ep *Endpoint) Migrate(to *rdmacm.EventChannel) (*rdmacm.ID, error) {
	if err := ep.usable(); err != nil {
		return nil, err
	}
	ep.mu.Lock()
	defer ep.mu.Unlock()
	if err := ep.usable(); err != nil { // the endpoint may have ended meanwhile
		return nil, err
	}
	var requests []*Endpoint
	err := sealed.Open(ep.id.Internals()).Migrate(to, func() (unread []*rdmacm.Event) {
		ep.moved = true
		unread, requests = ep.inbox.end(errMigrated)
		for _, request := range requests {
			unread = append(unread, request.id.Request())
		}
		return unread
	})
	if err != nil {
		return nil, err
	}
	for _, request := range requests {
		request.inbox.end(errMigrated)
		err = errors.Join(err, request.leave())
	}
	return ep.id, errors.Join(err, ep.leave())
}
