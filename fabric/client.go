// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/object"
)

// The defaults of a Config.
const (
	DefaultTimeout  = time.Second
	DefaultRetries  = 2
	DefaultInFlight = 8
)

// Config configures a [Client]. The zero value uses the first active port of
// the machine.
type Config struct {
	Device   string        // name of the RDMA device, such as mlx5_0; empty means the first with an active InfiniBand port
	Port     int           // port of the device; 0 means the first that is active
	Timeout  time.Duration // time to wait for an answer each time that a request is sent; 0 means DefaultTimeout
	Retries  int           // number of times that a request is sent again if it is not answered or the node is busy; 0 means DefaultRetries, a negative value means never
	InFlight int           // maximum number of requests that wait for an answer at a time; 0 means DefaultInFlight
	MKey     uint64        // M_Key of the fabric's ports, if the subnet manager protects them
}

// maxInFlight is the maximum of Config.InFlight. Management datagrams have no
// flow control: the ports of a fabric drop those that come too fast.
const maxInFlight = 1024

// The bounds of Config.Timeout.
const (
	minTimeout = time.Millisecond
	maxTimeout = time.Hour
)

func (config *Config) check() error {
	switch {
	case strings.ContainsRune(config.Device, 0): // at which C's text would end
		return cerr.Invalid("the name of the device contains a zero byte")
	case config.Port < 0 || config.Port > maxPort:
		return cerr.Invalid("port is %d, want 0 to %d", config.Port, maxPort)
	case config.Timeout != 0 && (config.Timeout < minTimeout || config.Timeout > maxTimeout):
		return cerr.Invalid("timeout is %v, want %v to %v", config.Timeout, minTimeout, maxTimeout)
	case config.InFlight < 0 || config.InFlight > maxInFlight:
		return cerr.Invalid("requests in flight are %d, want 0 to %d", config.InFlight, maxInFlight)
	}
	if config.Timeout == 0 {
		config.Timeout = DefaultTimeout
	}
	if config.Retries == 0 {
		config.Retries = DefaultRetries
	}
	if config.InFlight == 0 {
		config.InFlight = DefaultInFlight
	}
	config.Retries = max(config.Retries, 0)
	return nil
}

// transport sends datagrams from a local port, and receives the datagrams that
// come to the port.
type transport interface {
	// send sends a datagram. It does not wait for an answer.
	send(p *packet) error
	// receive waits up to receiveTimeout for a datagram, and stores it in
	// p. It returns false if none has come.
	receive(p *packet) (bool, error)
	close()
}

// Client asks the nodes of a fabric through a local port. Its methods can be
// called concurrently. A call returns when its context ends.
type Client struct {
	object    object.Object
	config    Config
	transport transport
	slots     chan struct{} // holds a token for each request in flight

	mu      sync.Mutex
	pending map[uint32]*exchange
	reading chan struct{} // closed when the goroutine that receives ends; nil if there is no such goroutine
	closing chan struct{} // closed when Close has been called
}

// exchange is a request in flight.
type exchange struct {
	request *request
	done    chan result // gets one result; has room for it, so that the sender does not wait
}

// result is the answer to a request, or the error that ended the wait for it.
type result struct {
	mad *mad
	err error
}

// Open opens a local port. It needs access to /dev/infiniband/umad*, which only
// root has on most machines. The caller closes the Client.
func Open(config Config) (*Client, error) {
	if err := config.check(); err != nil {
		return nil, cerr.Argument("fabric.Open", config.name(), err)
	}
	t, err := openUmad(&config)
	if err != nil {
		return nil, err
	}
	return newClient(config, t), nil
}

// name returns what the local port is called in errors.
func (config *Config) name() string {
	switch {
	case config.Port == 0:
		return cmp.Or(config.Device, "fabric")
	case config.Device == "":
		return fmt.Sprintf("fabric at port %d", config.Port)
	}
	return fmt.Sprintf("%s port %d", config.Device, config.Port)
}

// newClient returns a client with a checked configuration.
func newClient(config Config, t transport) *Client {
	c := &Client{
		config: config, transport: t, slots: make(chan struct{}, config.InFlight),
		pending: map[uint32]*exchange{}, closing: make(chan struct{}),
	}
	c.object.Init(config.name())
	return c
}

// Close closes the port. Calls that wait for an answer fail with an error
// matching os.ErrClosed. Closing again does nothing.
func (c *Client) Close() error {
	if c == nil {
		return (*object.Object)(nil).Close(nil, nil)
	}
	return c.object.Close(c.interrupt, func() error {
		c.mu.Lock()
		reading := c.reading
		c.mu.Unlock()
		if reading != nil {
			<-reading
		}
		c.transport.close()
		return nil
	})
}

// interrupt ends the requests in flight.
func (c *Client) interrupt() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.closing)
	c.fail(&portError{os.ErrClosed})
}

// fail ends all requests in flight. The caller holds mu.
func (c *Client) fail(err error) {
	for tid, x := range c.pending {
		delete(c.pending, tid)
		x.done <- result{err: err}
	}
}

// get asks the node at an address for an attribute of subnet management.
func (c *Client) get(ctx context.Context, what attributeID, to Address, modifier uint32) (*attribute, error) {
	if err := c.use(ctx, what.name); err != nil {
		return nil, err
	}
	defer c.object.Done()
	r := &request{attribute: what, to: to, modifier: modifier, mkey: c.config.MKey}
	answer, err := c.ask(ctx, r)
	if err != nil {
		return nil, &Error{Op: what.name, Address: to, Port: portOf(r), Err: err}
	}
	return answer, nil
}

// portOf returns the port number that a request asks for, which its error
// names, or 0.
func portOf(r *request) int {
	if r.attribute == attrPortInfo {
		return int(r.modifier)
	}
	return 0
}

// perf asks the node with a LID for an attribute of performance management, or
// sets it.
func (c *Client) perf(ctx context.Context, what attributeID, lid LID, port int, data *attribute, set bool) (*attribute, error) {
	op := what.name
	if set {
		op = "reset " + op
	}
	switch {
	case !lid.IsUnicast():
		return nil, c.refuse(op, AtLID(lid), "LID %d is not one that a port can have, which are 1 to %d", lid, firstMulticast-1)
	case port < 0 || port > AllPorts:
		return nil, c.refuse(op, AtLID(lid), "port is %d, want 0 to %d", port, AllPorts)
	}
	if err := c.use(ctx, op); err != nil {
		return nil, err
	}
	defer c.object.Done()
	answer, err := c.ask(ctx, &request{attribute: what, to: AtLID(lid), set: set, data: *data})
	if err != nil {
		return nil, &Error{Op: op, Address: AtLID(lid), Port: port, Err: err}
	}
	return answer, nil
}

// use delays Close until the caller calls c.object.Done. It fails if the client
// or ctx is nil, or if the client is closed.
func (c *Client) use(ctx context.Context, op string) error {
	if c == nil {
		return cerr.Nil(op, "the client")
	}
	if ctx == nil {
		return cerr.Nil(op, "ctx")
	}
	return c.object.Use()
}

// grace is how long a request waits after its timeout. Usually, the kernel
// reports in this time that the request was not answered.
const grace = time.Second

// ask sends a request and returns the data of the answer. It sends the request
// again if it is not answered or the node is busy, up to Config.Retries times.
// A busy node answers at once, so ask waits for Config.Timeout before it asks
// such a node again.
func (c *Client) ask(ctx context.Context, r *request) (*attribute, error) {
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	for retries := 0; ; retries++ {
		answer, err := c.attempt(ctx, r)
		if err == nil {
			err = status(answer)
		}
		switch {
		case err == nil:
			return answer.attribute(r.attribute.perf), nil
		case errors.Is(err, ErrNoAnswer), errors.Is(err, StatusBusy):
			if retries < c.config.Retries {
				if errors.Is(err, StatusBusy) {
					c.pause(ctx)
				}
				continue
			}
			return nil, fmt.Errorf("%w (requests sent: %d, timeout %v)", err, retries+1, c.config.Timeout)
		}
		return nil, err
	}
}

// pause waits for Config.Timeout, or until ctx ends or Close is called.
func (c *Client) pause(ctx context.Context) {
	timer := time.NewTimer(c.config.Timeout)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-c.closing:
	}
}

// status returns the status of a response as an error, or nil if the node has
// reported no error.
func status(m *mad) error {
	if s := m.status(); s != 0 {
		return s
	}
	return nil
}

// attempt sends a request once, and waits for the answer.
func (c *Client) attempt(ctx context.Context, r *request) (*mad, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	x := &exchange{request: r, done: make(chan result, 1)}
	tid, err := c.register(x)
	if err != nil {
		return nil, err
	}
	defer c.forget(tid)
	p := &packet{mad: *r.marshal(tid), lid: r.to.lid, qp: 1, timeout: c.config.Timeout}
	if !r.attribute.perf {
		p.qp = 0
	}
	if r.class() == classDirected {
		p.lid = permissive
	}
	if err := c.transport.send(p); err != nil {
		return nil, &portError{err}
	}
	timer := time.NewTimer(c.config.Timeout + grace)
	defer timer.Stop()
	select {
	case result := <-x.done:
		return result.mad, result.err
	case <-timer.C:
		return nil, ErrNoAnswer
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// register adds a request in flight, and starts the goroutine that receives if
// there is none. The transaction ID that it returns is random, so that other
// hosts cannot guess it.
func (c *Client) register(x *exchange) (tid uint32, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.closing:
		return 0, &portError{os.ErrClosed}
	default:
	}
	for {
		tid = rand.Uint32()
		if _, used := c.pending[tid]; !used && tid != 0 {
			break
		}
	}
	c.pending[tid] = x
	if c.reading == nil {
		c.reading = make(chan struct{})
		go c.read(c.reading)
	}
	return tid, nil
}

// forget removes a request from those in flight.
func (c *Client) forget(tid uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pending, tid)
}

// read is the goroutine that receives. It passes datagrams to the requests that
// they answer, and ends when no requests are in flight.
func (c *Client) read(ended chan<- struct{}) {
	defer close(ended)
	for c.wanted() {
		var p packet
		ok, err := c.transport.receive(&p)
		if err != nil {
			c.mu.Lock()
			c.fail(&portError{err})
			c.mu.Unlock()
			continue
		}
		if ok {
			c.deliver(&p)
		}
	}
}

// wanted reports whether there are requests in flight. If there are none, the
// goroutine that receives must end; register starts another one for the next
// request.
func (c *Client) wanted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.pending) == 0 {
		c.reading = nil
		return false
	}
	return true
}

// deliver gives a datagram to the request that it belongs to. It ignores a
// datagram that answers no request in flight, which may be late or forged.
func (c *Client) deliver(p *packet) {
	c.mu.Lock()
	defer c.mu.Unlock()
	tid := p.mad.tid()
	x := c.pending[tid]
	switch {
	case x == nil || p.short:
		return
	case p.failed != nil:
		x.done <- result{err: p.failed}
	case p.mad.answers(x.request):
		x.done <- result{mad: &p.mad}
	default:
		return
	}
	delete(c.pending, tid)
}
