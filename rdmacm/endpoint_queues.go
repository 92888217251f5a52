package rdmacm

import (
	"errors"

	"github.com/verbena-go/verbena/ibverbs"
)

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
