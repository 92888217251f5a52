// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"syscall"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
	manager "github.com/verbena-go/verbena/softroce/internal/cm"
)

// id is an ID of the connection manager.
type id struct {
	c       *librdmacm.CmId
	e       *manager.ID
	channel *eventChannel
	sync    bool // whether the ID is synchronous: it has a channel of its own, and each call waits for its event
	acked   int  // number of the ID's events that the program has acknowledged

	connectError bool // whether the queue pair could not be connected; if so, later events of the connection are dropped
	localECE     libibverbs.Ece
	remoteECE    libibverbs.Ece
	groups       []*group

	connect   []byte                 // private data from rdma_addrinfo, which is sent before that of rdma_connect
	qpInit    *libibverbs.QpInitAttr // attributes for the queue pairs of connection requests, in C's memory, or nil
	resolving bool                   // whether rdma_resolve_addrinfo was called, and rdma_query_addrinfo was not called since
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
		return withID(c, func(l *cmLibrary, i *id) syscall.Errno {
			l.destroyID(i)
			return 0
		})
	}
	cm.MigrateId = func(c *librdmacm.CmId, to *librdmacm.EventChannel) syscall.Errno {
		return withID(c, func(l *cmLibrary, i *id) syscall.Errno { return l.migrateID(i, to) })
	}
	cm.SetOption = func(c *librdmacm.CmId, level librdmacm.OptionLevel, option int32, value unsafe.Pointer, length uint64) syscall.Errno {
		const longest = 1 << 12
		if length > longest || value == nil && length > 0 {
			return syscall.EINVAL
		}
		return withID(c, func(_ *cmLibrary, i *id) syscall.Errno {
			b := unsafe.Slice((*byte)(value), length)
			if level == librdmacm.RDMA_OPTION_IB && librdmacm.IBOption(option) == librdmacm.RDMA_OPTION_IB_PATH {
				return i.setPath(b)
			}
			return errno(i.e.SetOption(level, librdmacm.IDOption(option), b))
		})
	}
	cm.WriteCmEvent = func(c *librdmacm.CmId, event librdmacm.CmEventType, status int32, arg uint64) syscall.Errno {
		if event != librdmacm.RDMA_CM_EVENT_USER {
			return syscall.EINVAL
		}
		return withID(c, func(_ *cmLibrary, i *id) syscall.Errno { return errno(i.e.WriteEvent(event, int(status), arg)) })
	}
}

// withID calls f with the node locked. It returns EINVAL if c is not the struct
// of an ID.
func withID(c *librdmacm.CmId, f func(*cmLibrary, *id) syscall.Errno) syscall.Errno {
	l := self()
	l.Lock()
	defer l.Unlock()
	i := l.ids[c]
	if i == nil {
		return syscall.EINVAL
	}
	return f(l, i)
}

// completed calls f as withID does. If the ID is synchronous and f succeeds,
// completed also waits for the event, and returns its status.
func completed(c *librdmacm.CmId, f func(*cmLibrary, *id) syscall.Errno) syscall.Errno {
	var channel *librdmacm.EventChannel
	var fd int32
	err := withID(c, func(l *cmLibrary, i *id) syscall.Errno {
		err := f(l, i)
		if err == 0 && i.sync {
			l.ackOwn(i)
			channel, fd = i.channel.c, i.channel.c.Fd
		}
		return err
	})
	if err != 0 || channel == nil {
		return err
	}
	e, err := self().getCMEvent(channel, fd)
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

// ackOwn acknowledges the event of the last call on a synchronous ID.
func (l *cmLibrary) ackOwn(i *id) {
	if i.c.Event != nil {
		l.ackCMEvent(i.c.Event)
		i.c.Event = nil
	}
}

// createID creates an ID. If channel is nil, the ID is synchronous.
func (l *cmLibrary) createID(channel *librdmacm.EventChannel, context uintptr, ps librdmacm.PortSpace, qpType libibverbs.QpType) (*librdmacm.CmId, syscall.Errno) {
	l.Lock()
	defer l.Unlock()
	i := &id{sync: channel == nil}
	var err syscall.Errno
	if i.channel, err = l.channelFor(channel); err != 0 {
		return nil, err
	}
	e, failed := l.Manager().NewID(i.channel.e, ps, qpType, i)
	if failed != nil {
		if i.sync {
			l.destroyEventChannel(i.channel)
		}
		return nil, errno(failed)
	}
	i.e = e
	l.addID(i, context, ps, qpType)
	return i.c, 0
}

// channelFor returns the channel for the program's struct c. If c is nil, it
// creates a channel for a synchronous ID.
func (l *cmLibrary) channelFor(c *librdmacm.EventChannel) (*eventChannel, syscall.Errno) {
	if c == nil {
		return l.newEventChannel()
	}
	h := l.eventChannels[c]
	if h == nil {
		return nil, syscall.EBADF
	}
	return h, 0
}

// addID allocates the struct by which the program knows an ID.
func (l *cmLibrary) addID(i *id, context uintptr, ps librdmacm.PortSpace, qpType libibverbs.QpType) {
	i.c = alloc[librdmacm.CmId]()
	i.c.Channel, i.c.Ps, i.c.QpType = i.channel.c, ps, qpType
	setContext(&i.c.Context, context)
	l.ids[i.c] = i
}

// destroyID destroys an ID. It waits until the program has acknowledged the
// ID's events.
func (l *cmLibrary) destroyID(i *id) {
	i.e.Destroy(l.Now())
	delete(l.ids, i.c)
	l.EndInquiry(i.e)
	l.ackOwn(i)
	l.awaitAcks(&i.acked, i.e.Reported())
	if i.c.Verbs != nil {
		l.leaveDevice(i.c.Verbs)
	}
	if i.sync {
		l.destroyEventChannel(i.channel)
	}
	freeAddrinfo(i.resolved)
	free(i.qpInit)
	free(i.c.Route.PathRec)
	free(i.c)
}

// migrateID moves an ID to another channel, or makes it synchronous if to is
// nil. It waits until the program has acknowledged the events of the old
// channel.
func (l *cmLibrary) migrateID(i *id, to *librdmacm.EventChannel) syscall.Errno {
	if i.sync && to == nil {
		return syscall.EINVAL
	}
	h, err := l.channelFor(to)
	if err != 0 {
		return err
	}
	if err := i.e.Migrate(h.e); err != nil {
		if to == nil {
			l.destroyEventChannel(h)
		}
		return errno(err)
	}
	if i.sync {
		l.ackOwn(i)
		l.destroyEventChannel(i.channel)
	}
	i.sync, i.channel, i.c.Channel = to == nil, h, h.c
	l.awaitAcks(&i.acked, i.e.Reported())
	return 0
}
