// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibumad"
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// header is what precedes a datagram in libibumad's buffers.
type header = libibumad.UserMad

// headerSize is the length of a header.
const headerSize = int(unsafe.Sizeof(header{}))

// defaultQKey is the Q_Key of queue pair 1, which receives all management
// datagrams except those of subnet management.
const defaultQKey = 0x80010000

// receiveTimeout is the maximum time of a call of C that waits for a datagram.
// Close waits for this call to return.
const receiveTimeout = 100 * time.Millisecond

// umadLock guards the functions that open and close ports, which are not safe
// to call concurrently.
var umadLock sync.Mutex

// umadPort is a local port that libibumad has opened.
type umadPort struct {
	id     int32
	agents map[uint8]int32 // number of the agent of each class
	errors int             // number of calls of receive that have failed in succession
}

// openUmad opens a port; see Config.
func openUmad(config *Config) (*umadPort, error) {
	umadLock.Lock()
	defer umadLock.Unlock()
	object := config.name()
	id, err := libibumad.OpenPort(config.Device, int32(config.Port))
	if err != nil {
		return nil, notOpened(object, err)
	}
	u := &umadPort{id: int32(id), agents: map[uint8]int32{}}
	if size, err := libibumad.Size(); err != nil || size != uint64(headerSize) {
		u.closeLocked()
		return nil, cerr.Argument("umad_open_port", object, cerr.InvalidAs(errors.ErrUnsupported,
			"the kernel's interface for management datagrams is too old: their header has %d bytes, want %d", size, headerSize))
	}
	for _, class := range classes {
		agent, err := libibumad.Register(u.id, libibumad.Class(class), 1, 0, nil)
		if err != nil {
			u.closeLocked()
			return nil, notOpened(object, err)
		}
		u.agents[class] = int32(agent)
	}
	return u, nil
}

// notOpened returns the error of a port that could not be opened. It adds the
// likely reason to err.
func notOpened(object string, err error) error {
	why := ""
	switch {
	case errors.Is(err, syscall.ENODEV), errors.Is(err, syscall.EINVAL):
		why = ": there is no such InfiniBand port, or the kernel's module ib_umad is not loaded; verbena devices lists the ports"
	case errors.Is(err, syscall.EIO):
		why = ": no access to /dev/infiniband/umad*, which only root has on most machines"
	case errors.Is(err, syscall.EPERM):
		why = ": the port does not send InfiniBand management datagrams; it may be an Ethernet port"
	case errors.Is(err, syscall.EOPNOTSUPP):
		why = ": the kernel's module ib_umad is not loaded"
	}
	return fmt.Errorf("%s: %w%s", object, err, why)
}

// umadBuffer holds a datagram, preceded by libibumad's header.
type umadBuffer struct {
	header header
	mad    mad
}

func (u *umadPort) send(p *packet) error {
	b := umadBuffer{mad: p.mad}
	addr := &b.header.Addr
	addr.Qpn = libibverbs.NewBe32(p.qp)
	if p.qp != 0 {
		addr.Qkey = libibverbs.NewBe32(defaultQKey)
	}
	addr.Lid = libibverbs.NewBe16(uint16(p.lid))
	timeout := min(max(p.timeout.Milliseconds(), 1), math.MaxInt32)
	return libibumad.Send(u.id, u.agents[p.mad[offClass]], unsafe.Pointer(&b), madSize, int32(timeout), 0)
}

// maxErrors is the number of calls of receive that must fail in succession
// before receive reports that the port is broken. A single failure may come
// from a signal, which libibumad reports with the same error.
const maxErrors = 10

func (u *umadPort) receive(p *packet) (bool, error) {
	var b umadBuffer
	length := int32(madSize)
	_, err := libibumad.Recv(u.id, unsafe.Pointer(&b), &length, int32(receiveTimeout.Milliseconds()))
	switch {
	case errors.Is(err, syscall.ETIMEDOUT), errors.Is(err, syscall.EAGAIN):
		u.errors = 0
		return false, nil
	case err != nil:
		if u.errors++; u.errors < maxErrors {
			return false, nil
		}
		return false, err
	}
	u.errors = 0
	p.decode(&b, int(length))
	return true, nil
}

// decode decodes a received buffer into p. length is the length of the datagram
// without libibumad's header.
func (p *packet) decode(b *umadBuffer, length int) {
	p.lid = LID(b.header.Addr.Lid.Host())
	p.qp = b.header.Addr.Qpn.Host()
	p.short = length < madSize
	p.mad = b.mad
	switch errno := syscall.Errno(b.header.Status); errno {
	case 0:
	case syscall.ETIMEDOUT:
		p.failed = ErrNoAnswer
	default:
		p.failed = fmt.Errorf("the request could not be sent: %w", errno)
	}
}

func (u *umadPort) close() {
	umadLock.Lock()
	defer umadLock.Unlock()
	u.closeLocked()
}

// closeLocked closes the port. It ignores errors, because both functions fail
// only for a port that is not open.
func (u *umadPort) closeLocked() {
	for _, agent := range u.agents {
		_ = libibumad.Unregister(u.id, agent)
	}
	_ = libibumad.ClosePort(u.id)
}
