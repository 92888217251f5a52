package cmtime

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// node is an end of a connection.
type node struct {
	id      *rdmacm.ID
	queues  queues
	times   [steps]span
	retries atomic.Int32 // left, of the step under way
}

// domains are the protection domains, one for each device, that all
// connections share, as those of C share librdmacm's.
type domains struct {
	mu  sync.Mutex
	pds map[*ibverbs.Context]*ibverbs.PD
}

func (d *domains) of(device *ibverbs.Context) (*ibverbs.PD, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if pd := d.pds[device]; pd != nil {
		return pd, nil
	}
	pd, err := device.AllocPD()
	if err != nil {
		return nil, err
	}
	if d.pds == nil {
		d.pds = map[*ibverbs.Context]*ibverbs.PD{}
	}
	d.pds[device] = pd
	return pd, nil
}

func (d *domains) close() error {
	var errs []error
	for _, pd := range d.pds {
		errs = append(errs, pd.Close())
	}
	return errors.Join(errs...)
}

// queues are a queue pair and what C's rdma_create_qp makes for it: a
// completion queue with a channel of its own for each direction.
type queues struct {
	qp       *ibverbs.QP
	cqs      [2]*ibverbs.CQ
	channels [2]*ibverbs.CompChannel
}

func (q *queues) create(id *rdmacm.ID, pds *domains) error {
	device, err := id.Context()
	if err != nil {
		return err
	}
	pd, err := pds.of(device)
	if err != nil {
		return err
	}
	for i := range q.cqs {
		if q.channels[i], err = device.CreateCompChannel(); err != nil {
			return err
		}
		if q.cqs[i], err = device.CreateCQ(ibverbs.CQConfig{Entries: 1, Channel: q.channels[i]}); err != nil {
			return err
		}
	}
	q.qp, err = id.CreateQP(pd, ibverbs.QPConfig{
		Type: ibverbs.QPTypeRC, SendCQ: q.cqs[0], RecvCQ: q.cqs[1],
		MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1,
	})
	return err
}

// close gives up what there is. It may be called again.
func (q *queues) close() error {
	var errs []error
	if q.qp != nil {
		errs = append(errs, q.qp.Close())
	}
	for i := range q.cqs {
		if q.cqs[i] != nil {
			errs = append(errs, q.cqs[i].Close())
		}
		if q.channels[i] != nil {
			errs = append(errs, q.channels[i].Close())
		}
	}
	return errors.Join(errs...)
}
