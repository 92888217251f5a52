// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/cmd/verbena/internal/perf/measure"
	"github.com/verbena-go/verbena/ibverbs"
)

// The messages are lines of JSON:
//
//	agent                      coordinator, or another agent
//	greeting           ->
//	                   <-      hello
//	welcome            ->
//	                   <-      request      (a coordinator only)
//	answer             ->
//
// After the welcome, the connection between two agents is theirs to measure.
// The client, which has called, speaks first.

// DefaultPort is the TCP port of an agent, which is that of perftest's
// programs.
const DefaultPort = 18515

// protocol is the version of the messages.
const protocol = 1

// greeting is the first message of an agent.
type greeting struct {
	Version   int    `json:"verbena_agent"`
	Challenge string `json:"challenge"`
}

// The roles of an end that connects to an agent.
const (
	coordinating = "coordinator"
	measuring    = "peer" // another agent, the client of a measurement
)

// hello answers a greeting.
type hello struct {
	Role        string `json:"role"`
	Measurement string `json:"measurement,omitempty"` // of a peer
	Proof       string `json:"proof"`                 // that the end knows the token
}

// welcome answers a hello. The agent closes the connection after an error.
type welcome struct {
	Error string `json:"error,omitempty"`
	Busy  bool   `json:"busy,omitempty"`  // whether the agent serves another coordinator
	Ports []Port `json:"ports,omitempty"` // of the agent's devices, for a coordinator
}

// Port is a port of a host's device.
type Port struct {
	Device string `json:"device"`
	Port   int    `json:"port"`
	Active bool   `json:"active"`
}

// request asks an agent to measure, or to end a measurement.
type request struct {
	ID    string `json:"id"` // of the measurement
	Stop  bool   `json:"stop,omitempty"`
	Peer  string `json:"peer,omitempty"` // TCP address of the server's agent; empty asks to be the server
	Spec  *Spec  `json:"spec,omitempty"`
	Limit int64  `json:"limit_ms,omitempty"` // time limit
}

// answer is a message about a measurement.
type answer struct {
	ID    string       `json:"id"`
	Ready bool         `json:"ready,omitempty"` // the server waits for the client
	Row   *measure.Row `json:"row,omitempty"`
	Error string       `json:"error,omitempty"`
	Met   bool         `json:"met,omitempty"` // whether the agents had a connection with each other
}

// Spec describes a measurement. It is what agents get of a measure.Test with
// queue pairs of type RC and one size.
type Spec struct {
	Device     string `json:"device"`
	Port       int    `json:"port"`
	Test       string `json:"test"` // such as send_lat
	Size       int    `json:"size"`
	Iterations int    `json:"iterations"`
	Duration   int    `json:"duration_s"` // instead of a number of iterations, if not 0
	QPs        int    `json:"queue_pairs"`
	Depth      int    `json:"depth"`
	List       int    `json:"list"`
	Moderation int    `json:"moderation"`
	Receives   int    `json:"receives"`
	Inline     int    `json:"inline"`
	FitRecv    bool   `json:"fit_receives"`
	FitInline  bool   `json:"fit_inline"`
	Timeout    int64  `json:"timeout_ns"`
	Events     bool   `json:"events"`
	Netpoll    bool   `json:"netpoll"`
}

// NewSpec returns the description of a test.
func NewSpec(t *measure.Test) Spec {
	s := Spec{
		Test: t.Name(), Size: t.Sizes[0], Iterations: t.Iterations, Duration: int(t.Duration.Seconds()), QPs: t.QPs, Depth: t.Depth, List: t.List,
		Moderation: t.Moderation, Receives: t.Receives, Inline: t.Inline, FitRecv: t.Fit.Receives, FitInline: t.Fit.Inline,
		Timeout: int64(t.Timeout), Events: t.Events, Netpoll: t.Netpoll,
	}
	if s.Duration > 0 {
		s.Iterations = 0
	}
	return s
}

// The limits of a Spec. They bound the memory and the time that a coordinator
// can make an agent use.
const (
	maxSize     = 8 << 20       // bytes
	maxMessages = 1 << 24       // messages, on all queue pairs together
	maxDuration = 3600          // seconds
	maxLimit    = 2 * time.Hour // time limit of a measurement
)

// Check returns an error if an agent cannot do the measurement.
func (s *Spec) Check() error { _, err := s.test(); return err }

// test returns the test.
func (s *Spec) test() (*measure.Test, error) {
	op, bandwidth, ok := measure.Named(s.Test)
	if !ok {
		return nil, fmt.Errorf("no such test: %q", s.Test)
	}
	for _, v := range []struct {
		name             string
		value, low, high int
	}{
		{"bytes", s.Size, 1, maxSize},
		{"queue pairs", s.QPs, 1, measure.MaxQPs},
		{"seconds", s.Duration, 0, maxDuration},
		{"depth", s.Depth, 1, 1 << 15},
		{"post list", s.List, 1, 1 << 10},
		{"moderation", s.Moderation, 1, 1 << 15},
		{"receives", s.Receives, 1, 1 << 15},
		{"inline", s.Inline, 0, 1 << 12},
		{"port", s.Port, 0, 255},
	} {
		if v.value < v.low || v.value > v.high {
			return nil, fmt.Errorf("%s: %d is not from %d to %d", v.name, v.value, v.low, v.high)
		}
	}
	t := &measure.Test{
		Op: op, Transport: ibverbs.QPTypeRC, Bandwidth: bandwidth, Sizes: []int{s.Size}, QPs: s.QPs, Iterations: s.Iterations,
		Duration: time.Duration(s.Duration) * time.Second, Depth: s.Depth, List: s.List, Moderation: s.Moderation, Receives: s.Receives,
		Timeout: time.Duration(s.Timeout), Inline: s.Inline, Fit: measure.Fit{Receives: s.FitRecv, Inline: s.FitInline}, Events: s.Events, Netpoll: s.Netpoll,
	}
	switch {
	case s.Timeout < 0:
		return nil, fmt.Errorf("timeout: %v", t.Timeout)
	case t.Duration > 0:
		t.Iterations = measure.Endless
	case s.Iterations < 5 || s.Iterations > maxMessages/s.QPs:
		return nil, fmt.Errorf("messages: %d is not from 5 to %d", s.Iterations, maxMessages/s.QPs)
	}
	return t, t.Check()
}

// maxLine is the maximum number of bytes in a line.
const maxLine = 64 << 10

// patience is how long an end may take for the greeting, and to take what is
// written to it.
const patience = 10 * time.Second

// lines sends and receives messages. Several goroutines may send.
type lines struct {
	net.Conn
	in *bufio.Reader
	mu sync.Mutex
}

func newLines(conn net.Conn) *lines {
	return &lines{Conn: conn, in: bufio.NewReaderSize(conn, maxLine)}
}

// receive reads a message into value.
func (l *lines) receive(value any) error {
	line, err := l.in.ReadSlice('\n')
	if err != nil {
		if errors.Is(err, bufio.ErrBufferFull) {
			err = fmt.Errorf("a message is longer than %d bytes", maxLine)
		}
		return err
	}
	if err := json.Unmarshal(line, value); err != nil {
		return fmt.Errorf("a message is not what was expected: %w", err)
	}
	return nil
}

// send sends a message. It fails if the other end does not take it in time.
func (l *lines) send(value any) error {
	line, err := json.Marshal(value)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	_, err = l.Write(append(line, '\n'))
	return err
}

// errBusy reports that an agent serves another coordinator.
var errBusy = errors.New("the agent serves another coordinator")

// call connects to an agent in a role. The connection has no deadline.
func call(ctx context.Context, address string, token Token, role, measurement string) (_ *lines, _ []Port, err error) {
	dialer := net.Dialer{KeepAliveConfig: keepAlive}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, nil, err
	}
	l := newLines(conn)
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer func() {
		if !stop() {
			err = context.Cause(ctx)
		}
		if err != nil {
			_ = conn.Close()
		}
	}()
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return nil, nil, err
	}
	var g greeting
	if err := l.receive(&g); err != nil {
		return nil, nil, fmt.Errorf("%s is not an agent that answers: %w", address, err)
	}
	if g.Version != protocol {
		return nil, nil, fmt.Errorf("the agent at %s has version %d of the protocol, not %d", address, g.Version, protocol)
	}
	if err := l.send(hello{role, measurement, token.proof(g.Challenge, role, measurement)}); err != nil {
		return nil, nil, err
	}
	var w welcome
	if err := l.receive(&w); err != nil {
		return nil, nil, fmt.Errorf("%s is not an agent that answers: %w", address, err)
	}
	switch {
	case w.Busy:
		return nil, nil, errBusy
	case w.Error != "":
		return nil, nil, errors.New(program.Printable(w.Error))
	}
	for i := range w.Ports {
		w.Ports[i].Device = program.Printable(w.Ports[i].Device)
	}
	return l, w.Ports, conn.SetDeadline(time.Time{})
}

// keepAlive makes an end notice that the other end's host is gone.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 5 * time.Second, Count: 3}
