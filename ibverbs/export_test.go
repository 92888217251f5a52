// SPDX-License-Identifier: Apache-2.0

package ibverbs

import "github.com/verbena-go/verbena/generated/libibverbs"

// Waiting reports whether a goroutine has the queue's turn to wait.
func (cq *CQ) Waiting() bool { return len(cq.turn) > 0 }

// LetNap lets waits nap, on a machine of any size, and returns a function that
// undoes it.
func LetNap() (restore func()) {
	before := napPlaces.n
	napPlaces.n = 8
	return func() { napPlaces.n = before }
}

// WantNaps makes the next wait nap.
func (cq *CQ) WantNaps() { cq.policy.naps.score.Store(bestScore) }

// Naps reports whether the next wait naps.
func (cq *CQ) Naps() bool { return cq.policy.wantsNap() && cq.channel.isOnly() }

// Wakes reports whether the device wakes the queue's waits by itself, without
// an event.
func (cq *CQ) Wakes() bool { return cq.wakes }

// TakeWake reports whether the next wait polls again at once.
func (cq *CQ) TakeWake() bool {
	select {
	case <-cq.ready:
		return true
	default:
		return false
	}
}

// Watched reports whether the netpoller watches the channel.
func (ch *CompChannel) Watched() bool {
	ch.beginning.Lock()
	defer ch.beginning.Unlock()
	return ch.fd != nil
}

// HasDescriptor reports whether C's channel has a descriptor.
func (ch *CompChannel) HasDescriptor() bool { return ch.raw.Fd >= 0 }

// Unwatch does what many naps do.
func (ch *CompChannel) Unwatch() { ch.unwatch() }

// BindWR returns the fields of a work request that binds a window of type 2.
func BindWR(mw *MW, b Binding) (libibverbs.SendWrBindMw, error) { return mw.bindWR(b) }

// RawSends and RawRecvs return a batch's requests as C takes them, for tests to
// spoil.
func RawSends(b *SendBatch) []libibverbs.SendWr { return b.arena.used() }

func RawRecvs(b *RecvBatch) []libibverbs.RecvWr { return b.arena.used() }

// ModifyRaw is Modify with the attributes as C has them.
func (qp *QP) ModifyRaw(attr *libibverbs.QpAttr, mask QPAttrMask) error { return qp.modify(attr, mask) }

// RawConfig returns a config as C takes it.
func RawConfig(c QPConfig) (libibverbs.QpInitAttr, error) { return c.initAttr() }

// HasWR reports whether requests can be posted through the ibv_wr functions.
func HasWR(qp *QP) bool { return qp.ex != nil }

// RequiredAttrs and CheckTransition give what the tables say.
func RequiredAttrs(t QPType, from, to QPState) QPAttrMask {
	return transitions[transition{from, to}][t].required
}

func CheckTransition(t QPType, from, to QPState, mask QPAttrMask) error {
	if e := checkTransition(t, from, to, mask); e != nil {
		return e
	}
	return nil
}

// Raw returns the attributes as C takes them.
func (a QPAttr) Raw(mask QPAttrMask) (libibverbs.QpAttr, error) { return a.raw(mask) }

// FirstRequest returns what C is given to post a batch that is full.
func FirstRequest(b *SendBatch) *libibverbs.SendWr { return &b.arena.wrs[0] }

// FirstReceive returns what C is given to post a batch.
func FirstReceive(b *RecvBatch) *libibverbs.RecvWr { return &b.arena.wrs[0] }

// RawChannel returns the C object of a channel.
func RawChannel(ch *CompChannel) *libibverbs.CompChannel { return ch.raw }

// SysfsGIDTable is QueryGIDTable by way of /sys.
func (d *Device) SysfsGIDTable() ([]GIDEntry, error) {
	ports, err := d.portNumbers()
	if err != nil {
		return nil, err
	}
	all, err := d.sysfsGIDs(ports)
	return entriesOf(all), err
}

// SysfsGIDEntry is QueryGIDEntry by way of /sys.
func (d *Device) SysfsGIDEntry(port, index int) (GIDEntry, error) { return d.sysfsGID(port, index) }
