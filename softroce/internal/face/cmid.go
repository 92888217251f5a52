// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package face

import (
	"slices"
	"syscall"
	"time"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
	manager "github.com/verbena-go/verbena/softroce/internal/cm"
)

// id is a connection manager id.
type id struct {
	c       *librdmacm.CmId
	e       *manager.ID
	channel *eventChannel
	sync    bool          // the channel is the id's own, and calls wait for their events
	acked   int           // events that the program has acknowledged
	due     time.Duration // when ResolveAddr ends without an answer; 0: it does not wait for one
	inquiry inquiry

	connectError bool // the queue pair did not take the connection; what follows is of no interest
	localECE     libibverbs.Ece
	remoteECE    libibverbs.Ece
	groups       []*group

	connect   []byte                 // precedes the private data of Connect
	qpInit    *libibverbs.QpInitAttr // of the queue pairs of requests, in C's memory
	resolving bool                   // ResolveAddrinfo was called, and not QueryAddrinfo
	resolved  *librdmacm.Addrinfo
}

func init() {
	cm.CreateId = func(channel *librdmacm.EventChannel, c **librdmacm.CmId, context uintptr, ps librdmacm.PortSpace) syscall.Errno {
		qpType := libibverbs.IBV_QPT_RC
		if ps == librdmacm.RDMA_PS_UDP || ps == librdmacm.RDMA_PS_IPOIB {
			qpType = libibverbs.IBV_QPT_UD
		}
		var err syscall.Errno
		*c, err = self().createID(channel, context, ps, qpType)
		return err
	}
	cm.DestroyId = func(c *librdmacm.CmId) syscall.Errno {
		return withID(c, func(n *node, i *id) syscall.Errno {
			n.destroyID(i)
			return 0
		})
	}
	cm.MigrateId = func(c *librdmacm.CmId, to *librdmacm.EventChannel) syscall.Errno {
		return withID(c, func(n *node, i *id) syscall.Errno { return n.migrateID(i, to) })
	}
	cm.SetOption = func(c *librdmacm.CmId, level, option int32, value unsafe.Pointer, length uint64) syscall.Errno {
		const longest = 1 << 12
		if length > longest || value == nil && length > 0 {
			return syscall.EINVAL
		}
		return withID(c, func(_ *node, i *id) syscall.Errno {
			b := unsafe.Slice((*byte)(value), length)
			if librdmacm.OptionLevel(level) == librdmacm.RDMA_OPTION_IB && librdmacm.IBOption(option) == librdmacm.RDMA_OPTION_IB_PATH {
				return i.setPath(b)
			}
			return errno(i.e.SetOption(librdmacm.OptionLevel(level), librdmacm.IDOption(option), b))
		})
	}
	cm.WriteCmEvent = func(c *librdmacm.CmId, event librdmacm.CmEventType, status int32, arg uint64) syscall.Errno {
		if event != librdmacm.RDMA_CM_EVENT_USER {
			return syscall.EINVAL
		}
		return withID(c, func(_ *node, i *id) syscall.Errno { return errno(i.e.WriteEvent(event, int(status), arg)) })
	}
}

// withID calls f with the node locked. It fails with EINVAL if there is no such id.
func withID(c *librdmacm.CmId, f func(*node, *id) syscall.Errno) syscall.Errno {
	n := self()
	n.lock()
	defer n.unlock()
	i := n.cm.ids[c]
	if i == nil {
		return syscall.EINVAL
	}
	return f(n, i)
}

// completed calls f as withID does. If the id is synchronous, it waits for the event to which that leads.
func completed(c *librdmacm.CmId, f func(*node, *id) syscall.Errno) syscall.Errno {
	var channel *librdmacm.EventChannel
	err := withID(c, func(n *node, i *id) syscall.Errno {
		err := f(n, i)
		if err == 0 && i.sync {
			n.ackOwn(i)
			channel = i.channel.c
		}
		return err
	})
	if err != 0 || channel == nil {
		return err
	}
	e, err := self().getCMEvent(channel)
	if err != 0 {
		return err
	}
	c.Event = e
	switch {
	case e.Status == 0:
		return 0
	case e.Event == librdmacm.RDMA_CM_EVENT_REJECTED:
		return syscall.ECONNREFUSED
	case e.Status < 0:
		return syscall.Errno(-e.Status)
	}
	return syscall.Errno(e.Status)
}

// ackOwn acknowledges the last event of a synchronous id.
func (n *node) ackOwn(i *id) {
	if i.c.Event != nil {
		n.ackCMEvent(i.c.Event)
		i.c.Event = nil
	}
}

func (n *node) createID(channel *librdmacm.EventChannel, context uintptr, ps librdmacm.PortSpace, qpType libibverbs.QpType) (*librdmacm.CmId, syscall.Errno) {
	n.lock()
	defer n.unlock()
	i := &id{sync: channel == nil}
	var err syscall.Errno
	if i.channel, err = n.channelFor(channel); err != 0 {
		return nil, err
	}
	e, failed := n.cm.manager.NewID(i.channel.e, ps, qpType, i)
	if failed != nil {
		if i.sync {
			n.destroyEventChannel(i.channel)
		}
		return nil, errno(failed)
	}
	i.e = e
	n.addID(i, context, ps, qpType)
	return i.c, 0
}

// channelFor returns a program's channel, or a new one for a synchronous id.
func (n *node) channelFor(c *librdmacm.EventChannel) (*eventChannel, syscall.Errno) {
	if c == nil {
		return n.newEventChannel()
	}
	h := n.cm.channels[c]
	if h == nil {
		return nil, syscall.EBADF
	}
	return h, 0
}

// addID gives an id its memory for C.
func (n *node) addID(i *id, context uintptr, ps librdmacm.PortSpace, qpType libibverbs.QpType) {
	i.c = alloc[librdmacm.CmId]()
	i.c.Channel, i.c.Ps, i.c.QpType = i.channel.c, ps, qpType
	setPointer(&i.c.Context, context)
	n.cm.ids[i.c] = i
}

// destroyID waits until the events of the id have been acknowledged.
func (n *node) destroyID(i *id) {
	i.e.Destroy(n.now())
	delete(n.cm.ids, i.c)
	n.cm.asking = slices.DeleteFunc(n.cm.asking, func(other *id) bool { return other == i })
	n.ackOwn(i)
	n.awaitAcks(&i.acked, i.e.Reported())
	if i.c.Verbs != nil {
		n.leaveDevice(i.c.Verbs)
	}
	if i.sync {
		n.destroyEventChannel(i.channel)
	}
	freeAddrinfo(i.resolved)
	free(i.qpInit)
	free(i.c.Route.PathRec)
	free(i.c)
}

// migrateID waits until the events that the old channel has handed out have been acknowledged.
func (n *node) migrateID(i *id, to *librdmacm.EventChannel) syscall.Errno {
	if i.sync && to == nil {
		return syscall.EINVAL
	}
	h, err := n.channelFor(to)
	if err != 0 {
		return err
	}
	if err := i.e.Migrate(h.e); err != nil {
		if to == nil {
			n.destroyEventChannel(h)
		}
		return errno(err)
	}
	if i.sync {
		n.ackOwn(i)
		n.destroyEventChannel(i.channel)
	}
	i.sync, i.channel, i.c.Channel = to == nil, h, h.c
	n.awaitAcks(&i.acked, i.e.Reported())
	return 0
}
