package rdmacm

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"runtime"

	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

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
