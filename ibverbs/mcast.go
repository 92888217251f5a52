package ibverbs

import (
	"sync"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// group is a multicast group as C knows it.
type group struct {
	gid GID
	lid uint16
}

// groups are those that a queue pair is in.
type groups struct {
	sync.Mutex
	joined map[group]struct{}
}

// AttachMulticast makes a queue pair for datagrams receive what is sent to a
// multicast group; see ibv_attach_mcast(3). The subnet must already deliver it:
// rdmacm joins groups. On RoCE lid is 0. Attaching twice is no error. Close
// detaches the queue pair.
func (qp *QP) AttachMulticast(gid GID, lid uint16) error {
	return qp.multicast("ibv_attach_mcast", group{gid, lid}, func(raw *libibverbs.Gid) error {
		if err := libibverbs.AttachMcast(qp.raw, raw, lid); err != nil {
			return err
		}
		if qp.groups.joined == nil {
			qp.groups.joined = map[group]struct{}{}
		}
		qp.groups.joined[group{gid, lid}] = struct{}{}
		return nil
	})
}

// DetachMulticast ends what AttachMulticast began; see ibv_detach_mcast(3).
func (qp *QP) DetachMulticast(gid GID, lid uint16) error {
	return qp.multicast("ibv_detach_mcast", group{gid, lid}, func(raw *libibverbs.Gid) error {
		if err := libibverbs.DetachMcast(qp.raw, raw, lid); err != nil {
			return err
		}
		delete(qp.groups.joined, group{gid, lid})
		return nil
	})
}

func (qp *QP) multicast(op string, g group, call func(*libibverbs.Gid) error) error {
	if err := qp.self().Use(); err != nil {
		return err
	}
	defer qp.object.Done()
	if qp.Type() != QPTypeUD {
		return cerr.Refuse(op, qp.object.Name(), "the queue pair is of type %v, not %v", qp.Type(), QPTypeUD)
	}
	if !g.gid.Addr().IsMulticast() {
		return cerr.Refuse(op, qp.object.Name(), "GID %v is not that of a multicast group", g.gid)
	}
	qp.groups.Lock()
	defer qp.groups.Unlock()
	return wrap(qp.object.Name(), call(rawGID(g.gid)))
}

// leaveAll detaches the queue pair from its groups: C does not destroy it
// before.
func (qp *QP) leaveAll() error {
	qp.groups.Lock()
	defer qp.groups.Unlock()
	for g := range qp.groups.joined {
		if err := qp.device.unlessRemoved(libibverbs.DetachMcast(qp.raw, rawGID(g.gid), g.lid)); err != nil {
			return wrap(qp.object.Name(), err)
		}
		delete(qp.groups.joined, g)
	}
	return nil
}

func rawGID(gid GID) *libibverbs.Gid {
	var raw libibverbs.Gid
	*raw.Raw() = gid
	return &raw
}
