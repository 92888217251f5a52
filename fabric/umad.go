// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/umad"
)

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
	id     int
	agents map[uint8]int // number of the agent of each class
	errors int           // number of calls of receive that have failed in succession
}

// openUmad opens a port; see Config.
func openUmad(config *Config) (*umadPort, error) {
	umadLock.Lock()
	defer umadLock.Unlock()
	object := config.name()
	id, err := umad.Open(config.Device, config.Port)
	if err != nil {
		return nil, notOpened(object, err)
	}
	u := &umadPort{id: id, agents: map[uint8]int{}}
	if size, err := umad.HeaderSize(); err != nil || size != umad.Size {
		u.closeLocked()
		return nil, cerr.Argument("umad_open_port", object, cerr.InvalidAs(errors.ErrUnsupported,
			"the kernel's interface for management datagrams is too old: their header has %d bytes, want %d", size, umad.Size))
	}
	for _, class := range classes {
		agent, err := umad.Register(id, class)
		if err != nil {
			u.closeLocked()
			return nil, notOpened(object, err)
		}
		u.agents[class] = agent
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
type umadBuffer [umad.Size + madSize]byte

func (u *umadPort) send(p *packet) error {
	var b umadBuffer
	binary.BigEndian.PutUint32(b[umad.QPN:], p.qp)
	if p.qp != 0 {
		binary.BigEndian.PutUint32(b[umad.QKey:], defaultQKey)
	}
	binary.BigEndian.PutUint16(b[umad.LID:], uint16(p.lid))
	copy(b[umad.Size:], p.mad[:])
	timeout := min(max(p.timeout.Milliseconds(), 1), math.MaxInt32)
	return umad.Send(u.id, u.agents[p.mad[offClass]], b[:], int(timeout))
}

// maxErrors is the number of calls of receive that must fail in succession
// before receive reports that the port is broken. A single failure may come
// from a signal, which libibumad reports with the same error.
const maxErrors = 10

func (u *umadPort) receive(p *packet) (bool, error) {
	var b umadBuffer
	length, err := umad.Receive(u.id, b[:], int(receiveTimeout.Milliseconds()))
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
	p.decode(&b, length)
	return true, nil
}

// decode decodes a received buffer into p. length is the length of the datagram
// without libibumad's header.
func (p *packet) decode(b *umadBuffer, length int) {
	p.lid = LID(binary.BigEndian.Uint16(b[umad.LID:]))
	p.qp = binary.BigEndian.Uint32(b[umad.QPN:])
	p.short = length < madSize
	p.mad = mad(b[umad.Size:])
	switch errno := syscall.Errno(binary.NativeEndian.Uint32(b[umad.Status:])); errno {
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
		_ = umad.Unregister(u.id, agent)
	}
	_ = umad.Close(u.id)
}
