// SPDX-License-Identifier: Apache-2.0

//go:build linux

package node

import (
	"slices"
	"time"

	manager "github.com/verbena-go/verbena/softroce/internal/cm"
	"github.com/verbena-go/verbena/softroce/internal/engine"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// path is the way of what the node sends. Each packet of the device, and each
// message of the connection manager, takes it: captures see the packet, faults
// and the hostile mode decide what happens to it, and the network carries what
// is left.
type path struct {
	n        *Node
	packets  engine.PacketPool
	faults   func(p *wire.Packet) Fault // nil: packets arrive
	hostile  *hostility                 // nil: the device is friendly
	captures []*capture
	delayed  queue
	serial   uint64 // of the parcel that was delayed last

	// What the device sends to itself.
	inbox  []*wire.Packet
	copies []byte // the payloads of the unreliable packets in inbox
}

// parcel is what takes the path: a packet, or a message of the connection
// manager and the packet that it would be.
type parcel struct {
	packet *wire.Packet
	mad    *manager.MAD
}

// send takes a packet of the device.
func (w *path) send(p *wire.Packet) { w.dispatch(parcel{packet: p}) }

// sendMAD takes a message of the connection manager.
func (w *path) sendMAD(m manager.MAD) {
	switch {
	case !w.n.devices.connected():
	case w.isClear():
		w.n.network.carryMAD(m)
	default:
		w.dispatch(parcel{w.packetOf(m), &m})
	}
}

// isClear reports whether parcels are not seen on the path, and nothing happens
// to them.
func (w *path) isClear() bool { return w.faults == nil && w.hostile == nil && len(w.captures) == 0 }

// dispatch captures a parcel, and sends what the faults leave of it.
func (w *path) dispatch(p parcel) {
	if w.isClear() {
		w.deliver(p)
		return
	}
	for _, c := range w.captures {
		c.add(p.packet, time.Now())
	}
	now, f := w.n.Now(), Fault{}
	if w.faults != nil {
		f = decide(w.faults, p.packet)
	}
	if w.hostile != nil && !f.Drop {
		f = w.hostile.add(w.n.devices.current, p.packet, now, f)
	}
	if f == (Fault{}) {
		w.deliver(p)
		return
	}
	w.suffer(p, f, now)
}

// decide asks a program's fault function.
func decide(faults func(p *wire.Packet) Fault, p *wire.Packet) (f Fault) {
	within(func() { f = faults(p) })
	return f
}

// within calls a function of the program in a goroutine of its own, which the
// function may end, as testing.T.FailNow does.
func within(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}

// deliver gives a parcel to the network.
func (w *path) deliver(p parcel) {
	if p.mad != nil {
		w.packets.Put(p.packet)
		w.n.network.carryMAD(*p.mad)
		return
	}
	w.n.network.carry(p.packet)
}

// packetOf returns the packet that carries a message of the connection manager.
func (w *path) packetOf(m manager.MAD) *wire.Packet {
	p := w.packets.Get()
	p.SGID, p.DGID = wire.GIDOf(m.Src), wire.GIDOf(m.Dst)
	p.HopLimit = 64
	p.Opcode, p.PKey, p.DestQP, p.SrcQP, p.QKey = wire.UDSendOnly, wire.DefaultPKey, wire.GSI, wire.GSI, wire.GSIQKey
	p.Payload = append(p.Payload, m.Data)
	return p
}

// keep puts a packet of the device to itself into the inbox. An unreliable send
// completes before its packet leaves the inbox, and its memory is the program's
// again then. So the packet gets a copy, unless the program has unmapped what
// it sends.
func (w *path) keep(p *wire.Packet) {
	if size := p.PayloadLen(); size > 0 && p.Opcode.Transport() != wire.RC {
		w.copies = slices.Grow(w.copies, size) // the copies before it stay where they are
		c := w.copies[len(w.copies):][:size]
		if !engine.Copy(c, p.Payload) {
			w.packets.Put(p)
			return
		}
		w.copies = w.copies[:len(w.copies)+size]
		clear(p.Payload)
		p.Payload = append(p.Payload[:0], c)
	}
	w.inbox = append(w.inbox, p)
}

// loopBack gives the device what it has sent to itself, and reports whether
// there was something.
func (w *path) loopBack() bool {
	if len(w.inbox) == 0 {
		return false
	}
	for i := 0; i < len(w.inbox); i++ { // answers are appended
		w.n.devices.current.Receive(w.inbox[i])
	}
	clear(w.inbox)
	w.inbox, w.copies = w.inbox[:0], w.copies[:0]
	return true
}

// marshal writes a packet to b, which has its size. It returns false if the
// program has unmapped what it sends.
func marshal(b []byte, p *wire.Packet) bool {
	headers, size := p.Opcode.HeaderLen(), p.PayloadLen()
	p.AppendHeaders(b[:0])
	clear(b[headers+size:]) // padding and ICRC
	return engine.Copy(b[headers:][:size], p.Payload)
}
