package rdmacm

import (
	"errors"
	"syscall"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

const opCreateQP = "rdma_create_qp"

// CreateQP makes a queue pair whose states follow the connection; see
// rdma_create_qp(3). It must be closed before the id.
func (id *ID) CreateQP(pd *ibverbs.PD, config ibverbs.QPConfig) (*ibverbs.QP, error) {
	if pd == nil {
		return nil, cerr.Nil(opCreateQP, "pd")
	}
	qp, err := newQP(pd, config, func(attr *libibverbs.QpInitAttrEx) (qp *libibverbs.Qp, destroy func() error, err error) {
		err = id.callBound(opCreateQP, "bind or resolve the address", func() error {
			if id.hasQP {
				return errExists(opCreateQP, "", "queue pair")
			}
			if id.verbs() != pd.Device().Raw() {
				return cerr.Refuse(opCreateQP, "", "the protection domain is not of the id's device: make it on that of ID.Context, rdmacm.Devices or Listener.Device")
			}
			if err := librdmacm.CreateQpEx(id.raw, attr); err != nil {
				return err
			}
			id.hasQP = true
			defer id.lockChannel()()
			qp = id.raw.Qp
			return nil
		})
		return qp, func() error { return id.destroyQP(pd.Device(), qp) }, err
	})
	if err != nil {
		return nil, err
	}
	id.mu.Lock()
	defer id.mu.Unlock()
	id.qp = queuePair{qp, config.SendCQ, config.RecvCQ, config.SRQ}
	return qp, nil
}

// queuePair is a queue pair with its completion queues.
type queuePair struct {
	*ibverbs.QP
	send, recv *ibverbs.CQ
	srq        *ibverbs.SRQ
}

// QP returns the queue pair that CreateQP has made, nil while there is none.
func (id *ID) QP() *ibverbs.QP {
	if id.self().Use() != nil {
		return nil
	}
	defer id.object.Done()
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.qp.QP
}

// needQP returns the queue pair for an operation that needs one.
func (id *ID) needQP(op string) (queuePair, error) {
	var qp queuePair
	err := id.call(func() error {
		if id.qp.QP == nil {
			return errStep(op, "", "create a queue pair")
		}
		qp = id.qp
		return nil
	})
	return qp, err
}

// destroyQP is what rdma_destroy_qp does, but for its silence about errors. The
// id forgets the queue pair before, because reading an event may change the
// state of the one that it has. The kernel may take a minute: the id is not
// locked meanwhile, so that nobody waits for that who has an event of it.
func (id *ID) destroyQP(device *ibverbs.Device, qp *libibverbs.Qp) error {
	id.mu.Lock()
	id.leaveAll()
	id.setQP(nil)
	known := id.qp
	id.qp = queuePair{}
	id.mu.Unlock()
	err := libibverbs.DestroyQp(qp)
	failed := err != nil && !(errors.Is(err, syscall.EIO) && device.Removed())
	id.mu.Lock()
	defer id.mu.Unlock()
	if failed {
		id.qp = known
		id.setQP(qp)
		return err
	}
	id.hasQP = false
	return err
}

func (id *ID) setQP(qp *libibverbs.Qp) {
	defer id.lockChannel()()
	id.raw.Qp = qp
}

// InitQPAttr returns the attributes, and which they are, with which QP.Modify moves a
// queue pair that CreateQP has not made into a state of the connection; see
// rdma_init_qp_attr(3).
func (id *ID) InitQPAttr(state ibverbs.QPState) (ibverbs.QPAttr, ibverbs.QPAttrMask, error) {
	raw, mask, err := id.initQPAttr(state)
	if err != nil {
		return ibverbs.QPAttr{}, 0, err
	}
	return qpAttrOf(raw), mask, nil
}

// initQPAttr is InitQPAttr with the attributes as C has them.
func (id *ID) initQPAttr(state ibverbs.QPState) (*libibverbs.QpAttr, ibverbs.QPAttrMask, error) {
	attr := &libibverbs.QpAttr{QpState: state}
	var mask int32
	err := id.callBound("rdma_init_qp_attr", "bind or resolve the address", func() (err error) {
		mask, err = librdmacm.InitQpAttr(id.raw, attr)
		return err
	})
	return attr, ibverbs.QPAttrMask(mask), err
}

func rawECE(ece ibverbs.ECE) *libibverbs.Ece {
	return &libibverbs.Ece{VendorId: ece.VendorID, Options: ece.Options}
}
