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

func init() {
	cm.Connect = func(c *librdmacm.CmId, p *librdmacm.ConnParam) syscall.Errno {
		return completed(c, func(l *cmLibrary, i *id) syscall.Errno { return l.connect(i, p) })
	}
	cm.Accept = func(c *librdmacm.CmId, p *librdmacm.ConnParam) syscall.Errno {
		if c.QpType != libibverbs.IBV_QPT_UD {
			return completed(c, func(l *cmLibrary, i *id) syscall.Errno { return l.accept(i, p) })
		}
		return withID(c, func(l *cmLibrary, i *id) syscall.Errno {
			err := l.accept(i, p)
			if err == 0 && i.sync {
				l.ackOwn(i) // no event follows
			}
			return err
		})
	}
	cm.Establish = func(c *librdmacm.CmId) syscall.Errno {
		return withID(c, func(l *cmLibrary, i *id) syscall.Errno {
			if i.c.Qp != nil {
				return syscall.EINVAL
			}
			return errno(i.e.Establish(l.Now()))
		})
	}
	cm.Reject = func(c *librdmacm.CmId, data unsafe.Pointer, length uint8) syscall.Errno {
		return reject(c, 0, data, length)
	}
	cm.RejectEce = func(c *librdmacm.CmId, data unsafe.Pointer, length uint8) syscall.Errno {
		const vendorOptionNotSupported = 35
		return reject(c, vendorOptionNotSupported, data, length)
	}
	cm.Notify = func(c *librdmacm.CmId, event libibverbs.EventType) syscall.Errno {
		return withID(c, func(_ *cmLibrary, i *id) syscall.Errno { return errno(i.e.Notify(event)) })
	}
	cm.Disconnect = func(c *librdmacm.CmId) syscall.Errno {
		return completed(c, func(l *cmLibrary, i *id) syscall.Errno {
			if i.c.Verbs == nil {
				return syscall.EINVAL
			}
			if err := l.modifyToError(i); err != 0 {
				return err
			}
			return errno(i.e.Disconnect(l.Now()))
		})
	}
	cm.SetLocalEce = func(c *librdmacm.CmId, ece *libibverbs.Ece) syscall.Errno {
		return withID(c, func(_ *cmLibrary, i *id) syscall.Errno {
			if i.c.Qp != nil || ece == nil || ece.VendorId == 0 || ece.CompMask != 0 {
				return syscall.EINVAL
			}
			i.setLocalECE(*ece)
			return 0
		})
	}
	cm.GetRemoteEce = func(c *librdmacm.CmId, ece *libibverbs.Ece) syscall.Errno {
		return withID(c, func(_ *cmLibrary, i *id) syscall.Errno {
			if i.c.Qp != nil || ece == nil {
				return syscall.EINVAL
			}
			*ece = i.remoteECE
			return 0
		})
	}
}

// setLocalECE sets the ECE options that the ID will offer to its peer.
func (i *id) setLocalECE(ece libibverbs.Ece) {
	i.localECE = ece
	i.e.SetLocalECE(ece)
}

func reject(c *librdmacm.CmId, reason uint8, data unsafe.Pointer, length uint8) syscall.Errno {
	return withID(c, func(l *cmLibrary, i *id) syscall.Errno {
		return errno(i.e.Reject(l.Now(), reason, privateData(data, length)))
	})
}

// connect sends a connection request.
func (l *cmLibrary) connect(i *id, p *librdmacm.ConnParam) syscall.Errno {
	if p == nil && i.c.Qp == nil && i.c.Ps == librdmacm.RDMA_PS_TCP {
		return syscall.EINVAL
	}
	if err := i.e.Connect(l.Now(), i.param(p)); err != nil {
		return errno(err)
	}
	i.connect = nil
	return 0
}

// accept accepts a connection request. It takes the queue pair to RTS before it
// answers, as the peer may send at once.
func (l *cmLibrary) accept(i *id, p *librdmacm.ConnParam) syscall.Errno {
	if p == nil && i.c.Qp == nil {
		return syscall.EINVAL
	}
	param := i.param(p)
	if err := i.e.Settle(&param); err != nil {
		return errno(err)
	}
	if i.c.QpType != libibverbs.IBV_QPT_UD {
		if err := l.modifyToRTS(i, param.ResponderResources, param.InitiatorDepth); err != 0 {
			return err
		}
	}
	if q := l.qps[i.c.Qp]; q != nil {
		q.e.HearFirst()
	}
	if err := i.e.Accept(l.Now(), param); err != nil {
		l.modifyToError(i)
		return errno(err)
	}
	return 0
}

// respond is called after the peer has accepted the connection. It takes the
// queue pair to RTS, and tells the manager to confirm that.
func (l *cmLibrary) respond(i *id) syscall.Errno {
	if vendor := i.remoteECE.VendorId; vendor != 0 && vendor != i.localECE.VendorId {
		l.modifyToError(i)
		return syscall.EINVAL
	}
	err := l.modifyToRTS(i, librdmacm.RDMA_MAX_RESP_RES, librdmacm.RDMA_MAX_INIT_DEPTH)
	if err == 0 {
		err = errno(i.e.Establish(l.Now()))
	}
	if err != 0 {
		l.modifyToError(i)
	}
	return err
}

// request creates the ID for the connection request e to a listener.
func (l *cmLibrary) request(listener *id, e *manager.Event) (*id, syscall.Errno) {
	i := &id{e: e.ID, channel: listener.channel, remoteECE: e.ECE}
	e.ID.Context = i
	l.addID(i, contextOf(&listener.c.Context), listener.c.Ps, listener.c.QpType)
	var err syscall.Errno
	if listener.sync {
		err = l.migrateID(i, nil)
	}
	if err == 0 {
		err = l.queryAddr(i)
	}
	if err != 0 {
		l.destroyID(i)
		return nil, err
	}
	l.queryPath(i)
	return i, 0
}

// param returns the parameters of a connection. If the ID has a queue pair, the
// number of the queue pair and whether it uses an SRQ replace the values in p.
func (i *id) param(p *librdmacm.ConnParam) manager.ConnParam {
	q := manager.DefaultConnParam()
	q.PrivateData = i.connect
	if p != nil {
		q.PrivateData = append(q.PrivateData, privateData(p.PrivateData, p.PrivateDataLen)...)
		q.ResponderResources, q.InitiatorDepth = p.ResponderResources, p.InitiatorDepth
		q.FlowControl, q.SRQ = p.FlowControl != 0, p.Srq != 0
		q.RetryCount, q.RNRRetryCount = p.RetryCount, p.RnrRetryCount
		q.QPNum = p.QpNum
	}
	if i.c.Qp != nil {
		q.QPNum, q.SRQ = i.c.Qp.QpNum, i.c.Qp.Srq != nil
	}
	return q
}

// privateData returns length bytes at data, or nil if data is nil.
func privateData(data unsafe.Pointer, length uint8) []byte {
	if data == nil {
		return nil
	}
	return unsafe.Slice((*byte)(data), length)
}
