// SPDX-License-Identifier: Apache-2.0

package rsocket

import (
	"cmp"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A Config sets a connection's buffer sizes and timeouts. Zero fields have
// defaults. The defaults of the sizes come from the files in /etc/rdma/rsocket
// that rsocket(7) describes; where a file is missing, the values below apply.
// The two ends of a connection may have different Configs.
type Config struct {
	// ReadBuffer is the size in bytes of the memory to which the peer
	// writes. It limits the bytes that the peer can send before this end
	// reads. 0 means the number in /etc/rdma/rsocket/mem_default, or 131072
	// if there is no such file. The size is adjusted to be even and within
	// 2048 and 1<<30.
	ReadBuffer int
	// WriteBuffer is the size in bytes of the memory to which Write copies.
	// It limits the bytes in flight. 0 means the number in
	// /etc/rdma/rsocket/wmem_default, or 131072 if there is no such file.
	// The size is adjusted to be within 4096 and 1<<30.
	WriteBuffer int
	// SendQueue and RecvQueue limit the numbers of messages in flight to
	// and from the peer. 0 means the number in
	// /etc/rdma/rsocket/sqsize_default and rqsize_default, or 384 if there
	// is no such file. The numbers are adjusted to be within 16 and the
	// device's limit, at most 65534. On iWARP, a message takes two places
	// in the SendQueue.
	SendQueue, RecvQueue int
	// MaxInline is the largest number of bytes that are posted inline, as a
	// part of a request, so that the device need not read them from memory.
	// 0 means the number in /etc/rdma/rsocket/inline_default, or 64 if
	// there is no such file. A negative value means that nothing is posted
	// inline, except for 4 bytes on iWARP. Values above the device's limit
	// are reduced to it.
	MaxInline int
	// Spin is the longest time for which a Read or Write busy-waits before
	// it parks its goroutine. It busy-waits only if recent completions
	// usually came within that time. 0 means ibverbs.DefaultSpin. With a
	// negative value, calls never busy-wait, and park at once. See
	// ibverbs.CQConfig.
	Spin time.Duration
	// KeepAlive is the interval at which this end checks that the peer's
	// device still answers, while it has nothing in flight. 0 means 30 s; a
	// negative value means that it does not check. On iWARP, an end that has
	// accepted the connection checks only once a first message of the peer
	// has arrived. See Conn.SetKeepAlive.
	KeepAlive time.Duration
	// AckTimeout is the time for which this end waits for the peer's device
	// to acknowledge a message before it sends the message again. After six
	// repetitions, calls fail with an error matching syscall.ETIMEDOUT. 0
	// means that the system chooses the time. See rdmacm.Config.
	AckTimeout time.Duration
	// Pool, if not nil, provides resources that the connection shares with
	// others.
	Pool *Pool
	// HandshakeTimeout limits the time in which the peer must answer the
	// request for a connection, or confirm its acceptance. 0 means 30 s for
	// a request, and 10 s for an acceptance.
	HandshakeTimeout time.Duration
	// Logger, if not nil, gets a record when the RDMA connection is up,
	// could not be set up, or has ended; see rdmacm.Config. Its handler may
	// close the connection and the listener.
	Logger *slog.Logger

	ioMaps int // number of entries for direct writes, which C programs set
}

const (
	minQueue         = 16
	minReadBuffer    = 2048
	minWriteBuffer   = 4096
	maxBuffer        = 1 << 30
	defaultKeepAlive = 30 * time.Second
	defaultHandshake = 30 * time.Second
)

// configFolder is the directory with the system's default sizes; see
// rsocket(7).
const configFolder = "/etc/rdma/rsocket"

// systemDefaults returns the system's default sizes, which it reads once.
var systemDefaults = sync.OnceValue(func() Config { return defaultsIn(configFolder) })

// defaultsIn returns the default sizes in the files of a directory, each of
// which has one number.
func defaultsIn(folder string) Config {
	number := func(name string, otherwise int) int {
		text, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			return otherwise
		}
		n, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil || n < 0 {
			return otherwise
		}
		return n
	}
	c := Config{
		ReadBuffer: number("mem_default", 1<<17), WriteBuffer: number("wmem_default", 1<<17),
		SendQueue: number("sqsize_default", 384), RecvQueue: number("rqsize_default", 384),
		MaxInline: number("inline_default", 64),
	}
	if c.MaxInline == 0 {
		c.MaxInline = -1
	}
	return c
}

// check returns an error if a field is invalid, and names the field. Sizes are
// never invalid, since complete adjusts them.
func (c Config) check() error { return newConn(c.complete()).rdmaConfig().Check() }

// complete returns c with all defaults filled in, as far as they do not depend
// on the device.
func (c Config) complete() Config {
	d := systemDefaults()
	c.ReadBuffer = min(max(cmp.Or(c.ReadBuffer, d.ReadBuffer), minReadBuffer), maxBuffer)
	c.ReadBuffer += c.ReadBuffer % 2
	c.WriteBuffer = min(max(cmp.Or(c.WriteBuffer, d.WriteBuffer), minWriteBuffer), maxBuffer)
	c.SendQueue = min(cmp.Or(c.SendQueue, d.SendQueue), math.MaxUint16)
	c.RecvQueue = min(cmp.Or(c.RecvQueue, d.RecvQueue), math.MaxUint16)
	c.MaxInline = cmp.Or(c.MaxInline, d.MaxInline)
	c.KeepAlive = cmp.Or(c.KeepAlive, defaultKeepAlive)
	return c
}
