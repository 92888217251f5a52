package rdmacm

import (
	"cmp"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
)

// Config says how a connection is made. The zero value is usable, and so is a
// nil *Config.
type Config struct {
	// SendQueue and RecvQueue are how many requests may be under way in each
	// direction; 0 stands for 16.
	SendQueue, RecvQueue int
	// Segments is how many pieces of memory one request may have; 0 stands
	// for 1.
	Segments int
	// MaxInline is up to how many bytes a Send or a Write is sent inline: C copies
	// the bytes when it posts the request, and the device need not fetch them.
	// Such bytes may also come from ibverbs.InlineBytes. 0 is none; each device
	// has its limit.
	MaxInline int
	// PrivateData goes to the peer with the request, up to 56 bytes on
	// InfiniBand and RoCE, or with the acceptance, up to 196. iWARP carries up
	// to 255 with either. The peer may see zeros after it.
	PrivateData []byte
	// PD is the protection domain to use, which must be of the connection's
	// device as Devices has it. nil stands for one of the connection's own,
	// which is closed with it.
	PD *ibverbs.PD
	// Setup, if not nil, runs when the queue pair exists and the peer cannot
	// send yet: the time to register memory and to post receives. An error
	// ends the attempt. What the attempt leaves open, because Setup has
	// registered memory by other means than the Conn's Alloc, is for Setup's
	// caller to close: the memory, then the Conn.
	Setup func(*Conn) error
	// ReadDepth is how many RDMA reads and atomics may be under way in each
	// direction; 0 stands for 16, or fewer if the device or the peer allows
	// fewer; negative is none.
	ReadDepth int
	// HandshakeTimeout is how long the peer may take to answer the request, or
	// the acceptance, beside what the context allows; 0 stands for 30 s;
	// negative leaves it to the context, and to the system, which gives up after
	// a minute or so. A message that is lost is sent again after some 4 s.
	HandshakeTimeout time.Duration
	// KeepAlive is how often an end that sends nothing asks whether the peer's
	// device is still there; 0 stands for 30 s; negative is never. On InfiniBand
	// and RoCE that costs a packet there and back, and nothing of the peer's
	// program. Without an answer the connection is over: with an
	// *ibverbs.WCError that is ibverbs.WCRetryExceeded when RetryCount is used
	// up, or with an *EventError that is syscall.ETIMEDOUT after another
	// KeepAlive and a second, whichever comes first. While transfers are under
	// way, RetryCount bounds those instead.
	//
	// It sends an RDMA write of no bytes, which rdma_cm permits at every peer. If
	// the peer's program has forbidden writes on its queue pair, this breaks the
	// connection: set KeepAlive negative.
	KeepAlive time.Duration
	// Linger is how long the system may go on to tell the peer of the end after
	// Close has returned, if the peer does not answer; 0 stands for 30 s.
	// Negative tells it once. The end's local port is in use until then.
	Linger time.Duration
	// AckTimeout is how long this end waits for the peer's device to
	// acknowledge a message before it sends it again; 0 leaves that to the
	// system. See ID.SetAckTimeout. The dialer's rules the accepting end too,
	// unless that one has its own.
	AckTimeout time.Duration
	// RetryCount is how often a message is sent again that nobody
	// acknowledges, before the transfer fails with ibverbs.WCRetryExceeded and
	// the connection is over. The accepting end takes the smaller one of the
	// dialer's and its own. 0 stands for 6; negative is never; 7 is the most,
	// and with Soft-RoCE means for ever.
	RetryCount int
	// PeerRNRRetryCount is how often the peer sends a message again for which
	// this end has posted no receive, before the peer's transfer fails with
	// ibverbs.WCRNRRetryExceeded. How often this end does so, the peer says.
	// 0 stands for 7, which means for ever; negative is never.
	PeerRNRRetryCount int
	// MinRNRTimer is how long the peer waits each time before it sends again a
	// message for which this end had no receive, rounded up to one of 32 steps
	// from 10 us to 655.36 ms; 0 stands for 0.64 ms. iWARP has no such time.
	MinRNRTimer time.Duration
	// ManualQP makes the queue pair with verbs instead of with librdmacm, and
	// so without the enhancements that librdmacm agrees on with the peer.
	ManualQP bool
}

const (
	defaultQueue     = 16
	defaultReadDepth = 16
	defaultHandshake = 30 * time.Second
	defaultKeepAlive = 30 * time.Second
	defaultLinger    = 30 * time.Second
	defaultRetry     = 6 // with 7 Soft-RoCE would never notice that a peer has vanished
	defaultRNRRetry  = ibverbs.RNRRetryForever
	defaultRNRTimer  = 640 * time.Microsecond
	maxRetry         = 7
	defaultBacklog   = 128
	maxBacklog       = 1 << 16
	maxReadDepth     = 254 // 255 has a meaning of its own in C
	none             = -1  // of a count whose zero value is the default
)

// withDefaults returns a copy in which no zero value is left to interpret.
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

func (c *Config) sizes() queueSizes {
	return queueSizes{
		config: "Config",
		send:   c.SendQueue, recv: c.RecvQueue,
		sendSegments: c.Segments, recvSegments: c.Segments, inline: c.MaxInline,
	}
}
