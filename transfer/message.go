// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/verbena-go/verbena/ibverbs"
)

// The private data of a connection request has a fixed form. In control
// connections, the rest is zero.
//
//	0   4 bytes   magic
//	4   1 byte    version
//	5   1 byte    kind: control or data
//	6   1 byte    index of the dialer's device
//	7   1 byte    generation of the dialer's device
//	8   4 bytes   number of the path
//	12  16 bytes  token of the session
//
// The acceptance of a data connection has the same form, with the index and the
// generation of the acceptor's device. A device that is removed and inserted
// again has another generation; a key is used only on connections to the one
// that it belongs to, since the next one may give it to other memory.
const (
	magic        = "VrbT"
	version      = 1
	kindControl  = 1
	kindData     = 2
	greetingLen  = 28
	tokenLen     = 16
	messageLen   = 4096 // longest message on a control connection
	frameHeader  = 16   // the number of the first item, and of the items received
	itemHeader   = 4    // type, 0, length
	maxBody      = messageLen - frameHeader - itemHeader
	maxName      = 255
	maxDevices   = 16
	maxAddresses = 64
)

// Limits of what the program sends.
const (
	// MaxNotification is the length of the longest notification in bytes.
	MaxNotification = 2048
	// MaxCredentials is the length of the longest credentials, and of the
	// longest answer to them, in bytes.
	MaxCredentials = 2048
)

type token [tokenLen]byte

// greeting is the private data of a connection request or its acceptance.
type greeting struct {
	kind   uint8
	device uint8
	// generation is counted modulo 256: the offers of one generation cannot
	// be as late as the connections of the 256th after it.
	generation uint8
	path       uint32
	token      token
}

func (g greeting) encode() []byte {
	b := make([]byte, greetingLen)
	copy(b, magic)
	b[4], b[5], b[6], b[7] = version, g.kind, g.device, g.generation
	binary.BigEndian.PutUint32(b[8:], g.path)
	copy(b[12:], g.token[:])
	return b
}

func decodeGreeting(b []byte) (g greeting, err error) {
	switch {
	case len(b) < greetingLen || string(b[:4]) != magic:
		return g, protocolError("the private data is not that of package transfer")
	case b[4] != version:
		return g, protocolError("version %d of the protocol, where this end has version %d", b[4], version)
	case b[5] != kindControl && b[5] != kindData:
		return g, protocolError("connection of kind %d", b[5])
	case b[6] >= maxDevices:
		return g, protocolError("device %d, of at most %d", b[6], maxDevices)
	}
	g = greeting{kind: b[5], device: b[6], generation: b[7], path: binary.BigEndian.Uint32(b[8:])}
	copy(g.token[:], b[12:])
	return g, nil
}

// The types of items. The first item on a control connection, which is alone
// in its frame, is a hello or a resume, and its answer a welcome, a resumed or
// a refusal. All others are parts of the session's stream.
const (
	itemHello     = 1 + iota // dialer: incarnation, mailbox, credentials
	itemWelcome              // acceptor: token, incarnation, mailbox, addresses, answer
	itemResume               // dialer: token, items received
	itemResumed              // acceptor: items received
	itemRefusal              // acceptor: reason, text
	itemOffer                // a region that the peer may access
	itemWithdraw             // a region that the peer may access no longer
	itemWithdrawn            // the peer has no transfer to or from the region any more
	itemFence                // a path that the sender has destroyed
	itemFenced               // the path is destroyed at both ends; number of notifications that have arrived
	itemNotify               // a message of the program
	itemCredit               // how many notifications the program has taken
	itemEnd                  // the sender closes the session; number of notifications that have arrived
)

// Reasons of refusals.
const (
	refusedSession     = 1 // no such session
	refusedCredentials = 2
	refusedFull        = 3
)

// encoder appends fields in network byte order.
type encoder []byte

func (e *encoder) u8(v uint8)   { *e = append(*e, v) }
func (e *encoder) u16(v uint16) { *e = binary.BigEndian.AppendUint16(*e, v) }
func (e *encoder) u32(v uint32) { *e = binary.BigEndian.AppendUint32(*e, v) }
func (e *encoder) u64(v uint64) { *e = binary.BigEndian.AppendUint64(*e, v) }
func (e *encoder) raw(b []byte) { *e = append(*e, b...) }

// item begins an item. The function that it returns must be called when the
// body has been appended.
func (e *encoder) item(kind uint8) (end func()) {
	start := len(*e)
	e.u8(kind)
	e.u8(0)
	e.u16(0)
	return func() {
		binary.BigEndian.PutUint16((*e)[start+2:], uint16(len(*e)-start-itemHeader))
	}
}

// decoder takes fields from the front of a body. After the first field that is
// missing, all are zero, and bad is set.
type decoder struct {
	rest []byte
	bad  bool
}

func (d *decoder) raw(n int) []byte {
	if n > len(d.rest) {
		d.rest, d.bad = nil, true
		return nil
	}
	b := d.rest[:n:n]
	d.rest = d.rest[n:]
	return b
}

func (d *decoder) u8() uint8 {
	if b := d.raw(1); b != nil {
		return b[0]
	}
	return 0
}

func (d *decoder) u16() uint16 {
	if b := d.raw(2); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

func (d *decoder) u32() uint32 {
	if b := d.raw(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (d *decoder) u64() uint64 {
	if b := d.raw(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

// end reports whether the fields were exactly the body.
func (d *decoder) end() bool { return !d.bad && len(d.rest) == 0 }

// item is an item of a frame.
type item struct {
	kind uint8
	body []byte
}

// frame is a message on a control connection.
type frame struct {
	first    uint64 // number of the first item in the sender's stream
	received uint64 // number of items of the other stream that the sender has received
	items    []byte
}

func decodeFrame(b []byte) (frame, error) {
	if len(b) < frameHeader {
		return frame{}, protocolError("frame of %d bytes", len(b))
	}
	return frame{binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:]), b[frameHeader:]}, nil
}

// next takes the next item from the frame. ok is false at the end.
func (f *frame) next() (it item, ok bool, err error) {
	if len(f.items) == 0 {
		return item{}, false, nil
	}
	d := decoder{rest: f.items}
	it.kind = d.u8()
	d.u8()
	it.body = d.raw(int(d.u16()))
	if d.bad {
		return item{}, false, protocolError("item %d is not whole", it.kind)
	}
	f.items = d.rest
	return it, true, nil
}

// hello begins a session.
type hello struct {
	incarnation uint64
	mailbox     uint32
	credentials []byte
}

func (h hello) append(e *encoder) {
	end := e.item(itemHello)
	e.u64(h.incarnation)
	e.u32(h.mailbox)
	e.raw(h.credentials)
	end()
}

func decodeHello(b []byte) (hello, error) {
	d := decoder{rest: b}
	h := hello{d.u64(), d.u32(), d.rest}
	if d.bad || h.incarnation == 0 || h.mailbox == 0 || len(h.credentials) > MaxCredentials {
		return hello{}, protocolError("hello of %d bytes", len(b))
	}
	return h, nil
}

// address is where a device of the acceptor listens.
type address struct {
	device uint8
	at     netip.AddrPort
}

// welcome answers a hello.
type welcome struct {
	token       token
	incarnation uint64
	mailbox     uint32
	addresses   []address
	answer      []byte
}

func (w welcome) append(e *encoder) {
	end := e.item(itemWelcome)
	e.raw(w.token[:])
	e.u64(w.incarnation)
	e.u32(w.mailbox)
	e.u8(uint8(len(w.addresses)))
	for _, a := range w.addresses {
		at := a.at.Addr().As16()
		e.u8(a.device)
		e.raw(at[:])
		e.u16(a.at.Port())
	}
	e.raw(w.answer)
	end()
}

func decodeWelcome(b []byte) (w welcome, err error) {
	d := decoder{rest: b}
	copy(w.token[:], d.raw(tokenLen))
	w.incarnation, w.mailbox = d.u64(), d.u32()
	n := int(d.u8())
	for range n {
		device, at, port := d.u8(), d.raw(16), d.u16()
		if d.bad || device >= maxDevices {
			return welcome{}, protocolError("welcome with a wrong address")
		}
		ip, _ := netip.AddrFromSlice(at)
		w.addresses = append(w.addresses, address{device, netip.AddrPortFrom(ip.Unmap(), port)})
	}
	w.answer = d.rest
	if d.bad || w.incarnation == 0 || w.mailbox == 0 || n > maxAddresses || len(w.answer) > MaxCredentials {
		return welcome{}, protocolError("welcome of %d bytes", len(b))
	}
	return w, nil
}

// refusal answers a hello or a resume.
type refusal struct {
	reason uint8
	text   string
}

func (r refusal) append(e *encoder) {
	end := e.item(itemRefusal)
	e.u8(r.reason)
	e.raw([]byte(r.text[:min(len(r.text), MaxCredentials)]))
	end()
}

// offer tells the peer of a region, or of its new keys.
type offer struct {
	id, length uint64
	access     Access
	name       string
	keys       [maxDevices]key // by the index of the offering end's device; without a key, the device lacks the region
}

// key is how requests to a device name a region.
type key struct {
	there      bool
	generation uint8 // of the device
	addr       uint64
	rkey       uint32
}

// remote returns n bytes of the region at an offset.
func (k key) remote(offset, n uint64) ibverbs.RemoteBuffer {
	return ibverbs.RemoteBuffer{Addr: k.addr + offset, RKey: k.rkey, Len: n}
}

func (o offer) append(e *encoder) {
	end := e.item(itemOffer)
	e.u64(o.id)
	e.u64(o.length)
	e.u8(uint8(o.access))
	e.u8(uint8(len(o.name)))
	e.raw([]byte(o.name))
	for i, k := range o.keys {
		if k.there {
			e.u8(uint8(i))
			e.u8(k.generation)
			e.u64(k.addr)
			e.u32(k.rkey)
		}
	}
	end()
}

func decodeOffer(b []byte) (o offer, err error) {
	d := decoder{rest: b}
	o.id, o.length, o.access = d.u64(), d.u64(), Access(d.u8())
	o.name = string(d.raw(int(d.u8())))
	for !d.bad && len(d.rest) > 0 {
		i, generation, addr, rkey := d.u8(), d.u8(), d.u64(), d.u32()
		switch {
		case d.bad || i >= maxDevices || o.keys[i].there:
			return offer{}, protocolError("offer of region %q with wrong keys", o.name)
		case addr+o.length < addr:
			return offer{}, protocolError("offer of region %q, of %d bytes at %#x", o.name, o.length, addr)
		}
		o.keys[i] = key{true, generation, addr, rkey}
	}
	switch {
	case d.bad:
		return offer{}, protocolError("offer of %d bytes", len(b))
	case o.name == "" || o.length == 0 || o.length > maxLength || o.access&^(ReadAccess|WriteAccess) != 0:
		return offer{}, protocolError("offer of region %q, of %d bytes", o.name, o.length)
	}
	return o, nil
}

// maxLength is the size of the largest region, which leaves room to add.
const maxLength = 1 << 62

// number is the body of items that have one number.
func appendNumber(e *encoder, kind uint8, n uint64) {
	end := e.item(kind)
	e.u64(n)
	end()
}

func decodeNumber(it item) (uint64, error) {
	d := decoder{rest: it.body}
	n := d.u64()
	if !d.end() {
		return 0, protocolError("item %d of %d bytes", it.kind, len(it.body))
	}
	return n, nil
}

func appendFenced(e *encoder, path uint32, arrived uint64) {
	end := e.item(itemFenced)
	e.u32(path)
	e.u64(arrived)
	end()
}

func decodeFenced(it item) (path uint32, arrived uint64, err error) {
	d := decoder{rest: it.body}
	path, arrived = d.u32(), d.u64()
	if !d.end() {
		return 0, 0, protocolError("item %d of %d bytes", it.kind, len(it.body))
	}
	return path, arrived, nil
}

func appendResume(e *encoder, t token, received uint64) {
	end := e.item(itemResume)
	e.raw(t[:])
	e.u64(received)
	end()
}

func decodeResume(b []byte) (t token, received uint64, err error) {
	d := decoder{rest: b}
	copy(t[:], d.raw(tokenLen))
	received = d.u64()
	if !d.end() {
		return token{}, 0, protocolError("resume of %d bytes", len(b))
	}
	return t, received, nil
}

func protocolError(format string, args ...any) error {
	return fmt.Errorf("transfer: the peer broke the protocol: "+format+": %w", append(args, errProtocol)...)
}
