// SPDX-License-Identifier: Apache-2.0

package rsocket

import (
	"encoding/binary"
	"math"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/sealed"
	"github.com/verbena-go/verbena/internal/turns"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rsocket/internal/protocol"
)

// memory is the registered memory of a connection. It is one memory region.
// With a pool, the send buffer is not part of it.
type memory struct {
	region     *ibverbs.MR
	layout     layout
	bytes      []byte // memory of the region
	lent       bool   // whether the program has got parts of the receive buffer; guarded by the lock of Conn.reader
	slab       *slab  // send buffer from the pool, while it holds unsent data; otherwise nil
	sendBuffer ibverbs.Segment
	control    ibverbs.Segment // memory of the entries that control messages write to the peer's target table
	table      []byte          // this end's table, to which the peer writes
	received   []byte          // receive buffer, to which the peer writes
	sending    []byte          // bytes of sendBuffer
}

// controlLen is the length of the memory of control messages' entries.
const controlLen = protocol.ControlSlots * protocol.EntryLen

// heads returns the length of the table, with which the region begins, and the
// offset of the receive buffer. The entries of control messages and a word are
// in between.
func (c *Config) heads() (tableLen, headLen int) {
	const line = 64 // of the processor's cache, usually
	tableLen = protocol.TableLen(c.ioMaps)
	return tableLen, (tableLen + controlLen + wordLen + line - 1) / line * line
}

// rdmaConfig returns the configuration of the rdmacm.Conn.
func (c *Conn) rdmaConfig() *rdmacm.Config {
	qp := &rdmacm.PreparedQP{Prepare: c.prepare}
	config := rdmacm.Config{
		Queues: qp, Ended: c.ended, ReadDepth: -1, HandshakeTimeout: c.config.HandshakeTimeout, AckTimeout: c.config.AckTimeout,
		Logger: c.config.Logger,
	}
	if c.config.Pool != nil {
		qp.Flushed = c.takeLast
	}
	return &config
}

// takeSendBuffer takes a send buffer from the pool, if there is a pool and the
// connection has no buffer. The caller holds c.mu.
func (c *Conn) takeSendBuffer() (err error) {
	if c.part == nil || c.slab != nil {
		return nil
	}
	if c.slab, err = c.part.memory.take(c.config.WriteBuffer); err != nil {
		c.filling = false
		return err
	}
	c.sending, c.sendBuffer = c.slab.bytes, c.slab.region.All()
	return nil
}

// spareReceives is the number of receives for control messages, which need no
// credits.
const spareReceives = 16

// prepare creates the queue pair and the memory, before the handshake.
func (c *Conn) prepare(rdma *rdmacm.Conn) (*ibverbs.QP, error) {
	device := rdma.PD().Device()
	attr, err := device.QueryDevice()
	if err != nil {
		return nil, err
	}
	defer turns.Make()()
	c.most = min(len(c.segments), attr.MaxSGE)
	most := min(attr.MaxQPWR, math.MaxUint16-1, attr.MaxCQE/2) // MaxCQE/2, since both queues share a completion queue
	c.config.SendQueue = min(max(c.config.SendQueue, minQueue), most)
	c.config.RecvQueue = min(max(c.config.RecvQueue, minQueue), most-spareReceives)
	if err := c.createQP(rdma); err != nil {
		return nil, err
	}
	if err := c.allocate(rdma); err != nil {
		return c.qp, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.part == nil {
		c.receives.missing = c.config.RecvQueue + spareReceives
	} else {
		c.part.add(c)
	}
	c.ready = true
	if c.postReceives(); c.err != nil {
		return c.qp, c.err
	}
	return c.qp, rdma.SetPrivateData(c.state.Hello().Marshal())
}

// isIWARP reports whether the device uses iWARP. Like C, rsocket uses no
// immediate data on iWARP, even if the device has it: both ends must agree.
func isIWARP(device *ibverbs.Device) bool {
	return device.Raw().Device.TransportType == libibverbs.IBV_TRANSPORT_IWARP
}

// createQP creates the queue pair and its completion queue, or joins the pool.
func (c *Conn) createQP(rdma *rdmacm.Conn) (err error) {
	device, pd := rdma.PD().Device(), rdma.PD()
	receives := c.config.RecvQueue + spareReceives
	config := ibverbs.QPConfig{SendQueue: c.config.SendQueue, SendSegments: c.most, MaxInline: max(c.config.MaxInline, 0)}
	least := 0 // number of inline bytes without which there is no connection
	if c.messages = isIWARP(device); c.messages {
		least = wordLen
		config.MaxInline = max(config.MaxInline, least)
	}
	if c.config.Pool != nil {
		if c.part, err = c.config.Pool.join(device, &c.config); err != nil {
			return err
		}
		c.pump, pd, config.SRQ = &c.part.pump, c.part.pd, c.part.srq
	} else {
		c.pump = new(pump)
		c.pump.init(c.handle, &c.receives)
		c.pump.woken = c.changed
		if err := c.pump.create(device, c.config.SendQueue+receives, c.config.Spin); err != nil {
			return err
		}
		var words *ibverbs.MR
		if c.messages {
			if words, err = rdma.Alloc(receives*wordLen, ibverbs.AccessLocalWrite); err != nil {
				return err
			}
		}
		c.receives.init(words)
		config.RecvQueue = receives
	}
	config.SendCQ, config.RecvCQ = c.pump.cq, c.pump.cq
	if c.send, err = ibverbs.NewSendBatch(2, len(c.segments)); err != nil {
		return err
	}
	c.qp, err = rdma.ID().CreateQP(pd, config)
	if err != nil && config.MaxInline > least {
		config.MaxInline = least
		c.qp, err = rdma.ID().CreateQP(pd, config)
	}
	if err != nil {
		return err
	}
	c.receives.queue = c.qp
	c.maxInline = min(config.MaxInline, c.qp.Cap().MaxInline)
	return nil
}

// bigEndian is true if this processor is big-endian.
var bigEndian = binary.NativeEndian.Uint16([]byte{0, 1}) == 1

// allocate registers the memory of the connection, and creates its protocol
// state.
func (c *Conn) allocate(rdma *rdmacm.Conn) (err error) {
	r, s := c.config.ReadBuffer, c.config.WriteBuffer
	tableLen, headLen := c.config.heads()
	const access = ibverbs.AccessLocalWrite | ibverbs.AccessRemoteWrite
	c.layout = layout{headLen, r, s}
	if c.part == nil {
		c.region, err = sealed.Open(rdma.Internals()).Alloc(c.layout.size(), access, c.layout.take)
	} else {
		c.layout.send = 0
		c.region, err = c.part.pd.Register(c.layout.take(c.layout.size()), access)
	}
	if err != nil {
		return err
	}
	c.bytes = c.region.Bytes()
	all, remote := c.bytes, c.region.Remote()
	c.table, c.received = all[:tableLen:tableLen], all[headLen:][:r:r]
	c.control, c.word = c.region.Sub(tableLen, controlLen), c.region.Sub(tableLen+controlLen, wordLen)
	if c.part == nil {
		c.sending, c.sendBuffer = all[headLen+r:], c.region.Sub(headLen+r, s)
	}
	c.state = protocol.New(protocol.Config{
		BigEndian: bigEndian, SendQueue: c.config.SendQueue, Credits: uint16(c.config.RecvQueue), SendBuffer: s,
		Whole:    c.most == 1,
		Prompt:   c.part != nil, // since other connections of the pool wait for the memory and the places in the queue
		IOMaps:   c.config.ioMaps,
		Messages: c.messages, Answers: c.messages && c.accepted,
		Table:  protocol.Region{Addr: remote.Addr, Key: remote.RKey},
		Buffer: protocol.Region{Addr: remote.Addr + uint64(headLen), Key: remote.RKey, Length: uint32(r)},
	})
	return nil
}
