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

// A Config has the sizes and times of a connection. In the zero Config everything has its default. Those of
// the sizes are the system's, from the files in /etc/rdma/rsocket that rsocket(7) describes, or the numbers here
// where there is no such file. The two ends of a connection may have different ones.
type Config struct {
	// ReadBuffer is the size in bytes of the memory that the peer writes to, and so the most that it can send
	// before this end reads; 0 means mem_default, or 131072. It is rounded up to an even number, and limited to from 2048 to 1<<30.
	ReadBuffer int
	// WriteBuffer is the size in bytes of the memory that Write copies to, and so the most that can be on its way;
	// 0 means wmem_default, or 131072. It is limited to from 4096 to 1<<30.
	WriteBuffer int
	// SendQueue and RecvQueue are the most messages that can be on their way to and from the peer; 0 means
	// sqsize_default and rqsize_default, or 384. They are limited to from 16 to what the device has, or 65534.
	SendQueue, RecvQueue int
	// MaxInline is the most bytes that the device gets along with a request, and need not fetch from memory; 0 means
	// inline_default, or 64, and a negative value none. A device that cannot do so many gets fewer.
	MaxInline int
	// Spin is how long a Read or Write spins before it parks its goroutine, if that has mostly been long enough
	// lately; 0 means ibverbs.DefaultSpin, and with a negative value none spins, nor sleeps in C for a
	// moment. See ibverbs.CQConfig.
	Spin time.Duration
	// KeepAlive is how often an end with nothing on its way checks that the peer's device still answers; 0 means
	// 30 s, and a negative value never. See Conn.SetKeepAlive.
	KeepAlive time.Duration
	// AckTimeout is how long this end waits for the peer's device to acknowledge a message before it sends the message again, which it
	// does six times before calls fail with an error matching syscall.ETIMEDOUT; 0 leaves the choice to the system. See
	// rdmacm.Config.
	AckTimeout time.Duration
	// Pool, if not nil, is what the connection shares with others.
	Pool *Pool
	// HandshakeTimeout limits how long the peer may take to answer the request for a connection, or its
	// acceptance; 0 means 30 s for a request, and 10 s for an acceptance.
	HandshakeTimeout time.Duration
	// Logger, if not nil, gets a record when the connection below is up, could not be set up, or has ended; see rdmacm.Config.
	// Its handler may close the connection, and the listener.
	Logger *slog.Logger
}

const (
	minQueue         = 16
	minReadBuffer    = 2048
	minWriteBuffer   = 4096
	maxBuffer        = 1 << 30
	defaultKeepAlive = 30 * time.Second
	defaultHandshake = 30 * time.Second
)

// configFolder has the system's defaults; see rsocket(7).
const configFolder = "/etc/rdma/rsocket"

// systemDefaults reads them once.
var systemDefaults = sync.OnceValue(func() Config { return defaultsIn(configFolder) })

// defaultsIn returns the defaults that the files in a folder say, each a number.
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

// check returns an error that names the field if no connection can have the
// config. Sizes are limited, and so never wrong.
func (c Config) check() error { return newConn(c.complete()).rdmaConfig().Check() }

// complete returns the config with the defaults, as far as these do not depend on the device.
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
