package rdmacm

import (
	"context"
	"errors"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

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
