// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"fmt"
	"time"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/datapath"
	"github.com/verbena-go/verbena/internal/object"
	"github.com/verbena-go/verbena/internal/sealed"
)

// The types below give package rdmacm and the packages in this directory access
// to parts of this package that programs cannot use. See package sealed.

// lifetime is the internals of an object of which other packages use only the
// lifetime.
type lifetime struct{ object *object.Object }

// Object returns the object.Object that manages the object's lifetime, or nil
// for a nil pointer.
func (l lifetime) Object() *object.Object { return l.object }

// Internals is for packages of this module.
func (mr *MR) Internals() sealed.Of[lifetime] { return sealed.Seal(lifetime{mr.self()}) }

// cqInternals is the internals of a completion queue. Its methods other than
// Object are for a caller that waits for the queue's events in poll(2), while
// no other call waits for the queue.
type cqInternals struct {
	lifetime
	cq *CQ
}

// Internals is for packages of this module.
func (cq *CQ) Internals() sealed.Of[cqInternals] {
	return sealed.Seal(cqInternals{lifetime{cq.self()}, cq})
}

// Descriptor returns the descriptor of the queue's channel, and makes Go's
// netpoller stop watching it until a Wait parks again. It fails, and returns
// -1, if the queue is closed, or if the channel has no descriptor yet and the
// process may open no more files.
func (i cqInternals) Descriptor() (int, error) {
	if err := i.cq.self().Use(); err != nil {
		return -1, err
	}
	defer i.cq.object.Done()
	i.cq.channel.unwatch()
	if err := i.cq.channel.open(); err != nil {
		return -1, err
	}
	return int(i.cq.channel.raw.Fd), nil
}

// PollOrArm is like Poll. If it returns no completion, it has requested an
// event for the next one.
func (i cqInternals) PollOrArm(wcs []WC) (int, error) { return i.cq.pollOrArm(wcs, false) }

// TakeEvents takes the events of the channel without waiting.
func (i cqInternals) TakeEvents() {
	if i.cq.self().Use() != nil {
		return
	}
	defer i.cq.object.Done()
	for done := true; done; {
		done, _ = i.cq.channel.read(i.cq) // an error shows again in the next poll
	}
}

// SetAside says whether later waits leave the work of a device in this process
// to other goroutines: those that wait for long, and not for what the program
// waits for.
func (i cqInternals) SetAside(aside bool) { i.cq.aside.Store(aside) }

// OnPark makes Wait call before whenever it parks the goroutine, and after when
// it goes on. In between, other goroutines may poll the queue; otherwise, Wait
// polls. Call OnPark before any Wait.
func (i cqInternals) OnPark(before, after func()) { i.cq.beforePark, i.cq.afterPark = before, after }

// Mute keeps completions from waking a goroutine that is parked in Wait, while
// the caller polls for it. If Mute returns true, the caller calls Unmute
// afterwards. Only a device in this process can do that.
func (i cqInternals) Mute() bool {
	i.cq.muted.Store(i.cq.wakes)
	return i.cq.wakes
}

// Unmute ends what Mute has begun. It polls, and if it returns no completion
// and no error, later ones wake the goroutine again.
func (i cqInternals) Unmute(wcs []WC) (int, error) {
	i.cq.muted.Store(false)
	n, err := i.cq.pollOrArm(wcs, true)
	if n == 0 && err == nil && !i.cq.attends.Load() {
		datapath.Park() // for the one that is parked
	}
	return n, err
}

// Look polls, for a caller that waits beside a goroutine that is parked in
// Wait. It spins if the waits of such callers have usually been short.
func (i cqInternals) Look(wcs []WC) (int, error) {
	cq := i.cq
	n, err := cq.Poll(wcs)
	if n > 0 || err != nil || !cq.policy.beginSpin(&cq.policy.beside, cq.policy.talks(&cq.policy.beside)) {
		return n, err
	}
	defer spinPlaces.leave()
	if err := cq.self().Use(); err != nil {
		return 0, err
	}
	defer cq.object.Done()
	var p datapath.Polled
	datapath.SpinAlone(cq.queue, count(wcs), unsafe.Pointer(&wcs[0]), bounded(cq.policy.spinLimit), &p)
	cq.policy.beside.add(p.Value > 0)
	return cq.spun(len(wcs), &p)
}

// NoteWait records how long a wait took for which Look has not been enough.
func (i cqInternals) NoteWait(took time.Duration) {
	i.cq.policy.beside.note(took, i.cq.policy.spinLimit)
}

// qpInternals is the internals of a queue pair.
type qpInternals struct {
	lifetime
	qp *QP
}

// Internals is for packages of this module.
func (qp *QP) Internals() sealed.Of[qpInternals] {
	return sealed.Seal(qpInternals{lifetime{qp.self()}, qp})
}

// PostRecvAndPoll posts the batch, which must not be empty, like PostRecv and
// then polls cq like CQ.Poll, all in one call of C. If posting fails, it does
// not poll. If polling fails, all receives are posted.
func (i qpInternals) PostRecvAndPoll(b *RecvBatch, cq *CQ, wcs []WC) (posted, n int, err error) {
	return i.qp.postRecvAndPoll(b, cq, wcs)
}

// Internals is for packages of this module.
func (srq *SRQ) Internals() sealed.Of[lifetime] { return sealed.Seal(lifetime{srq.self()}) }

// Internals is for packages of this module.
func (ah *AH) Internals() sealed.Of[lifetime] { return sealed.Seal(lifetime{ah.self()}) }

// deviceInternals is the internals of a device.
type deviceInternals struct {
	lifetime
	d *Device
}

// Internals is for packages of this module.
func (d *Device) Internals() sealed.Of[deviceInternals] {
	return sealed.Seal(deviceInternals{lifetime{d.self()}, d})
}

// InitImported initializes a new Device for a C device that was imported. Close
// closes the C device, too.
func (i deviceInternals) InitImported(raw *libibverbs.Context) {
	i.d.init(raw, cString(raw.Device.Name[:]))
}

// InitForeign initializes a new Device for a C device that its owner keeps open
// until the Device is closed. Close calls closed instead of
// ibv_close_device(3). OpenObjects does not list the Device.
func (i deviceInternals) InitForeign(raw *libibverbs.Context, closed func() error) {
	i.d.raw, i.d.vectors, i.d.destroy = raw, int(raw.NumCompVectors), closed
	i.d.object.InitUnlisted(cString(raw.Device.Name[:]))
}

// CloseWhenUnused closes the device now, or together with the last object made
// on it.
func (i deviceInternals) CloseWhenUnused() { i.d.closeWhenUnused() }

// UnlessRemoved returns the error of a C call that destroys an object, or nil
// if the call failed because the device was removed.
func (i deviceInternals) UnlessRemoved(err error) error { return i.d.unlessRemoved(err) }

// ImportPD returns the PD of a C domain that was imported on the device, which
// must be in use. Close ends the import.
func (i deviceInternals) ImportPD(raw *libibverbs.Pd) *PD {
	pd := &PD{device: i.d, raw: raw, imported: true}
	pd.object.Init(fmt.Sprintf("imported PD %d of %s", raw.Handle, i.d.Name()), &i.d.object)
	return pd
}

// DMAHandle returns an object whose methods register memory with a DMA handle
// of the device.
func (i deviceInternals) DMAHandle(handle *object.Object, raw *libibverbs.Dmah) *dmaHandle {
	return &dmaHandle{object: handle, device: i.d, raw: raw}
}

// workQueue is a work queue of package flow.
type workQueue interface {
	EventObject
	Raw() *libibverbs.Wq
	Num() uint32
}

// RegisterWQ makes wq the Object of the work queue's events, until
// UnregisterWQ. Call UnregisterWQ before destroying the C object, because the
// next C object may have the same address.
func (i deviceInternals) RegisterWQ(wq workQueue) { register(unsafe.Pointer(wq.Raw()), wq) }

// UnregisterWQ undoes RegisterWQ.
func (i deviceInternals) UnregisterWQ(wq workQueue) { unregister(unsafe.Pointer(wq.Raw())) }

// ForgetWQ drops the unread events of a work queue that was destroyed.
func (i deviceInternals) ForgetWQ(wq workQueue) { i.d.forgetEvents(wq, EventClassWQ, wq.Num()) }

// pdInternals is the internals of a protection domain.
type pdInternals struct {
	lifetime
	pd *PD
}

// Internals is for packages of this module.
func (pd *PD) Internals() sealed.Of[pdInternals] {
	return sealed.Seal(pdInternals{lifetime{pd.self()}, pd})
}

// A qpCreator creates a C queue pair, and returns it with a function that
// destroys it.
type qpCreator = func(*libibverbs.QpInitAttrEx) (raw *libibverbs.Qp, destroy func() error, err error)

// NewQP makes a queue pair from the C object that create returns.
func (i pdInternals) NewQP(config QPConfig, create qpCreator) (*QP, error) {
	if err := config.notDriver(i.pd); err != nil {
		return nil, err
	}
	return i.pd.newQP(config, create)
}

// NewDriverQP makes a queue pair of a type that only its driver knows.
func (i pdInternals) NewDriverQP(config QPConfig, create qpCreator) (*QP, error) {
	config.Type = typeDriver
	return i.pd.newQP(config, create)
}

// AdoptQP returns the QP of a C object, which ibv_destroy_qp(3) destroys. The
// parents must be in use and include the domain.
func (i pdInternals) AdoptQP(raw *libibverbs.Qp, parents ...*object.Object) *QP {
	destroy := func() error { return libibverbs.DestroyQp(raw) }
	qp := &QP{device: i.pd.device, pd: i.pd, raw: raw, destroy: destroy}
	qp.init(parents...)
	return qp
}

// AccessProblem returns the reason why no memory region can have the flags, or
// "" if one can.
func (i pdInternals) AccessProblem(access AccessFlags) string { return accessProblem(access) }

// AdoptMR returns the MR of a C region of size bytes. The region has no memory
// of this process, and its addresses begin at 0. The domain and parent must be
// in use.
func (i pdInternals) AdoptMR(raw *libibverbs.Mr, access AccessFlags, size int, parent *object.Object) *MR {
	return newMR(raw, region{pd: i.pd, access: access, size: size}, parent)
}

// NewHostMR returns the MR of a region over memory of this process. register
// registers the memory with the C function op. Before that, NewHostMR refuses
// arguments that are wrong but that C would accept. The domain and parent must
// be in use.
func (i pdInternals) NewHostMR(
	op string, memory []byte, access AccessFlags, parent *object.Object, register func() (*libibverbs.Mr, error),
) (*MR, error) {
	r := region{pd: i.pd, access: access, bytes: memory, start: addressOf(memory), size: len(memory)}
	if err := i.pd.checkHost(op, &r, r.start); err != nil {
		return nil, err
	}
	raw, err := register()
	if err != nil {
		return nil, err
	}
	return newMR(raw, r, parent), nil
}

// ImportMR returns the MR of a C region that was imported on the domain, which
// must be in use. Close closes only the Go object.
func (i pdInternals) ImportMR(raw *libibverbs.Mr, addr uint64, size int) *MR {
	mr := &MR{raw: raw, region: region{pd: i.pd, start: addr, size: size, lkey: raw.Lkey, rkey: raw.Rkey}}
	mr.itself = mr
	mr.object.Init(fmt.Sprintf("imported MR %#x of %s", raw.Lkey, i.pd.device.Name()), &i.pd.object)
	return mr
}

// segmentInternals is the internals of a segment.
type segmentInternals struct{ s Segment }

// Internals is for packages of this module.
func (s Segment) Internals() sealed.Of[segmentInternals] { return sealed.Seal(segmentInternals{s}) }

// SGE returns the segment in C's form. writes says that the device will write
// to the segment. SGE fails if a work request cannot have the segment, or if
// the device may not write to it.
func (i segmentInternals) SGE(writes bool) (libibverbs.Sge, error) {
	if err := i.s.check(); err != nil {
		return libibverbs.Sge{}, err
	}
	if writes {
		if err := i.s.checkWrite(); err != nil {
			return libibverbs.Sge{}, err
		}
	}
	return i.s.sge(), nil
}

// CheckRecv returns an error unless a received message can be copied to the
// segment: its memory must be mapped, and the device must be allowed to write
// to it. k is the position of the segment in its receive, for the error.
func (i segmentInternals) CheckRecv(k int) error {
	if err := i.s.checkRecv(); err != nil {
		return refusedRecv(0, inSegment(k, err))
	}
	return nil
}

// Fill copies the start of data to a segment that passed CheckRecv or is from
// InlineBytes, and returns the rest. It fails if the region was closed after
// that check.
func (i segmentInternals) Fill(data []byte) (rest []byte, err error) { return i.s.fill(data) }

// remoteInternals is the internals of a remote buffer.
type remoteInternals struct{ r RemoteBuffer }

// Internals is for packages of this module.
func (r RemoteBuffer) Internals() sealed.Of[remoteInternals] { return sealed.Seal(remoteInternals{r}) }

// Takes returns an error if the buffer has fewer than the given number of
// bytes, or if it is a result of Sub that is outside the buffer it came from.
func (i remoteInternals) Takes(bytes uint64) error { return i.r.takes(bytes) }

// recvInternals is the internals of a batch of receives.
type recvInternals struct{ b *RecvBatch }

// Internals is for packages of this module.
func (b *RecvBatch) Internals() sealed.Of[recvInternals] { return sealed.Seal(recvInternals{b}) }

// Post posts the batch with the function post, which returns the first request
// that it has not posted. to is the lifetime of the queue.
func (i recvInternals) Post(
	to *object.Object, post func(first *libibverbs.RecvWr) (bad *libibverbs.RecvWr, err error),
) (int, error) {
	return i.b.post(to, post)
}

// sendInternals is the internals of a batch of send requests.
type sendInternals struct{ b *SendBatch }

// Internals is for packages of this module.
func (b *SendBatch) Internals() sealed.Of[sendInternals] { return sealed.Seal(sendInternals{b}) }

// Mark gives the last request the ID last and the others the ID id. It makes
// the last request signaled if signaled is set, and no other request. It
// reports whether one of the requests is a read or an atomic operation.
func (i sendInternals) Mark(id, last uint64, signaled bool) (fetches bool) {
	return i.b.mark(id, last, signaled)
}

// errorInternals is the internals of an error of a C call.
type errorInternals struct{ e *Error }

// Internals is for packages of this module.
func (e *Error) Internals() sealed.Of[errorInternals] { return sealed.Seal(errorInternals{e}) }

// SetHint replaces the hint.
func (i errorInternals) SetHint(hint string) { i.e.hint = hint }
