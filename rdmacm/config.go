// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"cmp"
	"log/slog"
	"math"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// A Config configures a connection, dialed or accepted. The zero value and a
// nil *Config are usable. Dialer has the options that only the dialing end
// sets.
type Config struct {
	// SendQueue and RecvQueue are the maximum numbers of send and receive work
	// requests in flight; 0 means 16.
	SendQueue, RecvQueue int
	// Segments is the maximum number of memory segments in one work request; 0
	// means 1.
	Segments int
	// MaxInline is the maximum number of bytes that a Send or a Write sends
	// inline: C copies them when it posts the request, and the device need not
	// fetch them. Only inline data may come from ibverbs.InlineBytes. 0
	// disables inline data. Each device has its own limit.
	MaxInline int
	// Spin is how long a call busy-waits for its completion before it parks its
	// goroutine; 0 means ibverbs.DefaultSpin. A call busy-waits only if recent
	// completions usually arrived within Spin. With a negative value, no call
	// busy-waits. See ibverbs.CQConfig.
	Spin time.Duration
	// PrivateData is sent to the peer with the connection request (at most 56
	// bytes on InfiniBand and RoCE) or with the acceptance (at most 196). iWARP
	// allows 255 bytes in both. The peer may see trailing zeros.
	PrivateData []byte
	// PD is the protection domain to use. It must have been allocated on
	// the connection's device, as a Device from Devices. If nil, the
	// connection allocates its own and closes it in Close.
	PD *ibverbs.PD
	// Queues, if not nil, selects queues that the connection does not create
	// itself. A *Pool holds queues that many connections share. *PolledQueues,
	// a *PreparedQP and a *VerbsQP are for programs that poll or post
	// themselves.
	Queues Queues
	// MessageSize, if not 0, is the maximum number of bytes in a message
	// for Conn.Receive. It gives the connection a Receiver from the start,
	// whose RecvQueue receives are posted before the peer can send. If
	// MessageSize is 0, the program posts receives itself or calls
	// Conn.NewReceiver.
	MessageSize int
	// Setup, if not nil, is called after the queue pair has been created
	// and before the peer can send: register memory and post receives here.
	// If Setup returns an error, the attempt to connect fails, and Dial or
	// Accept closes the Conn. Memory that Setup has registered by other
	// means than Conn.Alloc stays registered after such an error, and keeps
	// the Conn's own protection domain open. The program must close that
	// memory, and after that close the Conn that Setup got again.
	//
	// Setup runs in the goroutine of Dial or Accept, may block, and may call
	// anything. The connection is not up yet: transfers fail, and receives
	// wait. If Setup calls Close, Dial or Accept fails.
	Setup func(*Conn) error
	// Ended, if not nil, is called once after Err has begun to return an error,
	// whether Close or the peer ended the connection. It runs in its own
	// goroutine, and no call waits for it: it may block and may call anything,
	// such as Close or Dial. It can be called before Dial or Accept returns,
	// and after Close has returned.
	Ended func(error)
	// Logger, if not nil, gets a record when the connection is up, when it
	// could not be set up, and when it has ended. A record holds the addresses,
	// the device and the number of the queue pair; the record of the start also
	// holds the time that the setup took. Each connection has either the record
	// of a failure, or a record of its start followed by one of its end. The
	// level is Debug, or Warn for an end that neither program requested. The
	// context is that of Dial or Accept.
	//
	// If Dial, Accept or Close causes a record, the handler runs in its
	// goroutine; otherwise, it runs in a goroutine that only writes records.
	// The handler may call anything, such as Close. A handler that blocks
	// delays the records of other connections' ends, but no events.
	Logger *slog.Logger
	// ReadDepth is the maximum number of RDMA reads and atomics in flight in
	// each direction. 0 means 16, or fewer if the device or the peer allows
	// fewer. A negative value allows none.
	ReadDepth int
	// HandshakeTimeout limits how long the peer may take to answer the
	// connection request or the acceptance, in addition to the context; 0 means
	// 30 s for a request and 10 s for an acceptance. If negative, only the
	// context and the system limit the time; the system gives up after about a
	// minute. The system resends a lost message after four seconds.
	HandshakeTimeout time.Duration
	// KeepAlive is how often an end with no transfer in flight checks that the
	// peer's device still answers; 0 means 30 s, and a negative value disables
	// the check. On InfiniBand and RoCE a check costs one packet in each
	// direction and does not involve the peer's program. If the device does not
	// answer, the connection fails with an *ibverbs.WCError matching
	// ibverbs.WCRetryExceeded when RetryCount is used up, or with an *EventError
	// matching syscall.ETIMEDOUT after another KeepAlive and a second, whichever
	// comes first. While transfers are in flight, RetryCount limits them
	// instead.
	//
	// The check is an RDMA write of no bytes, which rdma_cm permits at every
	// peer. If the peer's program has disabled remote writes on its queue pair,
	// the check breaks the connection: set KeepAlive to a negative value. On
	// iWARP, an end that has accepted the connection checks only once it has
	// received a first message of the peer.
	KeepAlive time.Duration
	// Linger is how long the system may keep resending the notice of the end,
	// after Close has returned, to a peer that does not answer; 0 means 30 s.
	// If negative, the system sends the notice once. The local port stays in
	// use until the peer has answered.
	Linger time.Duration
	// AckTimeout is how long this end waits for the peer's device to acknowledge
	// a message before it sends the message again; 0 leaves the choice to the
	// system. See ID.SetAckTimeout. The dialer's value also applies to the
	// accepting end, unless that end sets its own.
	AckTimeout time.Duration
	// RetryCount is how often a message that the peer's device does not
	// acknowledge is sent again before the transfer fails with an error
	// matching ibverbs.WCRetryExceeded and the connection ends. The accepting
	// end uses the smaller of the dialer's value and its own. 0 means 6; a
	// negative value means no retries. The maximum is 7, which Soft-RoCE treats
	// as forever.
	RetryCount int
	// PeerRNRRetryCount is how often the peer resends a message for which this
	// end has posted no receive, before the peer's transfer fails with an error
	// matching ibverbs.WCRNRRetryExceeded. The peer's setting applies to this
	// end's own sends. 0 means 7, which retries forever; a negative value means
	// no retries.
	PeerRNRRetryCount int
	// MinRNRTimer is how long the peer waits each time before it resends a
	// message for which this end had no receive. The value is rounded up to one
	// of 32 steps between 10 us and 655.36 ms; 0 means 0.64 ms. iWARP ignores
	// it.
	MinRNRTimer time.Duration
}

// Queues is a source of a connection's queues, for Config.Queues: a *Pool,
// *PolledQueues, a *PreparedQP or a *VerbsQP. Other packages cannot implement
// it.
type Queues interface {
	// check returns an error if a connection with the config cannot use the
	// queues. Errors name id, the connection's ID, unless it is nil.
	check(config *Config, id *ID) error
	// create creates the connection's queue pair and all that the pair needs.
	create(c *Conn) error
}

const (
	defaultQueue     = 16
	defaultReadDepth = 16
	defaultHandshake = 30 * time.Second
	// defaultAcceptHandshake is shorter than defaultHandshake, because the
	// accepting end holds resources for a peer whose identity is not proven
	// yet. Linux repeats its acceptance every 4 s, so one or two lost
	// packets do no harm.
	defaultAcceptHandshake = 10 * time.Second
	defaultKeepAlive       = 30 * time.Second
	defaultLinger          = 30 * time.Second
	defaultRetry           = 6 // not 7, with which Soft-RoCE never notices that a peer has vanished
	defaultRNRRetry        = ibverbs.RNRRetryForever
	defaultRNRTimer        = 640 * time.Microsecond
	maxRetry               = 7
	maxBacklog             = 1 << 16
	maxReadDepth           = 254 // largest number for C, where 255 has a special meaning
	none                   = -1  // stands for no retries or no reads, since 0 selects the default
)

// withDefaults returns a copy with zero values replaced by their defaults.
func (c *Config) withDefaults() Config {
	var out Config
	if c != nil {
		out = *c
	}
	out.SendQueue = cmp.Or(out.SendQueue, defaultQueue)
	out.RecvQueue = cmp.Or(out.RecvQueue, defaultQueue)
	out.Segments = cmp.Or(out.Segments, 1)
	out.ReadDepth = orDefault(out.ReadDepth, defaultReadDepth, maxReadDepth)
	out.HandshakeTimeout = cmp.Or(out.HandshakeTimeout, defaultHandshake)
	out.KeepAlive = cmp.Or(out.KeepAlive, defaultKeepAlive)
	out.Linger = cmp.Or(out.Linger, defaultLinger)
	out.RetryCount = orDefault(out.RetryCount, defaultRetry, maxRetry)
	out.PeerRNRRetryCount = orDefault(out.PeerRNRRetryCount, defaultRNRRetry, maxRetry)
	out.MinRNRTimer = cmp.Or(out.MinRNRTimer, defaultRNRTimer)
	return out
}

// Check returns an error if the config has a value with which every Dial and
// every Accept fails, whatever the device. The error names the field. A server
// can call Check before it listens. The config may be nil.
func (c *Config) Check() error {
	complete := c.withDefaults()
	return complete.check(nil)
}

// longestRNRTimer is the longest delay that devices support for
// Config.MinRNRTimer.
const longestRNRTimer = 655360 * time.Microsecond

// check does what Check does, for a config whose defaults are filled in.
// Errors name id, the connection's ID, unless it is nil.
func (c *Config) check(id *ID) error {
	if c.AckTimeout < 0 || c.AckTimeout > maxAckTimeout {
		return cerr.Refuse("rdma_set_option", id.name(), "Config.AckTimeout is %v, not from 0 to %v", c.AckTimeout, time.Duration(maxAckTimeout))
	}
	if c.MinRNRTimer < 0 || c.MinRNRTimer > longestRNRTimer {
		return cerr.Refuse(opCreateQP, id.name(), "Config.MinRNRTimer is %v, not from 0 to 655.36ms", c.MinRNRTimer)
	}
	if c.MessageSize < 0 || int64(c.MessageSize) > math.MaxUint32 {
		return cerr.Refuse("Conn.NewReceiver", id.name(), "Config.MessageSize is %d, not from 0 to %d", c.MessageSize, uint32(math.MaxUint32))
	}
	return c.queues().check(c, id)
}

// queues returns the source of the connection's queues.
func (c *Config) queues() Queues {
	if c.Queues == nil {
		return ownQueues{}
	}
	return c.Queues
}

func (c *Config) checkSizes(id *ID) error { return c.sizes().check(id) }

func (c *Config) sizes() queueSizes {
	return queueSizes{
		config: "Config",
		send:   c.SendQueue, recv: c.RecvQueue,
		sendSegments: c.Segments, recvSegments: c.Segments, inline: c.MaxInline, spin: c.Spin,
	}
}
