// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/mem"
)

// Access says what peers may do with a region; combine with |.
type Access uint8

// What peers may do.
const (
	ReadAccess  Access = 1 << iota // peers may read
	WriteAccess                    // peers may write
)

// A RegionConfig configures a region. The zero value makes a region without a
// name, which only the engine's own requests use.
type RegionConfig struct {
	// Name is what peers look the region up by; at most 255 bytes. No two open
	// regions of an engine have the same name. Peers do not see a region
	// without a name.
	Name string
	// Access is what peers may do. The devices enforce it for all peers of
	// the engine.
	Access Access
	// Allow, if not nil, says which peers are told of the region. It is called
	// for each session of a peer, and when the keys change; it must not block,
	// and must not call the engine. A peer that is not told would have to guess
	// a key; peers that must not be able to reach the memory at all belong to
	// another Engine. What a peer was told is not taken back when Allow returns
	// false later. Region.Close does that, for all peers; Peer.Close does it
	// for one, if ListenConfig.Authenticate then refuses that one.
	Allow func(*Peer) bool
}

// A Region is memory that is registered with all devices of an engine. Its
// methods may be called concurrently.
type Region struct {
	engine        *Engine
	config        RegionConfig
	id            uint64
	bytes         []byte // nil for memory that the program cannot access, such as a GPU's
	length        int
	nearer        *nearer     // to the memory; nil if none is, or nothing is known
	readOnly      atomic.Bool // whether the memory, or a part of it, can only be read; changed by the cache
	register      func(pd *ibverbs.PD, access ibverbs.AccessFlags) (*ibverbs.MR, error)
	free          func()                                   // frees the memory; may be nil
	mrs           [maxDevices]atomic.Pointer[registration] // by the device's index; nil while the device is gone
	deregistering atomic.Bool                              // whether its deregistration has begun
	cached

	closing sync.Mutex // held by Close
	closed  bool       // guarded by closing
}

// registration is a region on a device.
type registration struct {
	*ibverbs.MR
	domain *domain
}

// Register registers the memory of b with all devices. It pins memory of Go's
// heap until Close. Close the region before you unmap memory that is not of
// Go's heap. Memory that can only be read, such as a file's that is mapped so,
// is for Batch.Write and ReadAccess. Register fails with an error matching
// syscall.EFAULT if it is to have WriteAccess, with os.ErrExist if another open
// region has the name, and with ENOMEM if the system does not let the process
// lock that much memory. It blocks while the kernel locks the memory.
func (e *Engine) Register(b []byte, config RegionConfig) (*Region, error) {
	const op = "Engine.Register"
	if len(b) == 0 && e.check(op) == nil {
		return nil, cerr.Refuse(op, "", "the memory is empty")
	}
	return e.newRegion(op, &Region{
		config: config, bytes: b, length: len(b),
		register: func(pd *ibverbs.PD, access ibverbs.AccessFlags) (*ibverbs.MR, error) { return pd.Register(b, access) },
	})
}

// Alloc maps size bytes of zeroed memory outside of Go's heap and registers
// them like Register. Close unmaps them.
func (e *Engine) Alloc(size int, config RegionConfig) (*Region, error) {
	const op = "Engine.Alloc"
	if err := e.check(op); err != nil {
		return nil, err
	}
	if size <= 0 {
		return nil, cerr.Refuse(op, "", "the size is %d; it must be positive", size)
	}
	b, free, err := mem.Region(size)
	if err != nil {
		return nil, err
	}
	return e.newRegion(op, &Region{
		config: config, bytes: b, length: size, free: free,
		register: func(pd *ibverbs.PD, access ibverbs.AccessFlags) (*ibverbs.MR, error) { return pd.Register(b, access) },
	})
}

// RegisterDMABuf registers memory of another device, such as a GPU, like
// Register. The file descriptor must stay open until Close, because a device
// that is removed and inserted again registers the memory again. Requests name
// the memory by Batch.ReadRegion and Batch.WriteRegion. RegisterDMABuf fails
// with an error matching errors.ErrUnsupported if a device cannot do it.
func (e *Engine) RegisterDMABuf(b ibverbs.DMABuf, config RegionConfig) (*Region, error) {
	const op = "Engine.RegisterDMABuf"
	if b.Length <= 0 && e.check(op) == nil {
		return nil, cerr.Refuse(op, "", "the length is %d; it must be positive", b.Length)
	}
	return e.newRegion(op, &Region{
		config: config, length: b.Length,
		register: func(pd *ibverbs.PD, access ibverbs.AccessFlags) (*ibverbs.MR, error) {
			return pd.RegisterDMABuf(b, access)
		},
	})
}

// newRegion registers a region with all devices, and offers it to the peers. It
// frees the region's memory if it fails.
func (e *Engine) newRegion(op string, r *Region) (*Region, error) {
	err := e.check(op)
	switch {
	case err != nil:
	case len(r.config.Name) > maxName:
		err = cerr.Refuse(op, "", "the name has %d bytes; at most %d are possible", len(r.config.Name), maxName)
	case r.config.Access&^(ReadAccess|WriteAccess) != 0:
		err = cerr.Refuse(op, r.config.Name, "Access is %#x, which has unknown bits", uint8(r.config.Access))
	default:
		err = e.addRegion(op, r)
	}
	if err != nil {
		e.mu.Lock()
		_, registered := e.all[r] // a device may still use it; Engine.Close tries again
		e.mu.Unlock()
		if r.free != nil && !registered {
			r.free()
		}
		return nil, err
	}
	if r.config.Name != "" {
		e.offer(r)
	}
	return r, nil
}

// addRegion registers a region and makes it found.
func (e *Engine) addRegion(op string, r *Region) error {
	r.engine = e
	e.mu.Lock()
	switch {
	case e.closed:
		e.mu.Unlock()
		return errEngineClosed
	case r.config.Name != "" && e.names[r.config.Name] != nil:
		e.mu.Unlock()
		return cerr.Argument(op, r.config.Name, cerr.InvalidAs(os.ErrExist, "another region has the name"))
	}
	e.nextID++
	r.id = e.nextID
	e.all[r] = struct{}{}
	e.adding.Add(1)
	defer e.adding.Done()
	if r.config.Name != "" {
		e.names[r.config.Name] = r
	}
	e.mu.Unlock()
	err := e.registerOn(r)
	if errors.Is(err, syscall.ENOMEM) {
		e.cache.evictUnused() // they have a share of what the process may lock
		err = e.registerOn(r)
	}
	if err == nil {
		err = e.cache.add(r)
	}
	if err != nil {
		return errors.Join(err, e.deregister(r))
	}
	if r.config.Name != "" {
		e.list(r)
	}
	return nil
}

// list adds a region to those that sessions are told of and that Find finds.
func (e *Engine) list(r *Region) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.regions[r.id] = r
	if r.bytes != nil {
		e.places.insert(r)
	}
}

// unlist removes a region from these, if it is there. The caller holds e.mu.
func (e *Engine) unlist(r *Region) {
	if e.regions[r.id] == r {
		delete(e.regions, r.id)
		e.places.remove(r)
	}
}

// Find returns a region with a name that has all the memory of b, and the
// offset of b in it: with the name and the offset, a peer reaches the memory.
// If there are several, Find returns any of them. It returns nil and 0 if there
// is none, or if b is empty. It does not block.
func (e *Engine) Find(b []byte) (r *Region, offset uint64) {
	if len(b) == 0 || e.check("Engine.Find") != nil {
		return nil, 0
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	start, end := span(b)
	if r = e.places.find(start, end); r == nil {
		return nil, 0
	}
	first, _ := span(r.bytes)
	return r, uint64(start - first)
}

// registerCached registers memory that a batch uses, for the cache.
func (e *Engine) registerCached(b []byte) (*Region, error) {
	r := &Region{
		engine: e, bytes: b, length: len(b),
		register: func(pd *ibverbs.PD, access ibverbs.AccessFlags) (*ibverbs.MR, error) { return pd.Register(b, access) },
	}
	e.mu.Lock()
	e.all[r] = struct{}{}
	e.mu.Unlock()
	if err := e.registerOn(r); err != nil {
		return nil, errors.Join(err, e.deregister(r))
	}
	return r, nil
}

// registerOn registers a region on all devices that are there.
func (e *Engine) registerOn(r *Region) error {
	for _, d := range e.devices {
		d.mu.Lock()
		err := r.registerWith(d, d.domain)
		removed := err != nil && d.verbs.Removed()
		d.mu.Unlock()
		switch {
		case removed:
			e.connectionEnded(d, nil, err)
		case err != nil:
			return err
		}
	}
	r.nearer = e.nearerTo(r.bytes)
	return nil
}

// registerAll registers all regions on a device that is new or back. The caller
// holds d.mu.
func (e *Engine) registerAll(d *device, in *domain) error {
	e.mu.Lock()
	all := keys(e.all)
	e.mu.Unlock()
	for _, r := range all {
		if err := r.registerWith(d, in); err != nil {
			for _, r := range all {
				if mr := r.mrs[d.index].Swap(nil); mr != nil {
					_ = mr.Close() // which nothing uses yet
				}
			}
			return err
		}
	}
	for _, r := range all {
		if r.config.Name != "" {
			go e.offer(r) // with the new keys; takes locks that callers hold
		}
	}
	return nil
}

// registerWith registers the region in a domain of a device. The caller holds
// d.mu.
func (r *Region) registerWith(d *device, in *domain) error {
	if in == nil || r.deregistering.Load() || r.mrs[d.index].Load() != nil {
		return nil
	}
	access := ibverbs.AccessLocalWrite
	if isIWARP(in.pd.Device()) {
		access |= ibverbs.AccessRemoteWrite // for the memory of reads
	}
	if r.config.Access&ReadAccess != 0 {
		access |= ibverbs.AccessRemoteRead
	}
	if r.config.Access&WriteAccess != 0 {
		access |= ibverbs.AccessRemoteWrite
	}
	mr, err := r.register(in.pd, access)
	if errors.Is(err, syscall.EFAULT) && r.config.Access&WriteAccess == 0 && r.bytes != nil {
		var failed error
		if mr, failed = r.register(in.pd, access&ibverbs.AccessRemoteRead); failed == nil {
			r.engine.cache.setReadOnly(r)
			err = nil
		}
	}
	if err != nil {
		return fmt.Errorf("transfer: %v on device %s: %w", r, d.name, err)
	}
	r.mrs[d.index].Store(&registration{mr, in})
	return nil
}

func isIWARP(d *ibverbs.Device) bool {
	return d.Raw().Device.TransportType == libibverbs.IBV_TRANSPORT_IWARP
}

// deregister deregisters a region everywhere, and forgets it.
func (e *Engine) deregister(r *Region) error {
	r.deregistering.Store(true) // a device that comes back must not have it
	e.mu.Lock()
	e.unlist(r)
	e.mu.Unlock()
	var errs []error
	for _, d := range e.devices {
		d.mu.Lock()
		if mr := r.mrs[d.index].Load(); mr != nil {
			if err := mr.Close(); err != nil {
				errs = append(errs, err) // another call tries again
			} else {
				r.mrs[d.index].Store(nil)
			}
		}
		for _, old := range d.removed {
			if err := old.closeRegion(r); err != nil {
				errs = append(errs, err)
			}
		}
		d.mu.Unlock()
	}
	if len(errs) > 0 {
		return fmt.Errorf("transfer: closing %v: %w", r, errors.Join(errs...))
	}
	e.mu.Lock()
	delete(e.all, r)
	if e.names[r.config.Name] == r {
		delete(e.names, r.config.Name)
	}
	e.mu.Unlock()
	return nil
}

// takeRegions takes all regions from a device that is gone. Its domain keeps
// them while paths use it. The caller holds d.mu.
func (e *Engine) takeRegions(d *device) {
	e.mu.Lock()
	all := keys(e.all)
	e.mu.Unlock()
	d.domain.left = map[*Region]*ibverbs.MR{}
	for _, r := range all {
		if mr := r.mrs[d.index].Swap(nil); mr != nil {
			d.domain.left[r] = mr.MR
		}
	}
}

// Forget deregisters the memory that batches have used and that overlaps b.
// Call it before you unmap memory that is not of Go's heap and that was not
// passed to Register: otherwise, devices would still use the old pages when
// other memory is at the address. It waits until no request uses the memory any
// more. Memory of Go's heap needs no Forget: while it is registered, it is not
// reused.
func (e *Engine) Forget(b []byte) error {
	if err := e.check("Engine.Forget"); err != nil {
		return err
	}
	return e.cache.forget(b)
}

// String returns the name and the size of the region.
func (r *Region) String() string {
	if r == nil {
		return "nil Region"
	}
	if r.config.Name == "" {
		return fmt.Sprintf("region of %d bytes", r.length)
	}
	return fmt.Sprintf("region %q of %d bytes", r.config.Name, r.length)
}

// Name returns the region's name, or "".
func (r *Region) Name() string {
	if r == nil {
		return ""
	}
	return r.config.Name
}

// Len returns the size of the region in bytes.
func (r *Region) Len() int {
	if r == nil {
		return 0
	}
	return r.length
}

// Bytes returns the region's memory, or nil if the program cannot access it. It
// must not be used after Close if the memory is from Alloc.
func (r *Region) Bytes() []byte {
	if r == nil {
		return nil
	}
	return r.bytes
}

// Close takes the region back. It fails with an *ibverbs.BusyError while
// batches of this engine use the region. Batches may also have used its memory
// without it, before Register or together with more: Close deregisters that as
// Forget does, but waits at most for Config.RetryTimeout until no batch uses
// it, and then fails in the same way. In both cases the region stays open.
//
// Then Close tells the peers, and waits until each has ended its transfers to
// and from the region, but again at most for Config.RetryTimeout; it ends the
// session with a peer that has not by then. Then it deregisters the memory.
// What a peer still tries afterwards fails at the peer. Close may be called
// more than once.
func (r *Region) Close() error {
	if r == nil || r.engine == nil {
		return nil
	}
	e := r.engine
	r.closing.Lock()
	defer r.closing.Unlock()
	if r.closed {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), e.config.RetryTimeout)
	defer cancel()
	if !e.cache.remove(ctx, r) {
		return &ibverbs.BusyError{Object: r.String(), Children: []string{"batches that use it, or memory that is registered together with a part of it"}}
	}
	// Batches may have begun to use the memory without the region meanwhile.
	err := e.cache.forget(r.bytes)
	e.withdraw(r)
	if err := errors.Join(err, e.deregister(r)); err != nil {
		return err // the devices may still use the memory
	}
	r.closed = true
	if r.free != nil {
		r.free()
	}
	return nil
}

// offer tells the peers of a region, or of its new keys.
func (e *Engine) offer(r *Region) {
	e.mu.Lock()
	peers := keys(e.peers)
	e.mu.Unlock()
	for _, p := range peers {
		p.offer(r)
	}
}

// withdraw tells the peers that the region is to be closed, and waits until
// they have ended their transfers.
func (e *Engine) withdraw(r *Region) {
	e.mu.Lock()
	e.unlist(r) // no session is told of it any more
	peers := keys(e.peers)
	e.mu.Unlock()
	told := map[*session]<-chan struct{}{}
	for _, p := range peers {
		if s, done := p.withdraw(r); done != nil {
			told[s] = done
		}
	}
	late, cancel := context.WithTimeout(context.Background(), e.config.RetryTimeout)
	defer cancel()
	for s, done := range told {
		select {
		case <-done:
			continue
		case <-late.Done():
		}
		select {
		case <-done:
		default:
			// It may still use a key, which may soon be that of other memory.
			s.end(fmt.Errorf("transfer: the peer did not give back %v in %v: %w", r, e.config.RetryTimeout, syscall.ETIMEDOUT))
			s.awaitDestroyed()
		}
	}
}

// A RemoteRegion is a region of a peer, as Peer.Region returns it. It is of no
// use any more when the peer has closed the region or has begun anew. Its
// methods may be called concurrently.
type RemoteRegion struct {
	session *session
	offer   offer // its keys are guarded by the peer's mu

	// Guarded by the peer's mu.
	withdrawn bool // whether the peer has withdrawn it
	inFlight  int  // number of slices that are posted or will be posted again
}

// Name returns the region's name.
func (r *RemoteRegion) Name() string {
	if r == nil || r.session == nil {
		return ""
	}
	return r.offer.name
}

// Len returns the size of the region in bytes.
func (r *RemoteRegion) Len() uint64 {
	if r == nil || r.session == nil {
		return 0
	}
	return r.offer.length
}

// Access returns what the peer permits.
func (r *RemoteRegion) Access() Access {
	if r == nil || r.session == nil {
		return 0
	}
	return r.offer.access
}

// Peer returns the peer that has the region.
func (r *RemoteRegion) Peer() *Peer {
	if r == nil || r.session == nil {
		return nil
	}
	return r.session.peer
}

// Incarnation returns a number that the peer's engine chose at its start. A
// region of a peer that has restarted has another one.
func (r *RemoteRegion) Incarnation() uint64 {
	if r == nil || r.session == nil {
		return 0
	}
	return r.session.incarnation
}
