// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && amd64

package versions

import (
	"fmt"
	"syscall"
	"unsafe"

	verbs "github.com/verbena-go/verbena/generated/libibverbs"
	cm "github.com/verbena-go/verbena/generated/librdmacm"
)

const bufSize = 8192

// counter returns a completion counter for calls that Soft-RoCE refuses
// without a look at it.
func (o *objects) counter() *verbs.CompCntr { return &verbs.CompCntr{Context: o.context} }

// registerEx registers memory of the kernel's.
func registerEx(o *objects) error {
	memory, err := syscall.Mmap(-1, 0, bufSize, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return err
	}
	defer func() { _ = syscall.Munmap(memory) }()
	mr, err := verbs.RegMrEx(o.pd, &verbs.MrInitAttr{
		Length: bufSize, Addr: unsafe.Pointer(&memory[0]), CompMask: uint64(verbs.IBV_REG_MR_MASK_ADDR),
		Access: verbs.IBV_ACCESS_LOCAL_WRITE,
	})
	if err != nil {
		return err
	}
	if mr.Length != bufSize || mr.Lkey == 0 {
		return fmt.Errorf("a region of %d bytes with the key %d", mr.Length, mr.Lkey)
	}
	return verbs.DeregMr(mr)
}

func allocBuf(o *objects) (err error) {
	o.memory, o.buf, err = verbs.AllocBuf(o.pd, bufSize)
	if err != nil {
		o.buf = new(verbs.Buf) // for the calls that follow, which the library lacks as well
		o.memory = unsafe.Pointer(o.buf)
		return err
	}
	clear(unsafe.Slice((*byte)(o.memory), bufSize))
	return nil
}

func registerBuf(o *objects) error {
	mr, err := verbs.RegBufMr(o.pd, o.buf, o.memory, bufSize, verbs.IBV_ACCESS_LOCAL_WRITE)
	if err != nil {
		return err
	}
	return verbs.DeregMr(mr)
}

// nextEvent takes an event from the channel and returns a copy of it.
func (o *objects) nextEvent() (cm.CmEvent, error) {
	ev, err := cm.GetCmEvent(o.channel)
	if err != nil {
		return cm.CmEvent{}, err
	}
	seen := *ev
	return seen, cm.AckCmEvent(ev)
}

// writeEvent sends an event to the id's own channel.
func writeEvent(o *objects) error {
	const arg = 0x0123456789abcdef
	if err := cm.WriteCmEvent(o.id, cm.RDMA_CM_EVENT_USER, 7, arg); err != nil {
		return err
	}
	ev, err := o.nextEvent()
	if err != nil {
		return err
	}
	if ev.Id != o.id || ev.Event != cm.RDMA_CM_EVENT_USER || ev.Status != 7 || *ev.Param.Arg() != arg {
		return fmt.Errorf("event %v with status %d and argument %#x", ev.Event, ev.Status, *ev.Param.Arg())
	}
	return nil
}

// resolveAddrinfo starts to resolve the device's own address.
func resolveAddrinfo(o *objects) error {
	if err := cm.ResolveAddrinfo(o.id, o.address.String(), "7471", nil); err != nil {
		return err
	}
	ev, err := o.nextEvent()
	if err != nil {
		return err
	}
	if ev.Event != cm.RDMA_CM_EVENT_ADDRINFO_RESOLVED {
		return fmt.Errorf("event %v with status %d", ev.Event, ev.Status)
	}
	return nil
}

// queryAddrinfo asks for what was resolved.
func queryAddrinfo(o *objects) error {
	info, err := cm.QueryAddrinfo(o.id)
	if err != nil {
		return err
	}
	in := (*cm.SockaddrIn)(unsafe.Pointer(info.AiDstAddr))
	if got := *(*[4]byte)(unsafe.Pointer(&in.SinAddr)); got != o.address.As4() {
		return fmt.Errorf("%v was resolved to %v", o.address, got)
	}
	return cm.Freeaddrinfo(info)
}

func createRepoll(*objects) error {
	fd, err := cm.RepollCreate(0)
	if err != nil {
		return err
	}
	return cm.Rclose(int32(fd))
}
