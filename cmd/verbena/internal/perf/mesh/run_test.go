// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/cmd/verbena/internal/perf/measure"
	"github.com/verbena-go/verbena/ibverbs"
)

// secret is the token of the tests.
var secret = Token("0123456789abcdef")

// long is how long the tests wait for an agent that answers.
const long = 5 * time.Minute

// measureFunc is the part of an agent's work that takes time.
type measureFunc func(ctx context.Context, conn net.Conn, isClient bool, spec *Spec) (measure.Row, error)

// meet is a measurement without a device: both ends wait for each other.
func meet(ctx context.Context, conn net.Conn, isClient bool, spec *Spec) (measure.Row, error) {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	b := make([]byte, 1)
	read := func() error { _, err := io.ReadFull(conn, b); return err }
	write := func() error { _, err := conn.Write(b); return err }
	steps := []func() error{read, write}
	if isClient { // which speaks first
		steps = []func() error{write, read}
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return measure.Row{}, err
		}
	}
	return measure.Row{Typical: 2, P99: 3, Gigabits: 100}, nil
}

// agent is an agent of a test.
type agent struct {
	address string
	end     context.CancelFunc
	ended   chan struct{}
	err     error // of Serve, once it has ended
	events  *log
}

// log has the events of an agent.
type log struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *log) add(event string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.WriteString(event + "\n")
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

var onePort = []Port{{"soft0", 1, true}}

// startAgent starts an agent, which serves as many coordinators as count says.
func startAgent(t *testing.T, count int, ports []Port, do measureFunc) *agent {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	a := &agent{ln.Addr().String(), cancel, make(chan struct{}), nil, &log{}}
	served := &Agent{token: secret, tell: a.events.add, work: work{func() ([]Port, error) { return ports, nil }, do}}
	go func() {
		defer close(a.ended)
		a.err = served.Serve(ctx, ln, count)
	}()
	t.Cleanup(func() {
		cancel()
		<-a.ended
		require.NoError(t, a.err)
	})
	return a
}

func config(agents ...*agent) Config {
	c := Config{Port: 1, Token: secret, Wait: long, Latency: someSpec("send_lat"), Bandwidth: someSpec("write_bw")}
	for _, a := range agents {
		c.Hosts = append(c.Hosts, a.address)
	}
	return c
}

func someSpec(test string) Spec {
	op, bandwidth, _ := measure.Named(test)
	return NewSpec(&measure.Test{
		Op: op, Transport: ibverbs.QPTypeRC, Bandwidth: bandwidth, Sizes: []int{64}, QPs: 1, Iterations: 10, Depth: 4, List: 1, Moderation: 4, Receives: 8,
	})
}

// complete checks that all links of a rail between hosts were measured.
func complete(t *testing.T, r *Result, rails int) {
	t.Helper()
	n := len(r.Hosts)
	require.Len(t, r.Links, n*(n-1)*rails)
	seen := map[[3]string]bool{}
	for _, l := range r.Links {
		require.Empty(t, l.Error)
		require.Equal(t, [3]float64{2, 3, 100}, [3]float64{l.Latency, l.Tail, l.Bandwidth})
		seen[[3]string{l.From, l.To, l.Rail}] = true
	}
	require.Len(t, seen, len(r.Links))
	for _, h := range r.Hosts {
		require.Empty(t, h.Error)
	}
	require.False(t, r.Failed())
}

// Every pair is measured in both directions on each rail, and no host takes
// part in two measurements at once.
func TestEveryPair(t *testing.T) {
	for _, n := range []int{2, 5, 8} {
		for rails := 1; rails <= 2; rails++ {
			var mu sync.Mutex
			var specs []Spec
			var agents []*agent
			for range n {
				var here sync.Mutex
				agents = append(agents, startAgent(t, 1, []Port{{"a", 1, true}, {"b", 2, true}, {"c", 1, false}}[:rails+1-rails%2], func(ctx context.Context, conn net.Conn, isClient bool, spec *Spec) (measure.Row, error) {
					if !here.TryLock() {
						return measure.Row{}, errors.New("two measurements at once")
					}
					defer here.Unlock()
					mu.Lock()
					specs = append(specs, *spec)
					mu.Unlock()
					return meet(ctx, conn, isClient, spec)
				}))
			}
			c := config(agents...)
			var told []int
			c.Progress = func(pairs, of, _ int) {
				require.Equal(t, n*(n-1)/2, of)
				told = append(told, pairs)
			}
			r, err := Run(t.Context(), c)
			require.NoError(t, err)
			complete(t, r, rails)
			require.Len(t, told, n*(n-1)/2)
			require.Len(t, specs, 2*2*len(r.Links), "two ends of two tests")
			for _, s := range specs {
				require.Equal(t, map[string]int{"a": 1, "b": 2}[s.Device], s.Port)
			}
			for _, a := range agents {
				<-a.ended // it has served one
				require.Contains(t, a.events.String(), "has ended after")
			}
		}
	}
}

// A pair that is slow is measured again, and only one that is slow again is
// named.
func TestSlowAgain(t *testing.T) {
	for name, again := range map[string]bool{"once": false, "twice": true} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			measured := map[string]int{}
			var agents []*agent
			for i := range 5 {
				agents = append(agents, startAgent(t, 0, onePort, func(ctx context.Context, conn net.Conn, isClient bool, spec *Spec) (measure.Row, error) {
					row, err := meet(ctx, conn, isClient, spec)
					mu.Lock()
					defer mu.Unlock()
					if isClient && i == 0 && spec.Test == "write_bw" {
						to := conn.RemoteAddr().String()
						measured[to]++
						if to == agents[3].address && (again || measured[to] == 1) {
							row.Gigabits = 10
						}
					}
					return row, err
				}))
			}
			r, err := Run(t.Context(), config(agents...))
			require.NoError(t, err)
			require.Len(t, r.Links, 20)
			require.Equal(t, map[string]int{agents[1].address: 1, agents[2].address: 1, agents[3].address: 2, agents[4].address: 1}, measured)
			if !again {
				complete(t, r, 1)
				require.Empty(t, r.Findings)
				return
			}
			require.Len(t, r.Findings, 1)
			f := r.Findings[0]
			require.Equal(t, []string{"pair", agents[0].address, agents[3].address, "out", "bandwidth"}, []string{f.Kind, f.Host, f.Peer, f.Direction, f.What})
		})
	}
}

// No more pairs are measured at once than asked for.
func TestAtOnce(t *testing.T) {
	var alone sync.Mutex
	var agents []*agent
	for range 6 {
		agents = append(agents, startAgent(t, 0, onePort, func(ctx context.Context, conn net.Conn, isClient bool, spec *Spec) (measure.Row, error) {
			if isClient {
				if !alone.TryLock() {
					return measure.Row{}, errors.New("two pairs at once")
				}
				defer alone.Unlock()
			}
			return meet(ctx, conn, isClient, spec)
		}))
	}
	c := config(agents...)
	c.AtOnce = 1
	r, err := Run(t.Context(), c)
	require.NoError(t, err)
	complete(t, r, 1)
}

// Devices that are the only ones of their hosts are a rail, whatever they are
// called.
func TestOnlyPorts(t *testing.T) {
	var agents []*agent
	for i := range 3 {
		agents = append(agents, startAgent(t, 0, []Port{{fmt.Sprintf("rxe%d", i), 1, true}}, meet))
	}
	r, err := Run(t.Context(), config(agents...))
	require.NoError(t, err)
	require.Equal(t, []string{"the only port"}, r.Rails)
	complete(t, r, 1)
}

// A port that is not active at one host is named, and the rest is measured.
func TestMissingPort(t *testing.T) {
	both, one := []Port{{"a", 1, true}, {"b", 1, true}}, []Port{{"a", 1, true}, {"b", 1, false}}
	agents := []*agent{startAgent(t, 0, both, meet), startAgent(t, 0, one, meet), startAgent(t, 0, both, meet)}
	r, err := Run(t.Context(), config(agents...))
	require.NoError(t, err)
	require.Len(t, r.Links, 6+2)
	require.Equal(t, []string{agents[1].address + " has no active b port 1"}, texts(r))
	require.False(t, r.Failed())
}

func texts(r *Result) (all []string) {
	for _, f := range r.Findings {
		all = append(all, f.Text)
	}
	return all
}

// An agent that ends in the middle is named, and the other pairs are measured.
func TestAgentEnds(t *testing.T) {
	var agents []*agent
	for range 4 {
		agents = append(agents, startAgent(t, 0, onePort, meet))
	}
	var ending *agent
	ending = startAgent(t, 0, onePort, func(ctx context.Context, conn net.Conn, _ bool, _ *Spec) (measure.Row, error) {
		ending.end()
		<-ctx.Done()
		return measure.Row{}, errors.Join(ctx.Err(), conn.Close())
	})
	r, err := Run(t.Context(), config(append(agents, ending)...))
	require.NoError(t, err)
	require.NotEmpty(t, r.Hosts[4].Error)
	require.Equal(t, "host", r.Findings[0].Kind)
	require.Equal(t, ending.address, r.Findings[0].Host)
	require.Len(t, r.Findings, 1, "no pair is blamed for the end of its other host")
	measured := 0
	for _, l := range r.Links {
		if l.From != ending.address && l.To != ending.address {
			require.Empty(t, l.Error)
			measured++
		}
	}
	require.Equal(t, 12, measured)
	require.True(t, r.Failed())
}

// An agent whose device hangs is named in bounded time.
func TestAgentHangs(t *testing.T) {
	release := make(chan struct{})
	hanging := startAgent(t, 0, onePort, func(_ context.Context, conn net.Conn, _ bool, _ *Spec) (measure.Row, error) {
		<-release
		return measure.Row{}, conn.Close()
	})
	t.Cleanup(func() { close(release) }) // before the agent's own, which waits
	c := config(startAgent(t, 0, onePort, meet), hanging, startAgent(t, 0, onePort, meet))
	var r *Result
	for c.Wait = time.Second; ; c.Wait *= 2 { // it limits connecting, too
		var err error
		r, err = Run(t.Context(), c)
		require.NoError(t, err)
		// Without an error, no other host was there to measure with.
		if !strings.Contains(cmp.Or(r.Hosts[1].Error, r.Hosts[0].Error), "no agent has answered") {
			break
		}
	}
	require.Contains(t, r.Hosts[1].Error, "the agent has not answered for")
	require.True(t, r.Failed())
}

// A host that nothing answers at is named.
func TestNoAgent(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0") // answers nothing
	require.NoError(t, err)
	defer ln.Close()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	a := startAgent(t, 0, onePort, meet)
	c := config(a)
	c.Hosts = append(c.Hosts, ln.Addr().String(), closed.Addr().String())
	c.Wait = time.Second
	r, err := Run(t.Context(), c)
	require.NoError(t, err)
	require.Empty(t, r.Links)
	for i, h := range r.Hosts[1:] {
		require.Contains(t, h.Error, "no agent has answered at "+c.Hosts[i+1]+" for 1s")
	}
	require.True(t, r.Failed())
}

// An error at one end is that of the link, and ends the wait of the other end.
func TestLinkFails(t *testing.T) {
	for name, fails := range map[string]bool{"the client": true, "the server": false} {
		t.Run(name, func(t *testing.T) {
			broken := startAgent(t, 0, onePort, func(ctx context.Context, conn net.Conn, isClient bool, spec *Spec) (measure.Row, error) {
				if isClient == fails {
					return measure.Row{}, errors.Join(errors.New("no memory"), conn.Close())
				}
				return meet(ctx, conn, isClient, spec)
			})
			agents := []*agent{broken, startAgent(t, 0, onePort, meet), startAgent(t, 0, onePort, meet)}
			r, err := Run(t.Context(), config(agents...))
			require.NoError(t, err)
			require.Len(t, r.Links, 6)
			for _, l := range r.Links {
				failing := fails && l.From == broken.address || !fails && l.To == broken.address
				require.Equal(t, failing, strings.Contains(l.Error, broken.address+": no memory"), "%+v", l)
				require.Equal(t, failing, l.Error != "")
			}
			require.Len(t, r.Findings, 1)
			require.Equal(t, []string{"port", broken.address, "fails"}, []string{r.Findings[0].Kind, r.Findings[0].Host, r.Findings[0].What})
		})
	}
}

// The end of a coordinator ends what the agents do, and they serve the next
// one.
func TestCoordinatorEnds(t *testing.T) {
	blocked := make(chan struct{}, 2)
	var mu sync.Mutex
	blocks := true
	do := func(ctx context.Context, conn net.Conn, isClient bool, spec *Spec) (measure.Row, error) {
		mu.Lock()
		now := blocks
		mu.Unlock()
		if !now {
			return meet(ctx, conn, isClient, spec)
		}
		defer conn.Close()
		blocked <- struct{}{}
		<-ctx.Done()
		return measure.Row{}, ctx.Err()
	}
	c := config(startAgent(t, 0, onePort, do), startAgent(t, 0, onePort, do))
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	go func() { _, err := Run(ctx, c); ended <- err }()
	<-blocked
	<-blocked
	mu.Lock()
	blocks = false
	mu.Unlock()
	interrupted := errors.New("interrupted")
	cancel(interrupted)
	require.ErrorIs(t, <-ended, interrupted)
	r, err := Run(t.Context(), c)
	require.NoError(t, err)
	complete(t, r, 1)
}

// A coordinator waits until an agent has served the one before.
func TestTwoCoordinators(t *testing.T) {
	a, b := startAgent(t, 0, onePort, meet), startAgent(t, 0, onePort, meet)
	first, _, err := call(t.Context(), a.address, secret, coordinating, "")
	require.NoError(t, err)
	_, _, err = call(t.Context(), a.address, secret, coordinating, "")
	require.ErrorIs(t, err, errBusy)
	c := config(a, b)
	c.Wait = 3 * retryAfter
	r, err := Run(t.Context(), c)
	require.NoError(t, err)
	require.Contains(t, r.Hosts[0].Error, "no agent has answered at")
	require.NoError(t, first.Close())
	r, err = Run(t.Context(), config(a, b))
	require.NoError(t, err)
	complete(t, r, 1)
}

// An agent refuses what does not prove that it knows the token, and what asks
// for what it cannot do.
func TestStrangers(t *testing.T) {
	a := startAgent(t, 0, onePort, meet)
	_, _, err := call(t.Context(), a.address, Token("another token..."), coordinating, "")
	require.EqualError(t, err, "the ends have different tokens in VERBENA_TOKEN")
	_, _, err = call(t.Context(), a.address, secret, "king", "")
	require.EqualError(t, err, `there is no role "king"`)
	_, _, err = call(t.Context(), a.address, secret, measuring, "1")
	require.EqualError(t, err, "the agent waits for no such measurement")

	// What another end has answered to another challenge proves nothing.
	conn, err := net.Dial("tcp", a.address)
	require.NoError(t, err)
	defer conn.Close()
	l := newLines(conn)
	require.NoError(t, l.send(hello{Role: coordinating, Proof: secret.proof("challenge", coordinating, "")}))
	var g greeting
	var w welcome
	require.NoError(t, l.receive(&g))
	require.NoError(t, l.receive(&w))
	require.Equal(t, "the ends have different tokens in VERBENA_TOKEN", w.Error)

	// Many that say nothing keep others from being served until they go.
	refused := func() int { return strings.Count(a.events.String(), "refused") }
	const before = 4 // those above
	require.Eventually(t, func() bool { return refused() == before }, long, time.Millisecond)
	var silent []*lines
	for range mostGreeted {
		conn, err := net.Dial("tcp", a.address)
		require.NoError(t, err)
		silent = append(silent, newLines(conn))
		require.NoError(t, silent[len(silent)-1].receive(&g))
	}
	_, _, err = call(t.Context(), a.address, secret, coordinating, "")
	require.ErrorContains(t, err, a.address+" is not an agent that answers")
	for _, l := range silent {
		require.NoError(t, l.Close())
	}
	require.Eventually(t, func() bool { return strings.Contains(a.events.String(), "(number 64 of this kind in a row)") }, long, time.Millisecond)
	require.Equal(t, 10+3, refused()) // the first ten, and those whose number is a power of two
	r, err := Run(t.Context(), config(a, startAgent(t, 0, onePort, meet)))
	require.NoError(t, err)
	complete(t, r, 1)
}

// An agent does one measurement at a time, and none that would take more than
// its limits.
func TestRequests(t *testing.T) {
	a := startAgent(t, 0, onePort, meet)
	l, ports, err := call(t.Context(), a.address, secret, coordinating, "")
	require.NoError(t, err)
	defer l.Close()
	require.Equal(t, onePort, ports)
	for text, change := range map[string]func(*Spec){
		`no such test: "put"`:                 func(s *Spec) { s.Test = "put" },
		"bytes: 8388609 is not from 1 to":     func(s *Spec) { s.Size = maxSize + 1 },
		"queue pairs: 65 is not from 1 to 64": func(s *Spec) { s.QPs = 65 },
		"post list: 0 is not from 1 to":       func(s *Spec) { s.List = 0 },
		"messages: 4 is not from 5 to":        func(s *Spec) { s.Iterations = 4 },
		"messages: 16777217 is not from 5 to": func(s *Spec) { s.Iterations = maxMessages + 1 },
		"seconds: 3601 is not from 0 to":      func(s *Spec) { s.Duration = maxDuration + 1 },
		"timeout: -1ns":                       func(s *Spec) { s.Timeout = -1 },
		"both numbers must be multiples of":   func(s *Spec) { s.List = 3 },
	} {
		s := someSpec("write_bw")
		change(&s)
		require.NoError(t, l.send(request{ID: "1", Spec: &s, Limit: long.Milliseconds()}))
		var got answer
		require.NoError(t, l.receive(&got))
		require.Contains(t, got.Error, text)
	}
	s := someSpec("write_bw")
	require.NoError(t, l.send(request{ID: "2", Spec: &s, Limit: 1}))
	var got answer
	require.NoError(t, l.receive(&got))
	require.True(t, got.Ready)
	require.NoError(t, l.receive(&got))
	require.Equal(t, answer{ID: "2", Ready: true, Error: "it took longer than 1ms"}, got)
	require.NoError(t, l.send(request{ID: "3", Spec: &s, Limit: long.Milliseconds()}))
	require.NoError(t, l.receive(&got))
	require.NoError(t, l.send(request{ID: "4", Spec: &s, Limit: long.Milliseconds()}))
	for err == nil {
		err = l.receive(&got) // perhaps the end of 3
	}
	require.ErrorIs(t, err, io.EOF)
}

func TestHosts(t *testing.T) {
	for text, hosts := range map[string][]string{
		"a mesh needs two hosts or more":         {"a"},
		"the list of hosts has a twice":          {"a", "b", "a"},
		"a name in the list of hosts is empty":   {"a", ""},
		"the list of hosts has 192.0.2.1 twice ": {"192.0.2.1", "192.0.2.1 "},
		"the list of hosts has a:1 twice":        {"a", "a:1"},
		"the list of hosts has [::1] twice":      {"::1", "[::1]"},
		`"a b" in the list of hosts is no host`:  {"a b"},
		`"a\nb" in the list of hosts is no host`: {"a\nb"},
		`"a:" in the list of hosts is no host`:   {"a:", "b"},
		`":1" in the list of hosts is no host`:   {":1", "b"},
		`"a:0" in the list of hosts is no host`:  {"a:0", "b"},
		`"a:65536" in the list`:                  {"a:65536", "b"},
		`"a:b" in the list`:                      {"a:b", "b"},
		`"<a>" in the list`:                      {"<a>", "b"},
		`"a;b" in the list`:                      {"a;b", "b"},
	} {
		_, err := Run(t.Context(), Config{Hosts: hosts, Port: 1})
		require.ErrorContains(t, err, strings.TrimSpace(text))
	}
	all, err := Config{Hosts: []string{"a", "b:2", "2001:db8::1", "[2001:db8::2]:3", "[2001:db8::3]", "fe80::1%eth0"}, Port: 1}.hosts()
	require.NoError(t, err)
	var addresses []string
	for _, h := range all {
		addresses = append(addresses, h.address)
	}
	require.Equal(t, []string{"a:1", "b:2", "[2001:db8::1]:1", "[2001:db8::2]:3", "[2001:db8::3]:1", "[fe80::1%eth0]:1"}, addresses)
}

// What another program at the port of an agent says is text for a terminal, and
// nothing else.
func TestHostileAgent(t *testing.T) {
	say := func(w welcome) error {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer ln.Close()
		go func() {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			l := newLines(conn)
			_ = l.send(greeting{protocol, "1"})
			_ = l.receive(new(hello))
			_ = l.send(w)
		}()
		l, ports, err := call(t.Context(), ln.Addr().String(), secret, coordinating, "")
		if err != nil {
			return err
		}
		return errors.Join(fmt.Errorf("%v", ports), l.Close())
	}
	require.EqualError(t, say(welcome{Error: "\x1b[2J\nslow"}), "\ufffd[2J\ufffdslow")
	require.EqualError(t, say(welcome{Ports: []Port{{"\x1bc", 1, true}}}), "[\ufffdc port 1]")

	here, there := net.Pipe()
	h := &host{name: "a", lines: newLines(here), answers: make(chan answer), gone: make(chan struct{})}
	go h.read()
	go func() { _ = newLines(there).send(answer{ID: "1", Error: "\x1b[2J"}) }()
	_, err := h.await(t.Context(), "1", long)
	require.EqualError(t, err, "a: \ufffd[2J")
	h.fail(errors.New("the test is over"))
}

func TestToken(t *testing.T) {
	t.Setenv(TokenVariable, "short")
	_, err := ReadToken()
	require.ErrorContains(t, err, "export VERBENA_TOKEN=$(openssl rand -hex 16)")
	t.Setenv(TokenVariable, string(secret))
	token, err := ReadToken()
	require.NoError(t, err)
	require.Equal(t, secret, token)
}

// FuzzAgent sends anything to an agent: as a stranger, or as a coordinator.
func FuzzAgent(f *testing.F) {
	f.Add(false, []byte(`{"role":"coordinator","proof":"00"}`+"\n"))
	f.Add(true, []byte(`{"id":"1","limit_ms":1,"spec":{"test":"write_bw","size":64,"iterations":10,"queue_pairs":1,"depth":4,"list":1,"moderation":4,"receives":8}}`+"\n"))
	f.Add(true, []byte(`{"id":"1","spec":{"test":"send_lat","list":0}}`+"\n"+`{"id":"1","stop":true}`+"\n"))
	f.Add(true, bytes.Repeat([]byte("["), maxLine+1))
	f.Fuzz(func(t *testing.T, known bool, data []byte) {
		if lower := bytes.ToLower(data); bytes.Contains(lower, []byte("peer")) || bytes.Contains(lower, []byte(`\u`)) {
			return // the agent would connect to what the data says
		}
		a := &Agent{token: secret, tell: func(string) {}, work: work{func() ([]Port, error) { return onePort, nil }, meet}}
		here, there := net.Pipe()
		written := make(chan struct{})
		go func() {
			defer close(written)
			go func() { _, _ = io.Copy(io.Discard, there) }()
			_, _ = there.Write(data)
			_ = there.Close()
		}()
		if known {
			a.coordinate(t.Context(), newLines(here))
		} else {
			_, _, err := a.greet(t.Context(), here)
			require.Error(t, err)
		}
		_ = here.Close()
		<-written
		require.False(t, a.busy)
		require.Nil(t, a.pending)
	})
}

// FuzzCoordinator lets an agent send anything to a coordinator.
func FuzzCoordinator(f *testing.F) {
	f.Add([]byte(`{"id":"1","ready":true}` + "\n" + `{"id":"1","row":{"typical_us":-1}}` + "\n"))
	f.Add([]byte(`{"id":"1","ready":true}` + "\n" + `{"id":"1"}` + "\n"))
	f.Add([]byte(`{"id":"1","row":{"typical_us":1e999}}` + "\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		here, there := net.Pipe()
		h := &host{name: "a", lines: newLines(here), answers: make(chan answer), gone: make(chan struct{})}
		go func() {
			_, _ = there.Write(data)
			_ = there.Close()
		}()
		go h.read()
		for {
			if _, err := h.await(t.Context(), "1", long); err != nil && h.failure() != nil {
				break
			}
		}
		h.fail(nil)
	})
}
