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

// path is the way from the device and the connection manager to the network.
// Captures record each packet and message on it, and faults and the hostile
// mode may drop, change, delay or duplicate it.
type path struct {
	n        *Node
	packets  engine.PacketPool
	faults   func(p *wire.Packet) Fault // function that decides the faults; nil: there are none
	hostile  *hostility                 // the hostile mode; nil: it is off
	captures []*capture
	delayed  queue  // parcels that faults hold back
	serial   uint64 // number of the parcel that was delayed last

	// inbox has the packets that the device has sent to itself, until
	// loopBack is called.
	inbox  []*wire.Packet
	copies []byte // payloads of the unreliable packets in inbox
}

// parcel is a packet of the device, or a message of the connection manager. For
// a message, mad is set, and packet is the packet that would carry the message.
type parcel struct {
	packet *wire.Packet
	mad    *manager.MAD
}

// send sends a packet of the device.
func (w *path) send(p *wire.Packet) { w.dispatch(parcel{packet: p}) }

// sendMAD sends a message of the connection manager. If the port is down, the
// message is dropped.
func (w *path) sendMAD(m manager.MAD) {
	switch {
	case !w.n.devices.connected(m.Src):
	case w.isClear():
		w.n.network.carryMAD(m)
	default:
		w.dispatch(parcel{w.packetOf(m), &m})
	}
}

// isClear reports whether there are no captures and no faults, and the hostile
// mode is off.
func (w *path) isClear() bool { return w.faults == nil && w.hostile == nil && len(w.captures) == 0 }

// dispatch captures a parcel, and delivers it as the faults and the hostile
// mode permit.
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
		f = w.hostile.add(w.n.devices.findQP, p.packet, now, f)
	}
	if f == (Fault{}) {
		w.deliver(p)
		return
	}
	w.applyFault(p, f, now)
}

// decide returns what the program's fault function decides for a packet.
func decide(faults func(p *wire.Packet) Fault, p *wire.Packet) (f Fault) {
	within(func() { f = faults(p) })
	return f
}

// within calls f, a function of the program, in a new goroutine, and waits
// until that ends. f may call runtime.Goexit, as testing.T.FailNow does.
func within(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}

// deliver passes a parcel to the network.
func (w *path) deliver(p parcel) {
	if p.mad != nil {
		w.packets.Put(p.packet)
		w.n.network.carryMAD(*p.mad)
		return
	}
	w.n.network.carry(p.packet)
}

// packetOf returns the packet that carries a message of the connection manager
// between machines.
func (w *path) packetOf(m manager.MAD) *wire.Packet {
	p := w.packets.Get()
	p.SGID, p.DGID = wire.GIDOf(m.Src), wire.GIDOf(m.Dst)
	p.HopLimit = 64
	p.Opcode, p.PKey, p.DestQP, p.SrcQP, p.QKey = wire.UDSendOnly, wire.DefaultPKey, wire.GSI, wire.GSI, wire.GSIQKey
	p.Payload = append(p.Payload, m.Data)
	return p
}

// keep puts a packet that a device sends to itself, or to another device of the
// node, into the inbox. An
// unreliable send completes before its packet leaves the inbox, and the program
// may change the memory after that. So keep copies the payload of an unreliable
// packet. If the program has unmapped the memory, keep drops the packet.
func (w *path) keep(p *wire.Packet) {
	if size := p.PayloadLen(); size > 0 && !p.Opcode.Transport().Reliable() {
		w.copies = slices.Grow(w.copies, size) // a new array may be allocated; earlier copies stay valid in the old one
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

// loopBack lets the devices receive the packets that they sent to themselves
// and to each other. It reports whether there were any.
func (w *path) loopBack() bool {
	if len(w.inbox) == 0 {
		return false
	}
	for i := 0; i < len(w.inbox); i++ { // answers are appended
		w.n.devices.receive(w.inbox[i])
	}
	clear(w.inbox)
	w.inbox, w.copies = w.inbox[:0], w.copies[:0]
	return true
}

// marshal writes a packet to b, which has the packet's size. It returns false
// if the program has unmapped the memory of the payload.
func marshal(b []byte, p *wire.Packet) bool {
	headers, size := p.Opcode.HeaderLen(), p.PayloadLen()
	p.AppendHeaders(b[:0])
	clear(b[headers+size:]) // padding and ICRC
	return engine.Copy(b[headers:][:size], p.Payload)
}
