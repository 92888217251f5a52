// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"context"
	"crypto/hmac"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/cmd/verbena/internal/perf/measure"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/link"
)

// Agent measures on a host for a coordinator. It serves one coordinator at a
// time. Others are told that it is busy.
//
// It trusts ends that know the token: they can make it connect to any TCP
// address, and use its devices and the network within the limits of a Spec.
// Other ends can only keep its port busy.
type Agent struct {
	token   Token
	tell    func(event string)
	refused program.Recurring
	work    work

	mu      sync.Mutex
	busy    bool     // whether there is a coordinator
	pending *pending // the measurement that waits for its client; nil if there is none
}

// work is what an Agent does with its host's devices.
type work struct {
	ports   func() ([]Port, error)
	measure func(ctx context.Context, conn net.Conn, isClient bool, spec *Spec) (measure.Row, error)
}

// pending is a measurement that waits for its client.
type pending struct {
	id   string
	conn chan net.Conn
	done chan struct{} // closed when it does not wait any more
}

// NewAgent returns an Agent that measures with the named devices, or with all
// if there are no names. tell is called for each event that a person may want
// to know.
func NewAgent(token Token, devices []string, tell func(event string)) *Agent {
	return &Agent{token: token, tell: tell, work: work{func() ([]Port, error) { return ports(devices) }, measureOver}}
}

// Check returns the reason why the agent cannot measure on this host, so that
// it can be reported before a coordinator comes.
func (a *Agent) Check() error {
	_, err := a.work.ports()
	return err
}

// ports returns the ports of the named devices, or of all.
func ports(devices []string) (all []Port, err error) {
	entries, err := ibverbs.Devices()
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if len(devices) > 0 && !slices.Contains(devices, e.Name) {
			continue
		}
		info, err := ibverbs.QueryDeviceInfo(e.Name)
		if err != nil {
			return nil, err
		}
		for _, p := range info.Ports {
			all = append(all, Port{e.Name, p.Port, p.State == link.Active})
		}
	}
	for _, name := range devices {
		if !slices.ContainsFunc(all, func(p Port) bool { return p.Device == name }) {
			return nil, fmt.Errorf("there is no device %s", name)
		}
	}
	if len(all) == 0 {
		return nil, ibverbs.ErrNoDevice
	}
	return all, nil
}

// measureOver measures with the peer at the other end of a connection, which it
// closes.
func measureOver(ctx context.Context, conn net.Conn, isClient bool, spec *Spec) (row measure.Row, err error) {
	t, err := spec.test()
	if err != nil {
		return row, errors.Join(err, conn.Close())
	}
	where := measure.Where{Device: spec.Device, Port: spec.Port}
	err = measure.RunOver(ctx, conn, isClient, t, where, measure.Tell{Row: func(r measure.Row) { row = r }})
	return row, err
}

// mostGreeted is the maximum number of connections whose other ends have not
// proved that they know the token. More are closed at once.
const mostGreeted = 64

// Serve serves the coordinators that connect to a listener, which it closes:
// as many as count says, or if count is 0 until ctx ends. Serve then returns
// nil, when all measurements have ended.
func (a *Agent) Serve(ctx context.Context, ln net.Listener, count int) error {
	ctx, cancel := context.WithCancel(ctx)
	context.AfterFunc(ctx, func() { _ = ln.Close() })
	var conns sync.WaitGroup
	defer conns.Wait()
	defer cancel()
	served := make(chan struct{})
	conns.Go(func() {
		for n := 0; count == 0 || n < count; n++ {
			select {
			case <-served:
			case <-ctx.Done():
				return
			}
		}
		cancel()
	})
	greeted := make(chan struct{}, mostGreeted)
	for {
		conn, err := ln.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		select {
		case greeted <- struct{}{}:
		default:
			_ = conn.Close()
			continue
		}
		conns.Go(func() {
			l, role, err := a.greet(ctx, conn)
			<-greeted
			switch {
			case err != nil:
				a.refused.Tell(a.tell, fmt.Sprintf("refused %v: %v", conn.RemoteAddr(), err))
			case role == coordinating:
				a.coordinate(ctx, l)
				select {
				case served <- struct{}{}:
				case <-ctx.Done():
				}
			}
		})
	}
}

// greet finds out what a connection is for, and gives it to the measurement
// that waits for it, unless it is a coordinator's. If it fails, it closes the
// connection.
func (a *Agent) greet(ctx context.Context, conn net.Conn) (l *lines, role string, err error) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetKeepAliveConfig(keepAlive) // an old system may not know it
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	l = newLines(conn)
	defer func() {
		if !stop() {
			err = errors.Join(err, context.Cause(ctx))
		}
		if err != nil {
			_ = conn.Close()
		}
	}()
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return nil, "", err
	}
	challenge := newID()
	if err := l.send(greeting{protocol, challenge}); err != nil {
		return nil, "", err
	}
	var h hello
	if err := l.receive(&h); err != nil {
		return nil, "", err
	}
	if !hmac.Equal([]byte(h.Proof), []byte(a.token.proof(challenge, h.Role, h.Measurement))) {
		err := fmt.Errorf("the ends have different tokens in %s", TokenVariable)
		return nil, "", errors.Join(err, l.send(welcome{Error: err.Error()}))
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return nil, "", err
	}
	switch h.Role {
	case coordinating:
		return l, h.Role, a.sit(l)
	case measuring:
		return l, h.Role, a.join(l, h.Measurement)
	}
	err = fmt.Errorf("there is no role %q", h.Role)
	return nil, "", errors.Join(err, l.send(welcome{Error: err.Error()}))
}

// sit welcomes a coordinator, if there is no other.
func (a *Agent) sit(l *lines) error {
	a.mu.Lock()
	busy := a.busy
	a.busy = true
	a.mu.Unlock()
	if busy {
		return errors.Join(errBusy, l.send(welcome{Busy: true}))
	}
	var w welcome
	all, err := a.work.ports()
	if err != nil {
		w.Error = err.Error()
	}
	w.Ports = all
	if err = errors.Join(err, l.send(w)); err != nil {
		a.rise()
	}
	return err
}

// rise lets another coordinator come.
func (a *Agent) rise() {
	a.mu.Lock()
	a.busy = false
	a.mu.Unlock()
}

// join gives a connection to the measurement that waits for it.
func (a *Agent) join(l *lines, measurement string) error {
	a.mu.Lock()
	p := a.pending
	a.mu.Unlock()
	if p == nil || p.id != measurement {
		err := errors.New("the agent waits for no such measurement")
		return errors.Join(err, l.send(welcome{Error: err.Error()}))
	}
	if err := errors.Join(l.send(welcome{}), l.SetDeadline(time.Time{})); err != nil {
		return err
	}
	select {
	case p.conn <- l.Conn:
		return nil
	case <-p.done:
		return errors.New("the measurement has ended, or has another client")
	}
}

// coordinate does what a coordinator asks for, until the connection or ctx
// ends.
func (a *Agent) coordinate(ctx context.Context, l *lines) {
	defer a.rise()
	a.refused.Reset()
	a.tell(fmt.Sprintf("%v coordinates", l.RemoteAddr()))
	ctx, cancel := context.WithCancel(ctx)
	context.AfterFunc(ctx, func() { _ = l.Close() })
	s := &session{agent: a, lines: l}
	err := s.serve(ctx)
	cancel()
	s.running.Wait()
	if errors.Is(err, io.EOF) {
		a.tell(fmt.Sprintf("%v has ended after %d measurements", l.RemoteAddr(), s.done))
		return
	}
	a.tell(fmt.Sprintf("%v has ended after %d measurements: %v", l.RemoteAddr(), s.done, err))
}

// session is the service for a coordinator.
type session struct {
	*lines
	agent   *Agent
	running sync.WaitGroup
	done    int // number of measurements that were begun

	mu      sync.Mutex
	current string // ID of the measurement in progress; empty if there is none
	stop    context.CancelCauseFunc
}

// errStopped is the cause of the end of a measurement whose other end failed.
var errStopped = errors.New("the coordinator has stopped the measurement")

// serve reads requests.
func (s *session) serve(ctx context.Context) error {
	for {
		var q request
		if err := s.receive(&q); err != nil {
			return err
		}
		s.mu.Lock()
		switch {
		case q.Stop:
			if s.current == q.ID && s.stop != nil {
				s.stop(errStopped)
			}
		case s.current != "" || q.ID == "" || q.Spec == nil:
			s.mu.Unlock()
			return errors.New("the coordinator asks for a second measurement, or for none")
		default:
			limit := time.Duration(min(max(q.Limit, 1), maxLimit.Milliseconds())) * time.Millisecond
			ctx, stop := context.WithCancelCause(ctx)
			ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("it took longer than %v", limit))
			s.current, s.stop = q.ID, stop
			s.done++
			s.running.Go(func() {
				s.run(ctx, q)
				cancel()
				stop(nil)
			})
		}
		s.mu.Unlock()
	}
}

// run measures and sends the answer.
func (s *session) run(ctx context.Context, q request) {
	reply := answer{ID: q.ID}
	conn, err := s.meet(ctx, q)
	if err == nil {
		reply.Met = true
		var row measure.Row
		row, err = s.agent.work.measure(ctx, conn, q.Peer != "", q.Spec)
		reply.Row = &row
	}
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		reply.Row, reply.Error = nil, err.Error()
	}
	s.mu.Lock() // the coordinator may ask for the next measurement when it has the answer
	s.current, s.stop = "", nil
	s.mu.Unlock()
	if s.send(reply) != nil {
		_ = s.Close() // which ends the session
	}
}

// meet connects to the peer, or waits for the peer to connect.
func (s *session) meet(ctx context.Context, q request) (net.Conn, error) {
	if err := q.Spec.Check(); err != nil {
		return nil, err
	}
	if q.Peer == "" {
		return s.accept(ctx, q.ID)
	}
	l, _, err := call(ctx, q.Peer, s.agent.token, measuring, q.ID)
	if err != nil {
		return nil, err
	}
	return l.Conn, nil
}

// accept waits for the client of a measurement.
func (s *session) accept(ctx context.Context, id string) (net.Conn, error) {
	p := &pending{id, make(chan net.Conn), make(chan struct{})}
	s.agent.expect(p)
	defer close(p.done)
	defer s.agent.expect(nil)
	if err := s.send(answer{ID: id, Ready: true}); err != nil {
		return nil, err
	}
	select {
	case conn := <-p.conn:
		return conn, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// expect sets the measurement that waits for its client.
func (a *Agent) expect(p *pending) {
	a.mu.Lock()
	a.pending = p
	a.mu.Unlock()
}
