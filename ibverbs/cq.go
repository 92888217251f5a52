package ibverbs

import (
	"fmt"
	"math"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/datapath"
	"github.com/verbena-go/verbena/internal/object"
)

// CQ is a completion queue. Its methods may be called concurrently, unless it
// is SingleThreaded; several goroutines may wait, and one gets each completion.
type CQ struct {
	object    object.Object
	device    *Device
	channel   *CompChannel // nil: no events
	raw       *libibverbs.Cq
	entries   atomic.Int32   // as C has it while the queue is open
	extended  datapath.Queue // not used without fields
	fields    WCFields
	solicited bool
	lost      atomic.Bool  // completions, in an overrun
	scheduled atomic.Int64 // when spun has last let the runtime schedule

	turn  chan struct{} // full while a goroutine waits
	ready chan struct{} // receives when somebody else has read our event
	try   func() (bool, error)
}

// CQConfig says how to make a completion queue.
type CQConfig struct {
	Entries       int          // at least; the queue must never hold more completions
	Channel       *CompChannel // for Wait and Sleep; nil: the queue can only be polled
	Vector        int          // interrupt vector, below Device.CompVectors
	SolicitedOnly bool         // what comes without SendSolicited, and has not failed, wakes nobody who waits

	// What follows needs an extended queue, see ibv_create_cq_ex(3), which not
	// every device has.

	Fields         WCFields // for PollEx, SpinEx, SleepEx and WaitEx; 0: only for those without Ex
	SingleThreaded bool     // no two calls with the queue at a time, for which the device may need no lock
	IgnoreOverrun  bool     // too many completions overwrite others without any error
	ParentDomain   *PD      // from AllocParentDomain; with a thread domain, the queue needs no lock; nil: none
}

// CreateCQ makes a completion queue; see ibv_create_cq(3). What the device
// cannot do gives an error that is errors.ErrUnsupported.
func (d *Device) CreateCQ(config CQConfig) (*CQ, error) {
	parents := []*object.Object{d.self()}
	if config.Channel != nil {
		parents = append(parents, &config.Channel.object)
	}
	if config.ParentDomain != nil {
		parents = append(parents, &config.ParentDomain.object)
	}
	done, err := object.UseAll(parents...)
	if err != nil {
		return nil, err
	}
	defer done()
	if config.Channel != nil {
		if err := sameDevice("ibv_create_cq", d.Name(), d.raw, config.Channel.self(), config.Channel.device.raw); err != nil {
			return nil, err
		}
	}
	if domain := config.ParentDomain; domain != nil {
		if err := sameDevice("ibv_create_cq", d.Name(), d.raw, domain.self(), domain.device.raw); err != nil {
			return nil, err
		}
		if domain.parent == nil {
			return nil, badCQ(d, "ParentDomain is %s, which is no parent domain; AllocParentDomain makes one", domain.object.Name())
		}
	}
	if err := inRange("Entries", config.Entries, 1, math.MaxInt32); err != nil {
		return nil, cerr.Argument("ibv_create_cq", d.Name(), err)
	}
	if vectors := max(d.CompVectors(), 1); config.Vector < 0 || config.Vector >= vectors {
		return nil, badCQ(d, "Vector is %d, and the device has 0 to %d", config.Vector, vectors-1)
	}
	cq := &CQ{
		device: d, channel: config.Channel, solicited: config.SolicitedOnly, fields: config.Fields,
		turn: make(chan struct{}, 1), ready: make(chan struct{}, 1),
	}
	d.watchEvents()
	if err := cq.create(config); err != nil {
		d.unwatchEvents()
		return nil, d.tooMuch(err, fmt.Sprintf("%d entries on %s", config.Entries, d.Name()), cqSizes(config.Entries))
	}
	cq.noteLen()
	if cq.channel != nil {
		cq.try = func() (bool, error) { return cq.channel.read(cq) }
		cq.channel.add(cq)
	}
	cq.object.Init(fmt.Sprintf("CQ %d of %s", cq.raw.Handle, d.Name()), parents...)
	register(unsafe.Pointer(cq.raw), cq)
	return cq, nil
}

func cqSizes(entries int) func(DeviceAttr) []size {
	return func(a DeviceAttr) []size { return []size{{"Entries", entries, a.MaxCQE}} }
}

func badCQ(d *Device, format string, args ...any) error {
	return cerr.Refuse("ibv_create_cq", d.Name(), format, args...)
}

func (cq *CQ) create(config CQConfig) (err error) {
	var channel *libibverbs.CompChannel
	if config.Channel != nil {
		channel = config.Channel.raw
	}
	if config.Fields == 0 && !config.SingleThreaded && !config.IgnoreOverrun && config.ParentDomain == nil {
		cq.raw, err = libibverbs.CreateCq(cq.device.raw, int32(config.Entries), nil, channel, int32(config.Vector))
		return err
	}
	attr := libibverbs.CqInitAttrEx{
		Cqe: uint32(config.Entries), Channel: channel, CompVector: uint32(config.Vector), WcFlags: uint64(config.Fields),
	}
	for flag, on := range map[libibverbs.CreateCqAttrFlags]bool{
		libibverbs.IBV_CREATE_CQ_ATTR_SINGLE_THREADED: config.SingleThreaded,
		libibverbs.IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN:  config.IgnoreOverrun,
	} {
		if on {
			attr.CompMask |= uint32(libibverbs.IBV_CQ_INIT_ATTR_MASK_FLAGS)
			attr.Flags |= uint32(flag)
		}
	}
	if config.ParentDomain != nil {
		attr.CompMask |= uint32(libibverbs.IBV_CQ_INIT_ATTR_MASK_PD)
		attr.ParentDomain = config.ParentDomain.raw
	}
	ex, err := libibverbs.CreateCqEx(cq.device.raw, &attr)
	if err != nil {
		return err
	}
	cq.raw = (*libibverbs.Cq)(unsafe.Pointer(ex)) // as ibv_cq_ex_to_cq does
	cq.extended = datapath.NewQueueEx(ex, config.Fields)
	return nil
}

// Len returns how many completions the queue can hold.
func (cq *CQ) Len() int { return int(cq.entries.Load()) }

func (cq *CQ) noteLen() { cq.entries.Store(atomic.LoadInt32(&cq.raw.Cqe)) }

// Raw returns the C object, which is valid until Close.
func (cq *CQ) Raw() *libibverbs.Cq { return cq.raw }

// Resize changes how many completions the queue can hold to at least entries;
// see ibv_resize_cq(3). Completions that are in the queue stay there. If there
// are more than entries, or the device cannot do it, the queue is as it was.
func (cq *CQ) Resize(entries int) error {
	if err := cq.self().Use(); err != nil {
		return err
	}
	defer cq.object.Done()
	what := fmt.Sprintf("%s to %d entries", cq.object.Name(), entries)
	if err := inRange("entries", entries, 1, math.MaxInt32); err != nil {
		return cerr.Argument("ibv_resize_cq", cq.object.Name(), err)
	}
	defer cq.noteLen()
	return cq.device.tooMuch(libibverbs.ResizeCq(cq.raw, int32(entries)), what, cqSizes(entries))
}

// Moderate makes the device wait for so many completions, or for so long after
// the first one, in microseconds and at most 65 ms, before it gives an event;
// see ibv_modify_cq(3).
func (cq *CQ) Moderate(completions int, period time.Duration) error {
	if err := cq.self().Use(); err != nil {
		return err
	}
	defer cq.object.Done()
	us := period.Microseconds()
	if completions < 0 || completions > math.MaxUint16 || us < 0 || us > math.MaxUint16 {
		return cerr.Refuse("ibv_modify_cq", cq.object.Name(), "%d completions or %v, of which %d or %v are the most",
			completions, period, math.MaxUint16, math.MaxUint16*time.Microsecond)
	}
	attr := libibverbs.ModifyCqAttr{
		AttrMask: uint32(libibverbs.IBV_CQ_ATTR_MODERATE),
		Moderate: libibverbs.ModerateCq{CqCount: uint16(completions), CqPeriod: uint16(us)},
	}
	return wrap(cq.object.Name(), libibverbs.ModifyCq(cq.raw, &attr))
}

// overran is for who reads the device's event that the queue has overrun.
func (cq *CQ) overran() {
	cq.lost.Store(true)
	if cq.channel != nil {
		cq.channel.wake(cq)
	}
}

func (cq *CQ) signal() {
	select {
	case cq.ready <- struct{}{}:
	default:
	}
}

// Close destroys the queue and wakes whoever waits for it; see
// ibv_destroy_cq(3). While queue pairs use it, Close does nothing and returns
// a BusyError.
func (cq *CQ) Close() error {
	return cq.self().Close(cq.interrupt, func() error {
		if cq.channel != nil {
			// Before it is destroyed, because the next one may have its address.
			cq.channel.remove(cq)
		}
		handle := cq.raw.Handle
		unregister(unsafe.Pointer(cq.raw))
		if err := cq.device.unlessRemoved(libibverbs.DestroyCq(cq.raw)); err != nil {
			register(unsafe.Pointer(cq.raw), cq)
			if cq.channel != nil {
				cq.channel.add(cq)
			}
			return wrap(cq.object.Name(), err)
		}
		cq.device.unwatchEvents()
		cq.device.forgetEvents(cq, EventClassCQ, handle)
		return nil
	})
}

// interrupt ends the wait of the goroutine that has the turn; those behind it
// see the queue closing when they get theirs.
func (cq *CQ) interrupt() {
	if cq.channel == nil {
		return
	}
	cq.channel.wake(cq)
	cq.turn <- struct{}{}
	<-cq.turn
}
