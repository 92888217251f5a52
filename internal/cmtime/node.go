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
	times   [steps]span
	retries atomic.Int32 // left, of the step under way
}

// close gives up what there is. It may be called again.
func (n *node) close() error { return errors.Join(n.closeQP(), n.id.Close()) }

func (n *node) closeQP() error {
	if qp := n.id.QP(); qp != nil {
		return qp.Close()
	}
	return nil
}

// domain is what all connections of a device share: of a protection domain,
// which is librdmacm's in C, and of completion queues, which are in C those
// that rdma_create_qp has made for the first connection.
type domain struct {
	pd   *ibverbs.PD
	send *ibverbs.CQ
	recv *ibverbs.CQ
}

func newDomain(device *ibverbs.Context) (*domain, error) {
	d := &domain{}
	var err error
	if d.pd, err = device.AllocPD(); err != nil {
		return nil, err
	}
	for _, cq := range []**ibverbs.CQ{&d.send, &d.recv} {
		if *cq, err = device.CreateCQ(ibverbs.CQConfig{Entries: 1}); err != nil {
			return nil, errors.Join(err, d.close())
		}
	}
	return d, nil
}

func (d *domain) close() error {
	var errs []error
	for _, cq := range []*ibverbs.CQ{d.send, d.recv} {
		if cq != nil {
			errs = append(errs, cq.Close())
		}
	}
	return errors.Join(append(errs, d.pd.Close())...)
}

// domains are those of all devices.
type domains struct {
	mu sync.Mutex
	of map[*ibverbs.Context]*domain
}

func (d *domains) get(device *ibverbs.Context) (*domain, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if shared := d.of[device]; shared != nil {
		return shared, nil
	}
	shared, err := newDomain(device)
	if err != nil {
		return nil, err
	}
	if d.of == nil {
		d.of = map[*ibverbs.Context]*domain{}
	}
	d.of[device] = shared
	return shared, nil
}

func (d *domains) close() error {
	var errs []error
	for _, shared := range d.of {
		errs = append(errs, shared.close())
	}
	return errors.Join(errs...)
}

func (d *domains) createQP(id *rdmacm.ID) error {
	device, err := id.Context()
	if err != nil {
		return err
	}
	shared, err := d.get(device)
	if err != nil {
		return err
	}
	_, err = id.CreateQP(shared.pd, ibverbs.QPConfig{
		Type: ibverbs.QPTypeRC, SendCQ: shared.send, RecvCQ: shared.recv,
		MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1,
	})
	return err
}
