// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/verbena-go/verbena/cmd/internal/program"
)

// host is a host as the coordinator sees it: a connection to its agent.
type host struct {
	name    string
	address string // TCP address of the agent
	ports   []Port
	*lines
	answers chan answer
	gone    chan struct{} // closed when the agent does not answer any more

	mu  sync.Mutex
	err error // why the agent does not answer
}

// retryAfter is the time between two attempts to connect to an agent.
const retryAfter = 200 * time.Millisecond

// connect connects to the agent. Until the time is over, it tries again if the
// agent has not been started or serves another coordinator.
func (h *host) connect(ctx context.Context, token Token, wait time.Duration) {
	h.answers, h.gone = make(chan answer), make(chan struct{})
	limited, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	var last error
	for ended := false; !ended; {
		l, ports, err := call(limited, h.address, token, coordinating, "")
		if err == nil {
			h.lines, h.ports = l, ports
			go h.read()
			return
		}
		if limited.Err() == nil || last == nil {
			last = err
		}
		if !mayPass(err) {
			break
		}
		select {
		case <-limited.Done():
			ended = true
		case <-time.After(retryAfter):
		}
	}
	switch {
	case ctx.Err() != nil:
		last = context.Cause(ctx)
	case errors.Is(last, context.DeadlineExceeded):
		last = fmt.Errorf("no agent has answered at %s for %v", h.address, wait)
	case limited.Err() != nil:
		last = fmt.Errorf("no agent has answered at %s for %v: %w", h.address, wait, last)
	}
	h.fail(last)
}

// mayPass reports whether an attempt to connect to an agent may succeed later.
func mayPass(err error) bool {
	_, ok := errors.AsType[*net.OpError](err)
	return ok || errors.Is(err, errBusy) || errors.Is(err, io.EOF)
}

// fail marks the host as one whose agent does not answer any more. The first
// reason counts.
func (h *host) fail(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err != nil {
		return
	}
	h.err = err
	close(h.gone)
	if h.lines != nil {
		_ = h.Close()
	}
}

// failure returns why the agent does not answer any more, or nil.
func (h *host) failure() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err
}

// read receives the agent's answers.
func (h *host) read() {
	for {
		var a answer
		if err := h.receive(&a); err != nil {
			if errors.Is(err, io.EOF) {
				err = errors.New("the agent has closed the connection")
			}
			h.fail(err)
			return
		}
		select {
		case h.answers <- a:
		case <-h.gone:
			return
		}
	}
}

// ask sends a request.
func (h *host) ask(q request) error {
	if err := h.failure(); err != nil {
		return fmt.Errorf("%s: %w", h.name, err)
	}
	if err := h.send(q); err != nil {
		h.fail(err)
		return fmt.Errorf("%s: %w", h.name, err)
	}
	return nil
}

// await returns the next answer about a measurement. If there is none in time,
// the host has failed.
func (h *host) await(ctx context.Context, id string, limit time.Duration) (answer, error) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		select {
		case a := <-h.answers:
			if a.ID != id {
				continue // about an earlier measurement
			}
			if a.Error != "" {
				return a, fmt.Errorf("%s: %s", h.name, program.Printable(a.Error))
			}
			return a, nil
		case <-timer.C:
			h.fail(fmt.Errorf("the agent has not answered for %v", limit))
		case <-ctx.Done():
			h.fail(context.Cause(ctx))
		case <-h.gone:
			return answer{}, fmt.Errorf("%s: %w", h.name, h.failure())
		}
	}
}

// port returns the host's port of a rail.
func (h *host) port(rail string, single bool) (Port, bool) {
	for _, p := range h.ports {
		if single || p.String() == rail {
			return p, true
		}
	}
	return Port{}, false
}

// String returns the name of the rail that the port is on.
func (p Port) String() string { return fmt.Sprintf("%s port %d", p.Device, p.Port) }

// withPort returns the address of a host's agent: with a port, unless the host
// has one. It fails for what can be no host.
func withPort(host string, port int) (string, error) {
	name, own, err := net.SplitHostPort(host)
	if err != nil {
		name, own = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"), strconv.Itoa(port)
	}
	_, noIP := netip.ParseAddr(name)
	if n, err := strconv.ParseUint(own, 10, 16); err != nil || n == 0 || name == "" || noIP != nil && strings.ContainsFunc(name, notInName) {
		return "", fmt.Errorf("%q in the list of hosts is no host: expected a name or an address, with or without a port, and commas between", host)
	}
	return net.JoinHostPort(name, own), nil
}

// notInName reports whether a host's name has no such character.
func notInName(r rune) bool {
	return !unicode.IsPrint(r) || unicode.IsSpace(r) || strings.ContainsRune(`:;/\[]<>"'`, r)
}
