// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/verbena-go/verbena/internal/cerr"
)

// Config configures an Engine. The zero value is usable.
type Config struct {
	// Devices are the names of the devices to use, at most 16. If empty, the
	// engine uses all that have an address.
	Devices []string
	// Connections is the number of data connections that Dial makes between
	// two devices; 0 means 1.
	Connections int
	// SliceSize is the largest number of bytes in a work request; 0 means 1
	// MiB. Longer requests are split, and their slices spread over the
	// connections; so are requests of more than 128 KiB where there are
	// several devices.
	SliceSize int
	// Pending is the maximum number of requests of a peer that are submitted
	// and not done; 0 means 65536. Batch.Submit waits while there are more, and
	// calls get room in their order. A larger batch waits until no other is
	// pending.
	Pending int
	// Mailbox is the maximum number of notifications of a peer that wait for
	// Peer.Receive; 0 means 1024. The peer's further ones wait at the peer.
	Mailbox int
	// Offers is the maximum number of regions that a peer may offer; 0 means
	// 65536. A peer that offers more is closed.
	Offers int
	// CacheSize is the maximum number of bytes that the engine keeps
	// registered because a batch has used them, not because of Register; 0
	// means 256 MiB. Registered memory is locked, on each device.
	CacheSize int
	// RetryTimeout is how long a request that failed is repeated over other
	// or new connections, how long requests and Dial wait if there is no
	// connection, and how long a session lasts without a control connection;
	// 0 means 10 s. It also limits how long Region.Close waits for peers.
	RetryTimeout time.Duration
	// Logger, if not nil, gets a record when a peer, a connection or a device
	// comes, goes or comes back, and when the engine refuses a connection. It
	// must not call the engine.
	Logger *slog.Logger
	// Publish makes the engine tell other processes of the same user its
	// counts, and the addresses of its peers: Engines asks it, as does verbena
	// stat -t. Until Close, the engine listens on a Unix socket in Linux's
	// abstract namespace, which has no file.
	Publish bool
}

// withDefaults returns the config with its defaults.
func (c Config) withDefaults() (Config, error) {
	for name, n := range map[string]int{
		"Connections": c.Connections, "SliceSize": c.SliceSize, "Pending": c.Pending, "Mailbox": c.Mailbox, "Offers": c.Offers,
		"CacheSize": c.CacheSize, "RetryTimeout": int(c.RetryTimeout),
	} {
		if n < 0 {
			return c, cerr.Refuse(opNew, "", "Config.%s is %d; it must not be negative", name, n)
		}
	}
	c.Connections = cmp.Or(c.Connections, 1)
	c.SliceSize = cmp.Or(c.SliceSize, 1<<20)
	c.Pending = cmp.Or(c.Pending, 65536)
	c.Mailbox = cmp.Or(c.Mailbox, 1024)
	c.Offers = cmp.Or(c.Offers, 65536)
	c.CacheSize = cmp.Or(c.CacheSize, 256<<20)
	c.RetryTimeout = cmp.Or(c.RetryTimeout, 10*time.Second)
	if c.Logger == nil {
		c.Logger = slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelError + 1}))
	}
	switch {
	case c.Connections > 64:
		return c, cerr.Refuse(opNew, "", "Config.Connections is %d; at most 64 are possible", c.Connections)
	case c.SliceSize > 1<<30:
		return c, cerr.Refuse(opNew, "", "Config.SliceSize is %d; at most 1 GiB is possible", c.SliceSize)
	case c.Mailbox > 1<<20:
		return c, cerr.Refuse(opNew, "", "Config.Mailbox is %d; at most 1048576 are possible", c.Mailbox)
	}
	return c, nil
}

const opNew = "transfer.New"

// An Engine has registered memory and peers. Its methods may be called
// concurrently. All peers of an engine are one trust group: their connections
// share a protection domain on each device.
type Engine struct {
	config      Config
	incarnation uint64
	devices     []*device
	nearer      map[int]*nearer // by the node of memory; nil if no device is
	cache       *cache
	pauses      pauses

	closing sync.Mutex     // held by Close
	hide    func()         // ends what publish began, if it is not nil; guarded by closing
	adding  sync.WaitGroup // calls that make regions

	mu        sync.Mutex
	closed    bool
	regions   map[uint64]*Region // those that have a name, by their IDs
	names     map[string]*Region
	places    index                // of those in regions, but for memory that the program cannot access
	all       map[*Region]struct{} // all that are registered
	nextID    uint64
	peers     map[*Peer]struct{}
	sessions  map[token]*session // those that peers have dialed
	listeners map[*Listener]struct{}
}

// New returns an engine that uses the devices of the config. It fails with an
// error matching ibverbs.ErrNoDevice if there is no device, or not one of the
// given names. It does not block.
func New(config Config) (*Engine, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	e := &Engine{
		config: config, incarnation: rand.Uint64() | 1, regions: map[uint64]*Region{}, names: map[string]*Region{}, all: map[*Region]struct{}{},
		peers: map[*Peer]struct{}{}, sessions: map[token]*session{}, listeners: map[*Listener]struct{}{},
	}
	e.cache = newCache(int64(config.CacheSize), e.registerCached, func(r *Region) error { return e.deregister(r) })
	if e.devices, err = findDevices(config.Devices); err != nil {
		return nil, err
	}
	e.nearer = findNearer(os.DirFS("/sys"), e.devices)
	if config.Publish {
		if e.hide, err = e.publish(); err != nil {
			return nil, err
		}
	}
	for _, d := range e.devices {
		d.mu.Lock()
		err := e.openDomain(d)
		d.mu.Unlock()
		if err != nil {
			return nil, errors.Join(err, e.Close())
		}
	}
	return e, nil
}

// Devices returns the names of the engine's devices.
func (e *Engine) Devices() []string {
	if e == nil {
		return nil
	}
	var names []string
	for _, d := range e.devices {
		names = append(names, d.name)
	}
	return names
}

// Close closes the engine, its listeners, its peers, and its regions. Requests
// that are not done fail with an error matching os.ErrClosed. Close tells the
// peers, and waits for up to a second for each to know. It may be called more
// than once.
func (e *Engine) Close() error {
	if e == nil || e.config.SliceSize == 0 {
		return nil
	}
	e.closing.Lock()
	defer e.closing.Unlock()
	if e.hide != nil {
		e.hide()
	}
	e.mu.Lock()
	e.closed = true
	listeners, peers := keys(e.listeners), keys(e.peers)
	e.mu.Unlock()
	var errs []error
	for _, ln := range listeners {
		errs = append(errs, ln.Close())
	}
	var closing sync.WaitGroup
	for _, p := range peers {
		closing.Go(func() { _ = p.Close() })
	}
	closing.Wait()
	e.adding.Wait()
	errs = append(errs, e.cache.close())
	e.mu.Lock()
	regions := keys(e.all)
	e.mu.Unlock()
	for _, r := range regions {
		errs = append(errs, r.Close())
	}
	for _, d := range e.devices {
		errs = append(errs, e.closeDevice(d))
	}
	return errors.Join(errs...)
}

func keys[K comparable, V any](m map[K]V) []K {
	all := make([]K, 0, len(m))
	for k := range m {
		all = append(all, k)
	}
	return all
}

// check returns an error if the engine is nil or closed.
func (e *Engine) check(op string) error {
	if e == nil || e.config.SliceSize == 0 {
		return cerr.Refuse(op, "", "the Engine is nil or was not made by New")
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return errEngineClosed
	}
	return nil
}

// checkContext returns an error if ctx is nil.
func checkContext(op string, ctx context.Context) error {
	if ctx == nil {
		return cerr.Nil(op, "ctx")
	}
	return nil
}

var errEngineClosed = fmt.Errorf("transfer: the engine is closed: %w", os.ErrClosed)

// log writes a record.
func (e *Engine) log(level slog.Level, message string, args ...any) {
	e.config.Logger.Log(context.Background(), level, message, args...)
}

// addresses returns the addresses of the engine's devices with the given port,
// or only the given one if it is specified.
func (e *Engine) addresses(at netip.AddrPort) []address {
	var all []address
	for _, d := range e.devices {
		for _, ip := range d.addresses() {
			if (at.Addr().IsUnspecified() || at.Addr() == ip) && len(all) < maxAddresses {
				all = append(all, address{uint8(d.index), netip.AddrPortFrom(ip, at.Port())})
			}
		}
	}
	return all
}
